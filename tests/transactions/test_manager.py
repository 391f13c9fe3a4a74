from __future__ import annotations

import pytest

from gateway.settings import TransactionSettings
from gateway.transactions.manager import TransactionManager


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
