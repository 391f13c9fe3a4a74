"""What logs tell of a transaction, and whether that is all: notes alone, in logs that no table belongs to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.catalog.changes import Footprint, Trace, Undone
from gateway.errors import PreconditionError
from gateway.lake.commits.notes import CommitNote, StatementNote
from gateway.lake.tables.storage import Folder
from gateway.lake.writing import traces
from gateway.lake.writing.traces import traces_of
from gateway.lake.writing.undo import Written, find_written

ISSUED = 1_000_000  # seconds
ONE, OTHER = ("lake", "s", "one"), ("lake", "s", "other")


class Log:
    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.folder = Folder.open(str(path))
        self.newest = -1

    def add(self, *notes: StatementNote, age_seconds: float = -10) -> None:
        """A commit, made so long before the transaction began."""
        self.newest += 1
        self.write(CommitNote(notes).encode() if notes else "a stranger's words", age_seconds)

    def write(self, user_metadata: str, age_seconds: float) -> None:
        file = self.path / f"{self.newest:020}.json"
        file.write_text(json.dumps({"commitInfo": {"timestamp": 0, "userMetadata": user_metadata}}) + "\n")
        os.utime(file, (ISSUED - age_seconds,) * 2)

    def cut(self, first: int) -> None:
        for version in range(first):
            (self.path / f"{version:020}.json").unlink(missing_ok=True)


def wrote(transaction: str = "tx", since: int | None = 1) -> StatementNote:
    return StatementNote("insert", "me", 1, transaction, "7", since=since)


def undid(transaction: str = "tx") -> StatementNote:
    return StatementNote("undo", "me", 3, undoes=transaction)


@pytest.fixture
def one(tmp_path: Path) -> Log:
    log = Log(tmp_path / "one")
    log.add(age_seconds=1_000)
    log.add(wrote("another"), age_seconds=500)
    log.add(wrote(), wrote("another"))
    log.add()
    log.add(wrote())
    return log


def test_logs_tell_where_a_transaction_wrote_and_what_took_it_back(one: Log, tmp_path: Path) -> None:
    other = Log(tmp_path / "other")
    other.add()
    other.add(wrote(since=None))
    other.add(undid())
    found = traces_of({ONE: one.folder, OTHER: other.folder}, "tx", ISSUED * 1000)
    assert found.tables == {
        ONE: Trace(Footprint(1, frozenset([2, 4])), callers=frozenset(["me"])),
        OTHER: Trace(Footprint(-1, frozenset([1])), Undone(3, 2), frozenset(["me"])),
    }
    assert found.gap is None
    assert traces_of({ONE: one.folder}, "unknown", ISSUED * 1000).tables == {}


def test_commits_of_earlier_versions_name_the_transaction_once(one: Log) -> None:
    one.newest += 1
    one.write(json.dumps({"deltaport": {"commit": "c", "transaction": "old"}}), -10)
    assert traces_of({ONE: one.folder}, "old", ISSUED * 1000).tables == {ONE: Trace(Footprint(-1, frozenset([5])))}


def test_logs_that_may_not_tell_all_say_so(one: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {ONE: one.folder, OTHER: Log(tmp_path / "other").folder}
    one.cut(1)
    assert traces_of(logs, "tx", ISSUED * 1000).gap is None, "what was before the transaction is not missed"
    with monkeypatch.context() as patch:
        patch.setattr(traces, "_MOST_COMMITS", 2)
        found = traces_of(logs, "tx", ISSUED * 1000)
        assert (found.tables[ONE].footprint.versions, found.gap) == (
            {4},
            "more than 2 commits were made since it began",
        )
    one.cut(3)
    found = traces_of(logs, "tx", ISSUED * 1000)
    assert found.gap == "the log of table 's.one' does not reach back to its beginning"
    assert found.tables[ONE].footprint.versions == {4}


def test_what_is_to_be_undone_is_all_there_or_refused(one: Log) -> None:
    def find(footprint: Footprint) -> list[int]:
        found = find_written("s.one", one.folder, one.newest, "tx", footprint)
        assert found.undone is None
        return [version for version, _ in found.statements]

    whole = Footprint(1, frozenset([2, 4]))
    assert find(whole) == find(Footprint()) == [2, 4]
    assert find(Footprint(4)) == []
    for wrong in (Footprint(1, frozenset([3])), Footprint(1, frozenset([9]))):
        with pytest.raises(PreconditionError, match="not all that transaction tx wrote is in its log any more"):
            find(wrong)
    one.cut(2)
    assert find(whole) == [2, 4]
    with pytest.raises(PreconditionError, match="not all that transaction tx wrote"):
        find(Footprint())
    one.cut(3)
    with pytest.raises(PreconditionError, match=r"table 's\.one': not all that transaction tx wrote"):
        find(whole)


def test_a_commit_that_was_taken_back_as_a_whole_does_not_count(one: Log) -> None:
    one.add(StatementNote("revert", "deltaport", 1, reverts=4))
    expected = {ONE: Trace(Footprint(1, frozenset([2])), callers=frozenset(["me"]))}
    assert traces_of({ONE: one.folder}, "tx", ISSUED * 1000).tables == expected
    found = find_written("s.one", one.folder, 5, "tx", Footprint(1, frozenset([2])))
    assert [version for version, _ in found.statements] == [2]
    assert find_written("s.one", one.folder, 5, "tx", Footprint(3, frozenset([4]))).statements == ()


def test_what_was_undone_is_found_though_the_rest_of_the_log_is_gone(one: Log) -> None:
    one.add(undid())
    one.cut(5)
    assert find_written("s.one", one.folder, 5, "tx", Footprint(1, frozenset([2, 4]))) == Written((), (5, undid()))
