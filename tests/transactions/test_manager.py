from __future__ import annotations

import pytest

from gateway.errors import PreconditionError
from gateway.settings import TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.transactions.state import Event, NotAllowedError, State, after


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def manager(clock: Clock) -> TransactionManager:
    return TransactionManager(TransactionSettings(idle_seconds=100, limit=3), clock)


def test_a_transaction_reads_the_version_it_met_first(manager: TransactionManager) -> None:
    identity = manager.begin()
    assert manager.read_version(identity, "t", lambda: 5) == 5
    assert manager.read_version(identity, "t", lambda: 9) == 5
    assert manager.read_version(identity, "u", lambda: 9) == 9


def test_without_an_id_every_read_is_of_the_newest(manager: TransactionManager) -> None:
    assert manager.read_version(None, "t", lambda: 5) == 5
    assert manager.read_version("", "t", lambda: 6) == 6
    assert len(manager) == 0


@pytest.mark.parametrize("foreign", ["tx-e245e68c", "", "-", "a-b-c", "x" * 5000, "\ud800", "1-2-é"])
def test_a_foreign_id_reads_the_newest_and_is_not_kept(manager: TransactionManager, foreign: str) -> None:
    assert manager.read_version(foreign, "t", lambda: 5) == 5
    assert manager.read_version(foreign, "t", lambda: 6) == 6
    assert len(manager) == 0


def test_a_forged_id_is_not_one_of_ours(manager: TransactionManager) -> None:
    identity = manager.begin()
    assert manager.is_issued(identity)
    assert not manager.is_issued(identity[:-1] + ("0" if identity[-1] != "0" else "1"))
    assert not TransactionManager(TransactionSettings()).is_issued(identity)


def test_ids_outlive_a_restart_when_the_secret_is_configured() -> None:
    settings = TransactionSettings(secret="s3cret")
    assert TransactionManager(settings).is_issued(TransactionManager(settings).begin())


def test_issuing_ids_keeps_nothing(manager: TransactionManager) -> None:
    assert len({manager.begin() for _ in range(10_000)}) == 10_000
    assert len(manager) == 0


def test_an_idle_transaction_is_forgotten(manager: TransactionManager, clock: Clock) -> None:
    identity = manager.begin()
    manager.read_version(identity, "t", lambda: 5)
    clock.now = 99
    assert manager.read_version(identity, "t", lambda: 6) == 5
    clock.now = 300
    assert len(manager) == 0
    assert manager.read_version(identity, "t", lambda: 7) == 7


def test_beyond_the_limit_the_longest_unused_goes(manager: TransactionManager) -> None:
    first, second, third, fourth = (manager.begin() for _ in range(4))
    for identity in (first, second, third):
        manager.read_version(identity, "t", lambda: 1)
    manager.read_version(first, "t", lambda: 2)
    manager.read_version(fourth, "t", lambda: 2)
    assert len(manager) == 3
    assert manager.read_version(first, "t", lambda: 3) == 1
    assert manager.read_version(second, "t", lambda: 3) == 3


def test_a_transaction_is_committed_by_its_first_write_and_aborted_by_a_failure(manager: TransactionManager) -> None:
    wrote, failed = manager.begin(), manager.begin()
    assert manager.state(wrote) is State.ACTIVE
    manager.wrote(wrote, "t", 7)
    manager.failed(failed)
    assert (manager.state(wrote), manager.state(failed)) == (State.COMMITTED, State.ABORTED)
    assert manager.read_version(wrote, "t", lambda: 9) == 7
    assert manager.state("tx-foreign") is None


def test_a_begin_block_goes_on_after_its_first_write_and_a_contract_transaction_does_not(
    manager: TransactionManager,
) -> None:
    identity = manager.begin()
    manager.check_writable(identity, once=True)
    manager.wrote(identity, "t", 1)
    manager.check_writable(identity, once=False)
    with pytest.raises(PreconditionError, match=rf"^transaction {identity} is not active \(state: committed\)$"):
        manager.check_writable(identity, once=True)


def test_an_aborted_transaction_takes_no_more_statements(manager: TransactionManager) -> None:
    identity = manager.begin()
    manager.failed(identity)
    with pytest.raises(PreconditionError, match=rf"^transaction {identity} is not active \(state: aborted\)$"):
        manager.check_writable(identity, once=False)


def test_a_foreign_transaction_cannot_be_written_in(manager: TransactionManager) -> None:
    with pytest.raises(PreconditionError, match="is not known"):
        manager.check_writable("tx-foreign", once=False)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_an_event_leads_to_a_state_or_is_refused(state: State, event: Event) -> None:
    if (state, event) == (State.ABORTED, Event.WROTE):
        with pytest.raises(NotAllowedError):
            after(state, event)
    else:
        assert after(state, event) in State
