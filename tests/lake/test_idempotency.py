"""Keys under which statements are written once: in memory, among callers at once, and from the log."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from gateway.access.callers import Caller
from gateway.catalog.calls import Call
from gateway.catalog.changes import Operation, WriteContext
from gateway.errors import CancelledError, OutcomeUnknownError, PreconditionError, RequestError
from gateway.lake.commits.notes import CommitNote, StatementNote
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.idempotency import Answers, digest_of
from gateway.lake.writing.pending import Committed
from gateway.lake.writing.staging import StagedRows, StagingFolder
from gateway.settings import StagingSettings
from tests.doubles import InTransaction

HOUR = 3_600


class Log:
    """A table's log in which only notes are written, and a clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.now = 1_000_000.0
        self.newest = -1
        self.table_id = "t"

    @property
    def version(self) -> int:
        return self.newest

    def add(self, *notes: StatementNote, dated: float | None = None) -> Path:
        self.newest += 1
        written = int((self.now if dated is None else dated) * 1000)
        info = {"timestamp": written, "userMetadata": CommitNote(notes).encode()}
        file = self._folder / f"{self.newest:020}.json"
        file.write_text(json.dumps({"commitInfo": info}) + "\n")
        os.utime(file, (self.now, self.now))
        return file

    def answers(self) -> Answers:
        """As a gateway that just started has them."""
        return Answers("s.t", Folder.open(str(self._folder)), lambda: self, HOUR, lambda: self.now)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def of(key: str | None, caller: str = "me", is_cancelled: Callable[[], bool] = lambda: False) -> WriteContext:
    return WriteContext(Call(caller=Caller(caller), is_cancelled=is_cancelled), idempotency_key=key)


def never() -> Committed:
    raise AssertionError("it was written before")


def test_a_key_is_written_once_and_answered_alike(log: Log) -> None:
    answers = log.answers()
    first = Committed(3, 7, IdSet.span(10, 3))
    assert answers.find(of("key")) is None
    assert answers.once(of("key"), "digest", lambda: first) is first
    again = answers.once(of("key"), "digest", never)
    assert (again, again.is_repeat, first.is_repeat) == (first, True, False)
    assert answers.find(of("key")) is first
    assert answers.find(of(None)) is None


def test_a_key_belongs_to_its_caller_and_to_what_was_written(log: Log) -> None:
    answers = log.answers()
    answers.once(of("key"), "digest", lambda: Committed(1, 1))
    assert answers.once(of("key", "other"), "another digest", lambda: Committed(2, 2)) == Committed(2, 2)
    with pytest.raises(RequestError, match="'key' was used with another statement"):
        answers.once(of("key"), "another digest", never)


def test_answers_survive_a_restart_for_as_long_as_the_window(log: Log) -> None:
    log.add(StatementNote("insert", "me", 3, ids="4:6", key="old", digest="d"))
    log.now += HOUR - 1
    log.add(StatementNote("update", "me", 1, ids="4", key="new", digest="d"), StatementNote("insert", "you", 9))
    answers = log.answers()
    assert answers.find(of("old")) == Committed(3, 0, IdSet.span(4, 3))
    assert answers.once(of("new"), "d", never) == Committed(1, 1, IdSet.of([4]))
    log.now += 2
    assert log.answers().find(of("old")) is answers.find(of("old")) is None
    assert answers.find(of("new")) == log.answers().find(of("new")) == Committed(1, 1, IdSet.of([4]))


def test_what_failed_may_be_tried_again_and_what_landed_after_all_is_found(log: Log) -> None:
    answers = log.answers()

    def fail() -> Committed:
        raise RequestError("no")

    def land_unseen() -> Committed:
        log.add(StatementNote("insert", "me", 1, key="lost", digest="d"))
        raise OutcomeUnknownError("unknown")

    with pytest.raises(RequestError, match="no"):
        answers.once(of("key"), "d", fail)
    assert answers.once(of("key"), "d", lambda: Committed(1, 5)).version == 5
    with pytest.raises(OutcomeUnknownError):
        answers.once(of("lost"), "d", land_unseen)
    assert answers.once(of("lost"), "d", never) == Committed(1, 0)


def test_what_another_gateway_wrote_meanwhile_is_found(log: Log) -> None:
    answers = log.answers()
    assert answers.find(of("theirs")) is None
    log.add(StatementNote("insert", "me", 2, key="theirs", digest="d"))
    assert answers.once(of("theirs"), "d", never) == Committed(2, 0)


def test_who_comes_while_the_first_is_on_its_way_waits_for_it(log: Log) -> None:
    answers = log.answers()
    started, go_on, gone = threading.Event(), threading.Event(), threading.Event()

    def write() -> Committed:
        started.set()
        assert go_on.wait(30)
        return Committed(1, 1)

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(answers.once, of("key"), "d", write)
        assert started.wait(30)
        second = threads.submit(answers.once, of("key"), "d", never)
        third = threads.submit(answers.once, of("key", is_cancelled=gone.is_set), "d", never)
        with pytest.raises(RequestError, match="another statement"):
            answers.once(of("key"), "other", never)
        gone.set()
        with pytest.raises(CancelledError):
            third.result(30)
        assert not second.done()
        go_on.set()
        assert first.result(30) == second.result(30) == Committed(1, 1)


def test_neither_a_commit_of_others_with_an_early_date_nor_many_commits_hide_a_key(log: Log) -> None:
    log.add(StatementNote("insert", "me", 1, key="before", digest="d"))
    log.add(dated=0)
    for _ in range(10_500):
        log.add()
    assert log.answers().once(of("before"), "d", never) == Committed(1, 0)


def test_a_key_that_was_rolled_back_is_free_again(log: Log) -> None:
    log.add(StatementNote("insert", "me", 1, "tx1", key="a", digest="d"))
    log.add(StatementNote("insert", "me", 1, "tx2", key="b", digest="d"))
    running = log.answers()
    assert running.find(of("a")) is not None
    log.add(StatementNote("undo", "me", 1, undoes="tx1"))
    for answers in (running, log.answers()):
        assert answers.find(of("a")) is None
        assert answers.find(of("b")) == Committed(1, 1)
    assert running.once(of("a"), "another", lambda: Committed(1, 3)) == Committed(1, 3)
    log.add(StatementNote("insert", "me", 1, "tx3", key="a", digest="another"))
    for answers in (running, log.answers()):
        assert answers.once(of("a"), "another", never) == Committed(1, 3)


def test_a_key_in_a_commit_that_was_taken_back_as_a_whole_is_free_again(log: Log) -> None:
    log.add(StatementNote("insert", "me", 1, key="a", digest="d"))
    log.add(
        StatementNote("insert", "me", 1, key="b", digest="d"), StatementNote("insert", "me", 1, key="c", digest="d")
    )
    running = log.answers()
    assert running.find(of("b")) is not None
    log.add(StatementNote("revert", "deltaport", 2, reverts=1))
    for answers in (running, log.answers()):
        assert [answers.find(of(key)) for key in "abc"] == [Committed(1, 0), None, None]


def test_keys_beyond_the_window_are_dropped(log: Log) -> None:
    answers = log.answers()
    for number in range(100):
        answers.once(of(f"key {number}"), "d", lambda: Committed(1, None))
        log.now += 60
    assert len(answers) == 100
    answers.drop_old()
    assert len(answers) == 60
    log.now += HOUR
    answers.find(of("another"))
    assert len(answers) == 0


def test_where_the_log_was_cut_within_the_window_a_key_is_refused_rather_than_written_twice(log: Log) -> None:
    gone = log.add(StatementNote("insert", "me", 1, key="gone", digest="d"))
    log.now += 60
    log.add(StatementNote("insert", "me", 1, key="there", digest="d"))
    gone.unlink()
    answers = log.answers()
    assert answers.once(of("there"), "d", never) == Committed(1, 1)
    for ask in (lambda: answers.find(of("gone")), lambda: answers.once(of("gone"), "d", never)):
        with pytest.raises(PreconditionError, match=r"table 's\.t': its log does not reach back as far as"):
            ask()
    log.now += HOUR
    assert answers.once(of("gone"), "d", lambda: Committed(1, 2)) == Committed(1, 2)


def test_keys_belong_to_the_table_and_not_to_its_name(log: Log) -> None:
    answers = log.answers()
    log.add(StatementNote("insert", "me", 1, key="key", digest="d"))
    assert answers.find(of("key")) is not None
    log.newest, log.table_id = -1, "another"
    log.add()
    log.add()
    assert answers.find(of("key")) is None


def test_a_statement_that_was_refused_gets_its_first_answer_and_nothing_else(log: Log) -> None:
    me = Call(caller=Caller("me"))

    def again(key: str, transaction: str) -> WriteContext:
        return WriteContext(me, InTransaction(transaction, is_refused=True), idempotency_key=key)

    log.add(StatementNote("insert", "me", 1, "tx1", key="a", digest="d"))
    answers = log.answers()
    answers.once(WriteContext(me, InTransaction("tx2"), idempotency_key="b"), "d", lambda: Committed(2, 5))
    assert answers.once(again("a", "tx1"), "d", never) == Committed(1, 0)
    assert answers.once(again("b", "tx2"), "d", never) == Committed(2, 5)
    for key, transaction in (("a", "tx2"), ("c", "tx1")):
        for ask in (answers.find, lambda context: answers.once(context, "d", never)):
            with pytest.raises(PreconditionError, match="not active"):
                ask(again(key, transaction))


def test_a_digest_is_of_rows_and_not_of_batches(tmp_path: Path) -> None:
    staging = StagingFolder(StagingSettings(folder=str(tmp_path), memory_rows=10_000))
    rows = pa.table({"k": pa.array(range(30_000)), "v": [None if n % 7 == 0 else str(n) for n in range(30_000)]})

    def digest(table: pa.Table, size: int, operation: Operation = Operation.INSERT) -> str:
        staged = StagedRows(staging, table.schema)
        for start in range(0, table.num_rows, size):
            staged.add(table.slice(start, size))
        staged.finish()
        found = digest_of(operation, ("k", "v"), staged)
        staged.release()
        return found

    whole = digest(rows, 30_000)
    assert whole == digest(rows, 2_048) == digest(rows, 1_000)
    assert whole != digest(rows.slice(1), 2_048)
    assert whole != digest(rows, 2_048, Operation.UPDATE)
    staging.close()
