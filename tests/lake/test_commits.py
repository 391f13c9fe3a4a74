"""What became of a commit, read from real logs and from the errors of a real Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from py4j.java_gateway import JavaGateway
from pyspark.java_gateway import launch_gateway

from gateway.catalog.changes import Operation
from gateway.lake.commits.failures import Explained, Failure, explain
from gateway.lake.commits.notes import CommitNote, StatementNote, affected_in, find_commit
from gateway.lake.tables.storage import Folder
from tests.builders import Lake
from tests.flight.writing import during_the_next_merge, numbers

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


def test_a_value_may_say_anything() -> None:
    assert explain(ValueError("the head has moved")) == Explained(Failure.OTHER, "the head has moved")


@pytest.fixture
def jvm() -> Iterator[JavaGateway]:
    """A JVM as pyspark starts it, without Spark: to be killed."""
    gateway = launch_gateway()
    yield gateway
    gateway.shutdown()
    gateway.proc.kill()
    gateway.proc.wait()
    gateway.proc.stdin.close()


@pytest.mark.spark
def test_a_jvm_that_goes_away_is_told_from_a_statement_that_fails(jvm: JavaGateway) -> None:
    lang = jvm.jvm.java.lang
    number, thread = lang.Integer, lang.Thread
    with pytest.raises(Exception, match="An error occurred while calling") as failed:
        number.parseInt("x")
    with pytest.raises(Exception, match=r"Method parseInt.* does not exist") as wrong:
        number.parseInt(1.5)
    assert [explain(error.value).failure for error in (failed, wrong)] == [Failure.OTHER] * 2
    is_sleeping = threading.Event()

    def sleep() -> None:
        thread.currentThread().setName("sleeper")
        is_sleeping.set()
        thread.sleep(600_000)

    with ThreadPoolExecutor(1) as other:
        broken_off = other.submit(sleep)
        assert is_sleeping.wait(60)
        jvm.proc.kill()
        jvm.proc.wait()
        silence = broken_off.exception(60)
    assert silence is not None
    with pytest.raises(Exception, match=r"does not exist in the JVM|refused") as unnamed:
        lang.System  # noqa: B018
    with pytest.raises(Exception, match=r"refused|An error occurred while calling") as gone:
        number.parseInt("1")
    # What failed before cannot say any more why.
    for error in (silence, unnamed.value, gone.value, failed.value):
        assert explain(error) == Explained(Failure.SPARK_GONE), repr(error)


CONFLICTING = {
    "an append": "INSERT INTO {t} VALUES (9, 9, 'theirs')",
    "an update": "UPDATE {t} SET v = 'theirs' WHERE k = 1",
    "a delete": "DELETE FROM {t} WHERE k = 1",
    "a new column": "ALTER TABLE {t} ADD COLUMN extra INT",
}


@pytest.mark.parametrize("foreign", CONFLICTING)
def test_what_delta_says_of_other_writers_is_a_conflict(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    numbers(lake)
    target = DeltaTable.forPath(lake.spark, str(lake.path("n"))).alias("t")
    source = lake.spark.range(1, 2).alias("s")
    with during_the_next_merge(monkeypatch, lambda: lake.sql(CONFLICTING[foreign], "n")):
        merge = target.merge(source, "t.k = s.id").whenMatchedUpdate(set={"v": "'ours'"})
        with pytest.raises(Exception) as failure:  # noqa: PT011 - py4j's, Spark's or Delta's own
            merge.execute()
    assert explain(failure.value) == Explained(Failure.CONFLICT)


@pytest.fixture(scope="module")
def checked(spark: object, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, "test_commits")
    lake.create("t", "k INT NOT NULL, c INT, s STRUCT<x: INT NOT NULL>")
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT `is positive` CHECK (c > 0)", "t")
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT check_1 CHECK (coalesce((k > -1), true))", "t")  # as ours are stored
    return lake


@pytest.mark.parametrize(
    ("statement", "explained"),
    [
        ("INSERT INTO {t} SELECT 1, -1, named_struct('x', 1) FROM range(3)",
         Explained(Failure.CONSTRAINT, "CHECK constraint failed: is positive")),
        ("INSERT INTO {t} SELECT -1, 1, named_struct('x', 1) FROM range(3)",
         Explained(Failure.CONSTRAINT, "CHECK constraint failed: check_1")),
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
