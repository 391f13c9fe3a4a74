"""Group commit without Spark: who writes when, with whom, and what each is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from gateway.catalog.calls import Call
from gateway.catalog.changes import Operation, WriteContext, WriteOptions
from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    GatewayError,
    InternalError,
    UnavailableError,
)
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.internal_names import ROWID_FIELD
from gateway.lake.tables.schemas import Column
from gateway.lake.values.types import stored_form
from gateway.lake.writing.change_sets import ChangeSet
from gateway.lake.writing.commit_queue import CommitQueue
from gateway.lake.writing.conversion import UploadPlan
from gateway.lake.writing.pending import Committed, Outcome, Pending
from gateway.lake.writing.staging import StagedRows, StagingFolder
from gateway.settings import StagingSettings, WriteSettings

KIND = stored_form(pa.field("v", pa.int64()))


class Table:
    """A table whose commits are held back until told, and remembered."""

    def __init__(self, folder: Path, **settings: int) -> None:
        self.staging = StagingFolder(StagingSettings(folder=str(folder), memory_rows=8))
        self.commits: list[list[Pending]] = []
        self.decide: Callable[[Sequence[Pending]], Mapping[Pending, Outcome]] = self._all_land
        self.held = threading.Event()
        self.held.set()
        self.committer = CommitQueue("t", self._commit, WriteSettings(**settings), self.staging.settings)
        self.pool = ThreadPoolExecutor(32)

    def _commit(self, group: Sequence[Pending]) -> Mapping[Pending, Outcome]:
        self.commits.append(list(group))
        assert self.held.wait(30)
        return self.decide(group)

    def _all_land(self, group: Sequence[Pending]) -> Mapping[Pending, Outcome]:
        return {pending: Committed(pending.rows.rows, len(self.commits)) for pending in group}

    def submit(self, pending: Pending) -> Future[Committed]:
        """Returns once the statement waits or is being written."""
        before = self._seen()
        future = self.pool.submit(self.committer.commit, pending)
        deadline = time.monotonic() + 30
        while self._seen() == before and not future.done():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return future

    def _seen(self) -> int:
        return len(self.committer._queue) + sum(map(len, self.commits))

    def insert(self, rows: int = 1, **context: object) -> Pending:
        return self._pending(Operation.INSERT, ("v",), pa.table({"v": list(range(rows))}), context)

    def update(self, *row_ids: int, sets: str = "v") -> Pending:
        ids = pa.array(row_ids, pa.int64())
        return self._pending(Operation.UPDATE, (sets,), pa.table({sets: ids, ROWID_FIELD: ids}), {})

    def _pending(
        self, operation: Operation, names: Sequence[str], rows: pa.Table, context: dict[str, object]
    ) -> Pending:
        staged = StagedRows(self.staging, rows.schema)
        staged.add(rows)
        staged.finish()
        columns = tuple(
            (place, Column(name, KIND.arrow, True, None, None, name, None, KIND)) for place, name in enumerate(names)
        )
        return Pending(
            operation, UploadPlan(columns, None), staged, WriteOptions(), context=WriteContext(Call(**context))
        )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Table]]:
    made: list[Table] = []

    def make_table(**settings: int) -> Table:
        made.append(Table(tmp_path, **settings))
        return made[-1]

    yield make_table
    for table in made:
        table.held.set()
        table.pool.shutdown()
        table.staging.close()


def while_one_is_written(table: Table, *pendings: Pending) -> list[Future[Committed]]:
    """Submit these while the commit of another statement is under way, and then let everything go on."""
    table.held.clear()
    first = table.submit(table.insert())
    futures = [table.submit(pending) for pending in pendings]
    table.held.set()
    assert first.result(30) == Committed(1, 1)
    return futures


def test_statements_that_wait_share_the_next_commit_and_each_is_told_its_own_count(make: Callable[..., Table]) -> None:
    table = make()
    futures = while_one_is_written(table, table.insert(2), table.update(1), table.insert(3), table.update(2))
    assert [future.result(30) for future in futures] == [Committed(rows, 2) for rows in (2, 1, 3, 1)]
    assert [len(group) for group in table.commits] == [1, 4]


@pytest.mark.parametrize(
    ("what", "sizes"),
    [
        ("a row twice", [1, 1, 1]),
        ("other columns", [1, 1, 1]),
        ("too many rows", [1, 1, 1]),
        ("spooled", [1, 1, 1]),
        ("unlike and like", [1, 2, 1]),
    ],
)
def test_what_does_not_fit_together_is_written_apart_and_in_order(
    make: Callable[..., Table], what: str, sizes: list[int]
) -> None:
    table = make()
    pairs = {
        "a row twice": [table.update(1, 2), table.update(2, 3)],
        "other columns": [table.update(1), table.update(2, sets="w")],
        "too many rows": [table.insert(5), table.insert(5)],
        "spooled": [table.insert(9), table.insert(1)],
        "unlike and like": [table.update(1), table.update(1), table.update(2)],
    }
    futures = while_one_is_written(table, *pairs[what])
    for future in futures:
        future.result(30)
    assert [len(group) for group in table.commits] == sizes
    order = [pending for group in table.commits[1:] for pending in group]
    assert order.index(pairs[what][0]) < order.index(pairs[what][1])


def test_a_group_has_a_most(make: Callable[..., Table]) -> None:
    table = make(group_statements=3)
    futures = while_one_is_written(table, *(table.insert() for _ in range(7)))
    assert {future.result(30).version for future in futures} == {2, 3, 4}
    assert [len(group) for group in table.commits] == [1, 3, 3, 1]


def test_each_is_told_its_own_error(make: Callable[..., Table]) -> None:
    table = make()
    good, bad = table.insert(), table.insert()

    def decide(group: Sequence[Pending]) -> Mapping[Pending, Outcome]:
        return {each: ConstraintError("bad") if each is bad else Committed(1, 1) for each in group}

    table.decide = decide
    futures = while_one_is_written(table, good, bad)
    assert futures[0].result(30) == Committed(1, 1)
    with pytest.raises(ConstraintError, match="bad"):
        futures[1].result(30)


def test_whoever_is_not_decided_upon_comes_first_next_time(make: Callable[..., Table]) -> None:
    table = make()
    one, later, other = table.insert(), table.insert(), table.insert()
    postponed: list[Pending] = []

    def decide(group: Sequence[Pending]) -> Mapping[Pending, Outcome]:
        kept = [each for each in group if each is not later or postponed]
        postponed.append(later)
        return {each: Committed(1, len(table.commits)) for each in kept}

    table.held.clear()
    first = table.submit(table.insert())
    futures = [table.submit(each) for each in (one, later, other)]

    def start(group: Sequence[Pending]) -> Mapping[Pending, Outcome]:
        table.decide = decide
        return {group[0]: Committed(1, 1)}

    table.decide = start
    table.held.set()
    assert [future.result(30).version for future in (first, *futures)] == [1, 2, 3, 2]


def test_an_unforeseen_failure_reaches_everybody_in_the_group_and_the_next_goes_on(make: Callable[..., Table]) -> None:
    table = make()

    def fail(group: Sequence[Pending]) -> Mapping[Pending, Outcome]:
        if len(table.commits) == 2:
            raise RuntimeError("unforeseen")
        return {each: Committed(1, 1) for each in group}

    table.decide = fail
    for future in while_one_is_written(table, table.insert(), table.insert()):
        with pytest.raises(RuntimeError, match="unforeseen"):
            future.result(30)
    assert table.submit(table.insert()).result(30) == Committed(1, 1)


def test_a_cancelled_statement_leaves_the_queue(make: Callable[..., Table]) -> None:
    table = make()
    gone = threading.Event()
    table.held.clear()
    first = table.submit(table.insert())
    future = table.submit(table.insert(is_cancelled=gone.is_set))
    gone.set()
    with pytest.raises(CancelledError):
        future.result(30)
    table.held.set()
    first.result(30)
    assert len(table.commits) == 1


def test_the_queue_is_bounded_and_waiting_too(make: Callable[..., Table]) -> None:
    table = make(queue_statements=1, wait_seconds=1)
    table.held.clear()
    first = table.submit(table.insert())
    waiting = table.submit(table.insert())
    refusals: list[GatewayError] = []
    for future in (table.submit(table.insert()), waiting):
        with pytest.raises(UnavailableError, match="try again") as refused:
            future.result(30)
        refusals.append(refused.value)
    assert "too many" in str(refusals[0])
    assert "for 1 s" in str(refusals[1])
    table.held.set()
    assert first.result(30).affected == 1


def test_a_statement_that_shares_its_commit_is_noted_with_all_its_ids(make: Callable[..., Table]) -> None:
    """An undo of it could not tell its rows from its neighbours' otherwise."""
    done = Committed(10_000, None, IdSet.of(range(0, 20_000, 2)))
    pending = make().update(1)
    assert pending.note(done, is_shared=True).ids == done.row_ids.encode()
    assert pending.note(done, is_shared=False).ids is None


@pytest.mark.parametrize("error", [ConflictError("somebody was faster"), RuntimeError("unexpected")])
def test_a_statement_that_fails_late_in_its_preparation_is_not_among_those_written(
    make: Callable[..., Table], error: Exception
) -> None:
    table, change = make(), ChangeSet()
    late, other = table.insert(), table.insert()
    change.members[other] = Committed(1, None)
    with change.blaming(late):
        change.members[late] = Committed(1, None)
        raise error
    assert list(change.members) == [other]
    assert isinstance(change.settled[late], ConflictError if isinstance(error, ConflictError) else InternalError)
