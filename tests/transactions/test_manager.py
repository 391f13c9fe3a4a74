from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from gateway.catalog.calls import Owner
from gateway.catalog.changes import Footprint, OwnWrite, Trace, Traces, Undone
from gateway.errors import (
    CancelledError,
    ConflictError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from gateway.settings import TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.transactions.records import Ending, RunningStatement, TransactionStatus
from gateway.transactions.state import TransactionState

SOMEBODY = Owner("session", "ada")
FOREIGN = ["tx-e245e68c", "", "-", "a-b-c", "x" * 5000, "\ud800", "1-2-é"]


@dataclass
class Snapshot:
    version: int
    identity: str = "t"


class Clock:
    """Monotonic and wall clock at once."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def manager(clock: Clock) -> TransactionManager:
    return TransactionManager(TransactionSettings(idle_seconds=100, limit=3), clock, clock)


def at(version: int) -> Callable[[], Snapshot]:
    return lambda: Snapshot(version)


def reads(manager: TransactionManager, transaction: str | None, newest: int, table: str = "t") -> int:
    return manager.pin(transaction, table, at(newest)).read_version


def opens(
    manager: TransactionManager, transaction: str, *, once: bool = False, table: str = "t", version: int = 0
) -> RunningStatement:
    return manager.open_statement(transaction, SOMEBODY, table, Snapshot(version), once=once)


def fails(manager: TransactionManager, transaction: str, ending: Ending = Ending.FAILED) -> None:
    manager.end_statement(opens(manager, transaction), ending)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def never(_table: Hashable, _footprint: Footprint) -> Undone:
    raise AssertionError("nothing was written")


def test_a_transaction_reads_the_version_it_met_first(manager: TransactionManager) -> None:
    identity = manager.begin()
    assert reads(manager, identity, 5) == 5
    assert reads(manager, identity, 9) == 5
    assert reads(manager, identity, 9, "u") == 9


def test_the_read_version_moves_to_own_writes_and_the_base_never(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.pin(identity, "t", at(5))
    manager.wrote(identity, "t", 8, (10, 19))
    manager.wrote(identity, "t", 7, (0, 9))  # two statements at once may be reported in any order
    view = manager.pin(identity, "t", at(20))
    assert (view.base, view.read_version) == (5, 8)
    assert view.own == (OwnWrite(8, (10, 19)), OwnWrite(7, (0, 9)))


def test_a_table_that_was_written_before_it_was_read_has_the_write_as_its_base(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.wrote(identity, "t", 8, (10, 19))
    view = manager.pin(identity, "t", at(20))
    assert (view.base, view.read_version, view.own) == (8, 8, (OwnWrite(8, (10, 19)),))


def test_a_statement_that_changed_nothing_moves_nothing(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.pin(identity, "t", at(5))
    manager.wrote(identity, "t", None)
    assert manager.pin(identity, "t", at(9)).own == ()
    assert manager.status(identity) == TransactionStatus(TransactionState.COMMITTED)


def test_an_alter_counts_for_the_transactions_in_which_its_session_met_the_table(manager: TransactionManager) -> None:
    mine, theirs, elsewhere = (manager.begin() for _ in range(3))
    manager.pin(mine, "t", at(5), SOMEBODY)
    manager.pin(theirs, "t", at(5), Owner("another session", "ada"))
    manager.pin(elsewhere, "u", at(5), SOMEBODY)
    manager.altered(SOMEBODY, "t", 6)
    manager.altered(Owner(None, "ada"), "t", 7)
    assert manager.pin(mine, "t", at(9)).altered == (6,)
    assert (manager.pin(mine, "t", at(9)).base, manager.pin(mine, "t", at(9)).read_version) == (5, 5)
    assert manager.pin(theirs, "t", at(9)).altered == ()
    assert manager.pin(elsewhere, "t", at(9)).altered == (), "it read the table afterwards"


def test_two_first_touches_at_once_get_one_base(manager: TransactionManager) -> None:
    identity = manager.begin()
    barrier, found = threading.Barrier(2), []

    def touch(version: int) -> None:
        def newest() -> Snapshot:
            barrier.wait(20)
            return Snapshot(version)

        found.append(manager.pin(identity, "t", newest))

    threads = [threading.Thread(target=touch, args=(version,)) for version in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]


@pytest.mark.parametrize("foreign", [None, *FOREIGN])
def test_without_an_id_of_ours_every_read_is_of_the_newest_and_nothing_is_kept(
    manager: TransactionManager, foreign: str | None
) -> None:
    assert reads(manager, foreign, 5) == 5
    assert reads(manager, foreign, 6) == 6
    manager.wrote(foreign, "t", 7)
    manager.failed(foreign)
    assert len(manager) == 0


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_transaction_that_was_never_issued_here_writes_nothing(manager: TransactionManager, foreign: str) -> None:
    for once in (True, False):
        with pytest.raises(PreconditionError, match="is not known; start a new one"):
            opens(manager, foreign, once=once)
    for end in (manager.commit, lambda transaction: manager.rollback(transaction, never)):
        with pytest.raises(NotFoundError):
            end(foreign)
    assert manager.status(foreign) is None


def test_transactions_that_are_opened_and_never_used_cost_nothing() -> None:
    manager = TransactionManager(TransactionSettings(limit=10))
    issued = [manager.begin() for _ in range(100_000)]
    assert len(set(issued)) == 100_000
    assert len(manager) == 0
    opens(manager, issued[0])  # the oldest of them can still be used
    assert manager.status(issued[0]) == TransactionStatus(TransactionState.ACTIVE)


def test_an_idle_transaction_reads_anew_and_changes_nothing(manager: TransactionManager, clock: Clock) -> None:
    identity = manager.begin()
    reads(manager, identity, 5)
    clock.now += 99
    assert reads(manager, identity, 6) == 5
    clock.now += 101
    assert len(manager) == 0
    with pytest.raises(PreconditionError, match="is not known any more; start a new one"):
        opens(manager, identity)
    assert reads(manager, identity, 7) == 7
    # The fresh pin is not what it computed its change from.
    with pytest.raises(PreconditionError, match="is not known any more"):
        opens(manager, identity)


def test_a_wall_clock_that_is_set_back_makes_no_new_id_look_old(clock: Clock) -> None:
    wall = iter([5_000.0, 1_000.0, 1_000.0])
    manager = TransactionManager(TransactionSettings(), clock, lambda: next(wall))
    clock.now += 1
    opens(manager, manager.begin())


def test_beyond_the_limit_the_longest_unused_reader_goes_and_writers_stay(
    manager: TransactionManager, clock: Clock
) -> None:
    issued = []
    for _ in range(4):
        clock.now += 1
        issued.append(manager.begin())
    writer, first, second, third = issued
    reads(manager, writer, 1)
    manager.wrote(writer, "t", 2)
    reads(manager, first, 1)
    reads(manager, second, 1)
    clock.now += 61
    reads(manager, first, 2)
    reads(manager, third, 2)
    assert len(manager) == 3
    assert reads(manager, writer, 9) == 2
    assert reads(manager, first, 9) == 1
    with pytest.raises(PreconditionError, match="is not known any more"):
        opens(manager, second)  # evicted: not idle, but its base is gone all the same


def test_when_all_have_written_the_longest_unused_goes(manager: TransactionManager) -> None:
    issued = [manager.begin() for _ in range(5)]
    for version, identity in enumerate(issued):
        manager.wrote(identity, "t", version)
    assert len(manager) == 3
    assert [reads(manager, identity, 99) for identity in issued[2:]] == [2, 3, 4]


def test_a_transaction_is_committed_by_its_first_write_and_aborted_by_a_failure(manager: TransactionManager) -> None:
    wrote, failed = manager.begin(), manager.begin()
    assert manager.status(wrote) == TransactionStatus(TransactionState.ACTIVE)
    manager.wrote(wrote, "t", 7)
    manager.failed(failed)
    assert (manager.status(wrote), manager.status(failed)) == (
        TransactionStatus(TransactionState.COMMITTED),
        TransactionStatus(TransactionState.ABORTED),
    )


def test_a_begin_block_goes_on_after_its_first_write_and_a_contract_transaction_does_not(
    manager: TransactionManager,
) -> None:
    identity = manager.begin()
    first = opens(manager, identity, once=True)
    manager.wrote(identity, "t", 1)
    manager.end_statement(first, Ending.DONE)
    manager.end_statement(opens(manager, identity), Ending.DONE)
    with pytest.raises(PreconditionError, match=rf"^transaction {identity} is not active \(state: committed\)$"):
        opens(manager, identity, once=True)


def test_a_manual_transaction_takes_statements_until_it_is_ended(manager: TransactionManager) -> None:
    for end, state in (
        (manager.commit, "committed"),
        (lambda transaction: manager.rollback(transaction, lambda _table, _footprint: Undone(1, 2)), "aborted"),
    ):
        identity = manager.begin(manual=True)
        manager.failed(identity)
        manager.wrote(identity, "t", 1)
        manager.end_statement(opens(manager, identity, once=True), Ending.DONE)
        assert manager.status(identity) == TransactionStatus(TransactionState.ACTIVE)
        end(identity)
        for once in (True, False):
            with pytest.raises(PreconditionError, match=rf"is not active \(state: {state}\)$"):
                opens(manager, identity, once=once)


def test_an_aborted_transaction_takes_no_more_statements(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.failed(identity)
    with pytest.raises(PreconditionError, match=rf"^transaction {identity} is not active \(state: aborted\)$"):
        opens(manager, identity)


def test_commit_and_rollback_may_be_said_again(manager: TransactionManager) -> None:
    committed, rolled_back = manager.begin(), manager.begin()
    for _ in range(2):
        assert manager.commit(committed) is TransactionState.COMMITTED
        assert manager.rollback(rolled_back, never) == TransactionStatus(TransactionState.ABORTED)
    with pytest.raises(PreconditionError, match=r"is not active \(state: aborted\)$"):
        manager.commit(rolled_back)


def test_a_transaction_of_another_caller_is_not_found(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.pin(identity, "t", at(3), SOMEBODY)
    for work in (lambda: manager.commit(identity, "eve"), lambda: manager.rollback(identity, never, "eve")):
        with pytest.raises(NotFoundError, match=f"^transaction {identity} not found$"):
            work()
    assert manager.status(identity, "eve") is None
    assert manager.pin(identity, "t", at(7), Owner("session", "eve")).read_version == 7
    manager.failed(identity, "eve")
    assert reads(manager, identity, 9) == 3
    assert manager.status(identity, "ada") == TransactionStatus(TransactionState.ACTIVE)
    assert manager.commit(identity, "ada") is TransactionState.COMMITTED


def test_a_rollback_takes_back_each_table_once(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.pin(identity, "read", at(1))
    for table, version in (("t", 3), ("t", 5), ("u", 4)):
        manager.wrote(identity, table, version)
    asked: list[Hashable] = []

    def undo(table: Hashable, _footprint: Footprint) -> Undone:
        asked.append(table)
        if asked == ["t", "u"]:
            raise ConflictError("others changed it")
        return Undone(len(asked), 10)

    with pytest.raises(ConflictError):
        manager.rollback(identity, undo)
    done = TransactionStatus(TransactionState.COMMITTED, {"t": Undone(1, 10), "u": Undone(3, 10)})
    assert manager.rollback(identity, undo) == done
    assert manager.rollback(identity, never) == done
    assert manager.status(identity) == done
    assert asked == ["t", "u", "u"]
    assert reads(manager, identity, 99) == 10  # it sees the table without what was undone
    with pytest.raises(PreconditionError, match=r"is not active \(state: committed\)$"):
        opens(manager, identity)


def test_one_rollback_runs_at_a_time(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.wrote(identity, "t", 3)

    def undo(_table: Hashable, _footprint: Footprint) -> Undone:
        with pytest.raises(UnavailableError, match="is being rolled back; try again"):
            manager.rollback(identity, never)
        with pytest.raises(UnavailableError, match="is being rolled back; try again"):
            manager.commit(identity)
        with pytest.raises(PreconditionError, match="is being rolled back"):
            opens(manager, identity)
        return Undone(1, 4)

    assert manager.rollback(identity, undo).undone == {"t": Undone(1, 4)}


@pytest.mark.parametrize("landed", [True, False])
def test_of_a_statement_whose_outcome_is_unclear_the_log_tells(clock: Clock, landed: bool) -> None:
    found = Traces({"t": Trace(Footprint(3, frozenset([4])))} if landed else {})
    manager = TransactionManager(TransactionSettings(), clock, clock, lambda _transaction, _issued_ms: found)
    identity = manager.begin()
    reads(manager, identity, 3)
    statement = opens(manager, identity, once=True, version=3)
    manager.begin_commit(statement)
    manager.end_statement(statement, Ending.UNKNOWN)
    manager.failed(identity)  # what fails beside it must not hide that it may have been written
    assert manager.status(identity) == TransactionStatus(
        TransactionState.COMMITTED if landed else TransactionState.ACTIVE
    )
    with pytest.raises(PreconditionError, match="of which it is not known whether it was written"):
        opens(manager, identity, once=True)
    asked: list[Footprint] = []

    def undo(_table: Hashable, footprint: Footprint) -> Undone:
        # The table itself is always asked: only there it is known that nothing lands later.
        asked.append(footprint)
        if len(asked) == 1:
            raise UnavailableError("Spark may still be writing")
        return Undone(1, 9) if landed else Undone(0, None)

    with pytest.raises(UnavailableError):
        manager.rollback(identity, undo)
    final = (
        TransactionStatus(TransactionState.COMMITTED, {"t": Undone(1, 9)})
        if landed
        else TransactionStatus(TransactionState.ABORTED)
    )
    assert manager.rollback(identity, undo) == manager.rollback(identity, never) == final
    assert asked == [Footprint(3, frozenset(), "t")] * 2


def test_a_reader_in_use_is_not_pushed_out_by_writers(manager: TransactionManager, clock: Clock) -> None:
    reader = manager.begin()
    reads(manager, reader, 1)
    clock.now += 1
    for version in range(10):
        manager.wrote(manager.begin(), "t", version)
    assert len(manager) == 3
    opens(manager, reader)
    assert reads(manager, reader, 99) == 1


def test_the_last_writing_transaction_of_a_session_is_its_own(clock: Clock) -> None:
    manager = TransactionManager(TransactionSettings(), clock, clock)
    first, second, reading, foreign = (manager.begin() for _ in range(4))
    for identity, owner in ((first, SOMEBODY), (second, SOMEBODY), (foreign, Owner("other", "ada"))):
        clock.now += 1
        manager.open_statement(identity, owner, "t", Snapshot(0), once=False)
        manager.wrote(identity, "t", 1)
    opens(manager, reading)
    opens(manager, first)
    assert manager.last_written_by(SOMEBODY) == second
    assert manager.last_written_by(Owner("session", "eve")) is None
    assert manager.last_written_by(Owner(None, "ada")) is None


@pytest.mark.parametrize("secret", ["s3cret", None])
def test_after_a_restart_the_log_says_what_was_committed(clock: Clock, secret: str | None) -> None:
    settings = TransactionSettings(secret=secret)
    before = TransactionManager(settings, clock, clock)
    wrote, only_read = before.begin(), before.begin()
    clock.now += 1
    asked: list[tuple[str, int]] = []

    def find_in_log(transaction: str, issued_ms: int) -> Traces:
        asked.append((transaction, issued_ms))
        found = {"t": Trace(Footprint(1, frozenset([2]))), "u": Trace(Footprint(), Undone(2, 5))}
        return Traces(found if transaction == wrote else {})

    manager = TransactionManager(settings, clock, clock, find_in_log)
    assert manager.status(wrote) == TransactionStatus(TransactionState.COMMITTED, {"u": Undone(2, 5)})
    assert manager.status(only_read) is None
    assert asked == [(wrote, 1_000_000_000), (only_read, 1_000_000_000)]
    assert manager.commit(wrote) is TransactionState.COMMITTED
    done = {"t": Undone(1, 9), "u": Undone(1, 9)}
    assert manager.rollback(wrote, lambda _table, _footprint: Undone(1, 9)) == TransactionStatus(
        TransactionState.COMMITTED, done
    )
    for end in (manager.commit, lambda transaction: manager.rollback(transaction, never)):
        with pytest.raises(PreconditionError, match="is not known any more"):
            end(only_read)
    with pytest.raises(PreconditionError, match="is not known"):
        opens(manager, wrote)
    reads(manager, wrote, 7)  # reading makes no other transaction of it
    manager.failed(wrote)  # nor does what is refused
    assert manager.status(wrote) == TransactionStatus(TransactionState.COMMITTED, {"u": Undone(2, 5)})
    assert manager.commit(wrote) is TransactionState.COMMITTED
    reads(manager, only_read, 7)
    assert manager.status(only_read) is None
    asked.clear()
    assert manager.status("tx-foreign") is None
    assert asked == []  # what no gateway issued is not looked for


def test_one_operation_is_allowed_also_to_those_who_come_at_once(manager: TransactionManager) -> None:
    identity = manager.begin()
    barrier = threading.Barrier(8)

    def race(_number: int) -> RunningStatement | str:
        barrier.wait(20)
        try:
            return opens(manager, identity, once=True)
        except PreconditionError as error:
            return error.message

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(race, range(8)))
    (first,) = (each for each in outcomes if isinstance(each, RunningStatement))
    text = f"transaction {identity} allows one operation, and one is running"
    assert sorted(each for each in outcomes if each is not first) == [text] * 7
    assert manager.status(identity) == TransactionStatus(TransactionState.ACTIVE), (
        "a refused statement is not the transaction's"
    )
    manager.begin_commit(first)
    manager.wrote(identity, "t", 1)
    manager.end_statement(first, Ending.DONE)
    assert manager.status(identity) == TransactionStatus(TransactionState.COMMITTED)


def test_a_rollback_stops_what_has_not_begun_its_commit_and_does_not_wait_for_it(manager: TransactionManager) -> None:
    identity = manager.begin()
    uploading = opens(manager, identity)
    assert manager.rollback(identity, never) == TransactionStatus(TransactionState.ABORTED)
    assert uploading.is_stopped
    with pytest.raises(CancelledError, match="was rolled back; nothing was written"):
        manager.begin_commit(uploading)
    manager.end_statement(uploading, Ending.FAILED)
    assert manager.status(identity) == TransactionStatus(TransactionState.ABORTED)


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("lands", [True, False])
def test_a_rollback_waits_for_a_commit_that_has_begun_and_takes_it_back(
    manager: TransactionManager, lands: bool, manual: bool
) -> None:
    identity = manager.begin(manual=manual)
    statement = opens(manager, identity, version=4)
    manager.begin_commit(statement)
    asked: list[Footprint] = []

    def undo(_table: Hashable, footprint: Footprint) -> Undone:
        asked.append(footprint)
        return Undone(1, 8)

    with ThreadPoolExecutor(1) as threads:
        rolled_back = threads.submit(manager.rollback, identity, undo)
        wait_until(lambda: statement.is_stopped)
        assert manager.status(identity) == TransactionStatus(TransactionState.ACTIVE), (
            "not before it is known what there is to undo"
        )
        assert not rolled_back.done()
        if lands:
            manager.wrote(identity, "t", 7)
        manager.end_statement(statement, Ending.DONE if lands else Ending.FAILED)
        status = rolled_back.result(20)
    assert asked == ([Footprint(6, frozenset([7]), "t")] if lands else [])
    state = TransactionState.COMMITTED if lands and not manual else TransactionState.ABORTED
    assert status == manager.status(identity) == TransactionStatus(state, {"t": Undone(1, 8)} if lands else {})
    assert manager.rollback(identity, never) == status


def test_a_rollback_that_waits_too_long_says_so_and_changes_nothing(clock: Clock) -> None:
    manager = TransactionManager(TransactionSettings(), clock, clock, commit_seconds=0.01)
    identity = manager.begin()
    statement = opens(manager, identity)
    manager.begin_commit(statement)
    with pytest.raises(UnavailableError, match="is being written; try again"):
        manager.rollback(identity, never)
    assert manager.status(identity) == TransactionStatus(TransactionState.ACTIVE)
    manager.wrote(identity, "t", 1)
    manager.end_statement(statement, Ending.DONE)
    assert manager.rollback(identity, lambda _table, _footprint: Undone(1, 2)).undone == {"t": Undone(1, 2)}


@pytest.mark.parametrize("manual", [False, True])
def test_states_move_as_the_contract_draws_them_however_statements_and_rollbacks_meet(manual: bool) -> None:
    manager = TransactionManager(TransactionSettings())
    for _ in range(40):
        meet(manager, manager.begin(manual=manual))


def meet(manager: TransactionManager, identity: str) -> None:
    """Four statements, one of which fails, a rollback and somebody who watches, all at once."""
    barrier, is_over = threading.Barrier(5), threading.Event()
    seen, landed, undone = [TransactionState.ACTIVE], [0] * 0, [0] * 0

    def write(number: int) -> None:
        barrier.wait(20)
        try:
            statement = opens(manager, identity)
        except PreconditionError:
            return
        try:
            manager.begin_commit(statement)
            if number == 2:
                raise CancelledError("a failure of its own")
        except CancelledError:
            manager.end_statement(statement, Ending.FAILED)
            return
        landed.append(number)
        manager.wrote(identity, "t", number)
        manager.end_statement(statement, Ending.DONE)

    def undo(_table: Hashable, footprint: Footprint) -> Undone:
        undone.extend(footprint.versions)
        return Undone(len(footprint.versions), 9)

    def roll_back() -> TransactionStatus:
        barrier.wait(20)
        return manager.rollback(identity, undo)

    def watch() -> None:
        while not is_over.is_set():
            status = manager.status(identity)
            assert status is not None
            seen.append(status.state)

    with ThreadPoolExecutor(6) as threads:
        watching = threads.submit(watch)
        writing = [threads.submit(write, number) for number in range(4)]
        answered = threads.submit(roll_back).result(20)
        for each in writing:
            each.result(20)
        is_over.set()
        watching.result(20)
    final = manager.status(identity)
    assert final is not None
    assert final.state is answered.state, "what the rollback answered stays true"
    moves = {(one, other) for one, other in itertools.pairwise([*seen, final.state]) if one is not other}
    assert moves <= {
        (TransactionState.ACTIVE, TransactionState.COMMITTED),
        (TransactionState.ACTIVE, TransactionState.ABORTED),
    }
    assert sorted(undone) == sorted(landed), "nothing stands that was written, and nothing is written later"


def test_a_failure_does_not_abort_what_another_statement_is_about_to_write(manager: TransactionManager) -> None:
    identity = manager.begin()
    first, second = opens(manager, identity), opens(manager, identity)
    manager.begin_commit(first)
    manager.end_statement(second, Ending.FAILED)
    manager.failed(identity)
    assert manager.status(identity) == TransactionStatus(TransactionState.ACTIVE)
    manager.wrote(identity, "t", 1)
    manager.end_statement(first, Ending.DONE)
    assert manager.status(identity) == TransactionStatus(TransactionState.COMMITTED)
    fails(manager, other := manager.begin())
    assert manager.status(other) == TransactionStatus(TransactionState.ABORTED)


@pytest.mark.parametrize(("found", "state"), [(True, TransactionState.COMMITTED), (False, TransactionState.ABORTED)])
def test_what_broke_during_its_commit_is_settled_by_the_log(clock: Clock, found: bool, state: TransactionState) -> None:
    traces = Traces({"t": Trace(Footprint(0, frozenset([1])))} if found else {})
    manager = TransactionManager(TransactionSettings(), clock, clock, lambda _transaction, _issued_ms: traces)
    identity = manager.begin()
    fails(manager, identity, Ending.BROKEN)
    assert manager.status(identity) == TransactionStatus(state)
    if found:
        assert manager.rollback(identity, lambda _table, _footprint: Undone(1, 2)).undone == {"t": Undone(1, 2)}


def test_a_transaction_is_not_forgotten_while_its_statement_runs(manager: TransactionManager, clock: Clock) -> None:
    identity = manager.begin()
    statement = opens(manager, identity)
    clock.now += 1_000
    for _ in range(10):
        manager.wrote(manager.begin(), "t", 1)
    assert len(manager) == 3
    manager.wrote(identity, "t", 5)
    manager.end_statement(statement, Ending.DONE)
    assert manager.status(identity) == TransactionStatus(TransactionState.COMMITTED)


def test_a_renamed_table_is_found_by_the_log_and_a_replaced_one_is_not_taken_for_it(clock: Clock) -> None:
    found: dict[Hashable, Trace] = {}
    manager = TransactionManager(TransactionSettings(), clock, clock, lambda _transaction, _issued_ms: Traces(found))
    identity = manager.begin()
    manager.wrote(identity, "t", 3)

    def undo(table: Hashable, _footprint: Footprint) -> Undone:
        if table != "renamed":
            raise NotFoundError("table 't' was replaced by another one")
        return Undone(1, 4)

    text = f"^table 't' was replaced by another one: what transaction {identity} wrote into it cannot be undone$"
    with pytest.raises(PreconditionError, match=text):
        manager.rollback(identity, undo)
    assert manager.status(identity) == TransactionStatus(TransactionState.COMMITTED)
    found.update({"t": Trace(Footprint()), "renamed": Trace(Footprint())})
    assert manager.rollback(identity, undo) == TransactionStatus(TransactionState.COMMITTED, {"renamed": Undone(1, 4)})


def test_what_the_log_may_not_record_in_full_is_not_rolled_back_in_part(clock: Clock) -> None:
    traces = Traces({"t": Trace(Footprint())}, "the log of table 'u' cannot be read now")
    manager = TransactionManager(TransactionSettings(secret="s"), clock, clock, lambda _transaction, _issued_ms: traces)
    clock.now -= 10
    identity = TransactionManager(TransactionSettings(secret="s"), clock, clock).begin()
    clock.now += 10
    text = f"^transaction {identity} cannot be rolled back as a whole: the log of table 'u' cannot be read now$"
    with pytest.raises(PreconditionError, match=text):
        manager.rollback(identity, never)


def test_a_manager_that_is_switched_off_gives_no_ids_and_keeps_nothing(clock: Clock) -> None:
    settings = TransactionSettings(enabled=False, secret="s3cret")
    identity = TransactionManager(TransactionSettings(secret="s3cret"), clock, clock).begin()
    manager = TransactionManager(settings, clock, clock)
    with pytest.raises(UnsupportedError, match=r"^transaction manager not configured$"):
        manager.begin()
    assert [reads(manager, identity, version) for version in (5, 6)] == [5, 6]
    assert len(manager) == 0
