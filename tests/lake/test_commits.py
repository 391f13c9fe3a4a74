"""What became of a commit, read from real logs and from the errors of a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.catalog.changes import Operation
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.commits import (
    CommitNote,
    Explained,
    Failure,
    StatementNote,
    affected_in,
    explain,
    find_commit,
)
from tests.builders import Lake

COUNTED = {"numTargetRowsInserted": "3", "numTargetRowsUpdated": "2", "numTargetRowsDeleted": "1"}


def make_log(tmp_path: Path, *commits: list[dict[str, object]]) -> Folder:
    for version, actions in enumerate(commits):
        lines = "\n".join(json.dumps(action) for action in actions)
        (tmp_path / f"{version:020}.json").write_text(lines + "\n")
    return Folder.open(str(tmp_path))


def note(number: int) -> CommitNote:
    return CommitNote((StatementNote(Operation.INSERT.value, "caller", 1, "tx"),), f"commit-{number}")


def test_a_commit_is_found_by_its_id_after_the_version_it_was_built_on(tmp_path: Path) -> None:
    log = make_log(
        tmp_path,
        [{"commitInfo": {"userMetadata": note(0).encode()}}],
        [{"add": {}}],
        [{"add": {}}, {"commitInfo": {"userMetadata": "a stranger's words"}}],
        [{"commitInfo": {"userMetadata": json.dumps(["no", "object"])}}],
        [{"commitInfo": {"userMetadata": note(4).encode(), "operationMetrics": COUNTED}}],
    )
    assert find_commit(log, -1, "commit-0") == 0
    assert find_commit(log, 0, "commit-0") is None
    assert find_commit(log, 0, "commit-4") == 4
    assert find_commit(log, 0, "commit-5") is None
    assert find_commit(log, 7, "commit-4") is None
    assert affected_in(log, 4) == 3 + 2 + 1
    assert affected_in(log, 1) is affected_in(log, 9) is None


def test_every_note_has_an_id_of_its_own_and_says_whose_it_was() -> None:
    one, other = (CommitNote((StatementNote("insert", "me", 3, "tx", "7:9"),)) for _ in range(2))
    assert one.id != other.id
    assert json.loads(one.encode())["deltaport"] == {
        "commit": one.id,
        "statements": [{"operation": "insert", "caller": "me", "rows": 3, "transaction": "tx", "ids": "7:9"}],
    }


class Py4JNetworkError(Exception):
    """Named as py4j names it."""


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (ConnectionRefusedError(), Explained(Failure.SPARK_GONE)),
        (Py4JNetworkError("Answer from Java side is empty"), Explained(Failure.SPARK_GONE)),
        (RuntimeError("io.delta.exceptions.ConcurrentAppendException: Files were added"), Explained(Failure.CONFLICT)),
        (ValueError("the head has moved"), Explained(Failure.OTHER, "the head has moved")),  # a value may say anything
        (
            RuntimeError("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint check_1 coalesce((a > -1), true) …"),
            Explained(Failure.CONSTRAINT, "CHECK constraint failed: check_1"),
        ),
    ],
)
def test_errors_are_told_apart(error: Exception, explained: Explained) -> None:
    assert explain(error) == explained


def test_the_cause_below_an_error_counts() -> None:
    try:
        try:
            raise ConnectionResetError
        except OSError as cause:
            raise RuntimeError("while sending a command") from cause
    except RuntimeError as error:
        assert explain(error).failure is Failure.SPARK_GONE


@pytest.fixture(scope="module")
def checked(spark: object, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, "test_commits")
    lake.create("t", "k INT NOT NULL, c INT, s STRUCT<x: INT NOT NULL>")
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT `is positive` CHECK (c > 0)", "t")
    return lake


@pytest.mark.parametrize(
    ("statement", "explained"),
    [
        ("INSERT INTO {t} SELECT 1, -1, named_struct('x', 1) FROM range(3)",
         Explained(Failure.CONSTRAINT, "CHECK constraint failed: is positive")),
        ("INSERT INTO {t} SELECT cast(nullif(id, 0) AS INT), 1, named_struct('x', 1) FROM range(1)",
         Explained(Failure.CONSTRAINT, "NOT NULL constraint failed: column 'k'")),
        ("INSERT INTO {t} SELECT 1, 1, named_struct('x', cast(nullif(id, 0) AS INT)) FROM range(1)",
         Explained(Failure.CONSTRAINT, "NOT NULL constraint failed: column 's.x'")),
        ("SELECT raise_error('the head has moved') FROM range(1)", Explained(Failure.CONFLICT)),
        ("SELECT raise_error('something else') FROM range(1)", None),
        ("SELECT k FROM {t} WHERE nothing = 1", None),
    ],
)  # fmt: skip
def test_what_spark_says_is_understood(checked: Lake, statement: str, explained: Explained | None) -> None:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - py4j's, Spark's or Delta's own
        checked.sql(statement, "t").collect()
    found = explain(failure.value)
    if explained is None:
        assert found.failure is Failure.OTHER
    else:
        assert found == explained
