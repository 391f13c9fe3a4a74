from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import pytest

from gateway.catalog.changes import OwnWrite, Undone
from gateway.errors import ConflictError, NotFoundError, PreconditionError, UnavailableError, UnsupportedError
from gateway.settings import TransactionSettings
from gateway.transactions.manager import Owner, Status, TransactionManager
from gateway.transactions.state import State

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
    return manager.touch(transaction, table, at(newest)).read_version


def opens(manager: TransactionManager, transaction: str, *, once: bool = False, changes_rows: bool = True) -> None:
    manager.open_statement(transaction, SOMEBODY, once=once, changes_rows=changes_rows)


def never(_table: Hashable) -> Undone:
    raise AssertionError("nothing was written")


def test_a_transaction_reads_the_version_it_met_first(manager: TransactionManager) -> None:
    identity = manager.begin()
    assert reads(manager, identity, 5) == 5
    assert reads(manager, identity, 9) == 5
    assert reads(manager, identity, 9, "u") == 9


def test_the_read_version_moves_to_own_writes_and_the_base_never(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.touch(identity, "t", at(5))
    manager.wrote(identity, "t", 8, (10, 19))
    manager.wrote(identity, "t", 7, (0, 9))  # two statements at once may be told in any order
    view = manager.touch(identity, "t", at(20))
    assert (view.base, view.read_version) == (5, 8)
    assert view.own == (OwnWrite(8, (10, 19)), OwnWrite(7, (0, 9)))


def test_a_table_that_was_written_before_it_was_read_has_the_write_as_its_base(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.wrote(identity, "t", 8, (10, 19))
    view = manager.touch(identity, "t", at(20))
    assert (view.base, view.read_version, view.own) == (8, 8, (OwnWrite(8, (10, 19)),))


def test_a_statement_that_changed_nothing_moves_nothing(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.touch(identity, "t", at(5))
    manager.wrote(identity, "t", None)
    assert manager.touch(identity, "t", at(9)).own == ()
    assert manager.status(identity) == Status(State.COMMITTED)


def test_an_alter_counts_for_the_transactions_in_which_its_session_met_the_table(manager: TransactionManager) -> None:
    mine, theirs, elsewhere = (manager.begin() for _ in range(3))
    manager.touch(mine, "t", at(5), SOMEBODY)
    manager.touch(theirs, "t", at(5), Owner("another session", "ada"))
    manager.touch(elsewhere, "u", at(5), SOMEBODY)
    manager.altered(SOMEBODY, "t", 6)
    manager.altered(Owner(None, "ada"), "t", 7)
    assert manager.touch(mine, "t", at(9)).altered == (6,)
    assert (manager.touch(mine, "t", at(9)).base, manager.touch(mine, "t", at(9)).read_version) == (5, 5)
    assert manager.touch(theirs, "t", at(9)).altered == ()
    assert manager.touch(elsewhere, "t", at(9)).altered == (), "it met the table afterwards"


def test_two_first_touches_at_once_get_one_base(manager: TransactionManager) -> None:
    identity = manager.begin()
    barrier, found = threading.Barrier(2), []

    def touch(version: int) -> None:
        def newest() -> Snapshot:
            barrier.wait(20)
            return Snapshot(version)

        found.append(manager.touch(identity, "t", newest))

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
def test_a_foreign_transaction_takes_new_rows_but_changes_none(manager: TransactionManager, foreign: str) -> None:
    opens(manager, foreign, changes_rows=False)
    with pytest.raises(PreconditionError, match="is not known; run the statement again"):
        opens(manager, foreign)
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
    assert manager.status(issued[0]) == Status(State.ACTIVE)


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
    assert manager.status(wrote) == Status(State.ACTIVE)
    manager.wrote(wrote, "t", 7)
    manager.failed(failed)
    assert (manager.status(wrote), manager.status(failed)) == (Status(State.COMMITTED), Status(State.ABORTED))


def test_a_begin_block_goes_on_after_its_first_write_and_a_contract_transaction_does_not(
    manager: TransactionManager,
) -> None:
    identity = manager.begin()
    opens(manager, identity, once=True)
    manager.wrote(identity, "t", 1)
    opens(manager, identity)
    with pytest.raises(PreconditionError, match=rf"^transaction {identity} is not active \(state: committed\)$"):
        opens(manager, identity, once=True)


def test_a_manual_transaction_takes_statements_until_it_is_ended(manager: TransactionManager) -> None:
    for end, state in (
        (manager.commit, "committed"),
        (lambda transaction: manager.rollback(transaction, lambda _table: Undone(1, 2)), "aborted"),
    ):
        identity = manager.begin(manual=True)
        manager.failed(identity)
        manager.wrote(identity, "t", 1)
        opens(manager, identity, once=True)
        assert manager.status(identity) == Status(State.ACTIVE)
        end(identity)
        for once in (True, False):
            with pytest.raises(PreconditionError, match=rf"is not active \(state: {state}\)$"):
                opens(manager, identity, once=once)


def test_an_aborted_transaction_takes_no_more_statements(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.failed(identity)
    with pytest.raises(PreconditionError, match=rf"^transaction {identity} is not active \(state: aborted\)$"):
        opens(manager, identity, changes_rows=False)


def test_commit_and_rollback_may_be_said_again(manager: TransactionManager) -> None:
    committed, rolled_back = manager.begin(), manager.begin()
    for _ in range(2):
        assert manager.commit(committed) is State.COMMITTED
        assert manager.rollback(rolled_back, never) == Status(State.ABORTED)
    with pytest.raises(PreconditionError, match=r"is not active \(state: aborted\)$"):
        manager.commit(rolled_back)


def test_a_rollback_takes_back_each_table_once(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.touch(identity, "read", at(1))
    for table, version in (("t", 3), ("t", 5), ("u", 4)):
        manager.wrote(identity, table, version)
    asked: list[Hashable] = []

    def undo(table: Hashable) -> Undone:
        asked.append(table)
        if asked == ["t", "u"]:
            raise ConflictError("others changed it")
        return Undone(len(asked), 10)

    with pytest.raises(ConflictError):
        manager.rollback(identity, undo)
    done = Status(State.COMMITTED, {"t": Undone(1, 10), "u": Undone(3, 10)})
    assert manager.rollback(identity, undo) == done
    assert manager.rollback(identity, never) == done
    assert manager.status(identity) == done
    assert asked == ["t", "u", "u"]
    assert reads(manager, identity, 99) == 10  # it sees the table without what was taken back
    with pytest.raises(PreconditionError, match=r"is not active \(state: committed\)$"):
        opens(manager, identity)


def test_one_rollback_runs_at_a_time(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.wrote(identity, "t", 3)

    def undo(_table: Hashable) -> Undone:
        with pytest.raises(UnavailableError, match="is being taken back; try again"):
            manager.rollback(identity, never)
        return Undone(1, 4)

    assert manager.rollback(identity, undo).undone == {"t": Undone(1, 4)}


@pytest.mark.parametrize("landed", [True, False])
def test_of_a_statement_whose_outcome_is_unclear_the_log_tells(clock: Clock, landed: bool) -> None:
    found = {"t": None} if landed else {}
    manager = TransactionManager(TransactionSettings(), clock, clock, lambda _transaction, _issued_ms: found)
    identity = manager.begin()
    reads(manager, identity, 3)
    manager.unclear(identity)
    assert manager.status(identity) == Status(State.COMMITTED if landed else State.ACTIVE)
    if landed:
        told = Status(State.COMMITTED, {"t": Undone(1, 9)})
        assert manager.rollback(identity, lambda _table: Undone(1, 9)) == told
    else:
        assert manager.rollback(identity, never) == Status(State.ABORTED)


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
        manager.open_statement(identity, owner, once=False, changes_rows=False)
        manager.wrote(identity, "t", 1)
    opens(manager, reading)
    opens(manager, first)
    assert manager.last_written_by(SOMEBODY) == second
    assert manager.last_written_by(Owner("session", "eve")) is None
    assert manager.last_written_by(Owner(None, "ada")) is None


@pytest.mark.parametrize("secret", ["s3cret", None])
def test_after_a_restart_the_log_tells_what_was_committed(clock: Clock, secret: str | None) -> None:
    settings = TransactionSettings(secret=secret)
    before = TransactionManager(settings, clock, clock)
    wrote, only_read = before.begin(), before.begin()
    clock.now += 1
    asked: list[tuple[str, int]] = []

    def find_in_log(transaction: str, issued_ms: int) -> dict[Hashable, Undone | None]:
        asked.append((transaction, issued_ms))
        return {"t": None, "u": Undone(2, 5)} if transaction == wrote else {}

    manager = TransactionManager(settings, clock, clock, find_in_log)
    assert manager.status(wrote) == Status(State.COMMITTED, {"u": Undone(2, 5)})
    assert manager.status(only_read) is None
    assert asked == [(wrote, 1_000_000_000), (only_read, 1_000_000_000)]
    assert manager.commit(wrote) is State.COMMITTED
    done = {"t": Undone(1, 9), "u": Undone(1, 9)}
    assert manager.rollback(wrote, lambda _table: Undone(1, 9)) == Status(State.COMMITTED, done)
    for end in (manager.commit, lambda transaction: manager.rollback(transaction, never)):
        with pytest.raises(PreconditionError, match="is not known any more"):
            end(only_read)
    with pytest.raises(PreconditionError, match="is not known"):
        opens(manager, wrote)
    reads(manager, wrote, 7)  # reading makes no other transaction of it
    assert manager.status(wrote) == Status(State.COMMITTED, {"u": Undone(2, 5)})
    asked.clear()
    assert manager.status("tx-foreign") is None
    assert asked == []  # what no gateway issued is not looked for


def test_a_manager_that_is_switched_off_gives_no_ids_and_keeps_nothing(clock: Clock) -> None:
    settings = TransactionSettings(enabled=False, secret="s3cret")
    identity = TransactionManager(TransactionSettings(secret="s3cret"), clock, clock).begin()
    manager = TransactionManager(settings, clock, clock)
    with pytest.raises(UnsupportedError, match=r"^transaction manager not configured$"):
        manager.begin()
    assert [reads(manager, identity, version) for version in (5, 6)] == [5, 6]
    assert len(manager) == 0
