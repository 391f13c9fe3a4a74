"""Statements on a table go together; whoever changes the table is alone with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gateway.errors import CancelledError, UnavailableError
from gateway.lake.writing.table_lock import TableLock

PATIENCE = 60.0


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_statements_go_together() -> None:
    turns = TableLock("s.t")
    with turns.shared(60), turns.shared(60):
        pass


def test_a_change_does_not_begin_beside_a_statement_and_says_so_in_time() -> None:
    turns = TableLock("s.t")
    with turns.shared(60), pytest.raises(UnavailableError, match=r"s\.t.*being written"), turns.exclusive(0.01):
        raise AssertionError("not alone")
    with turns.exclusive(0.01), pytest.raises(UnavailableError), turns.exclusive(0.01):
        raise AssertionError("not alone")
    with turns.shared(60):
        pass


def test_a_change_that_waits_goes_before_statements_that_come_later() -> None:
    turns = TableLock("s.t")
    order: list[str] = []
    is_writing, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with turns.shared(60):
            is_writing.set()
            may_end.wait(PATIENCE)
            order.append("first statement")

    def change() -> None:
        with turns.exclusive(PATIENCE):
            order.append("change")

    def later() -> None:
        with turns.shared(60):
            order.append("later statement")

    threads = [in_thread(first)]
    assert is_writing.wait(PATIENCE)
    threads.append(in_thread(change))
    while not turns.is_wanted_exclusively:
        threading.Event().wait(0.01)
    threads.append(in_thread(later))
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["first statement", "change", "later statement"]


def test_a_change_that_fails_gives_its_turn_back() -> None:
    turns = TableLock("s.t")
    with pytest.raises(ValueError, match="no"), turns.exclusive(PATIENCE):
        raise ValueError("no")
    with turns.exclusive(PATIENCE):
        pass


def test_a_statement_waits_for_a_change_no_longer_than_it_may() -> None:
    turns = TableLock("s.t")
    too_long = pytest.raises(UnavailableError, match=r"s\.t.*being altered for 0\.01 s")
    with turns.exclusive(1), too_long, turns.shared(0.01):
        pass


def test_a_statement_that_nobody_wants_any_more_stops_waiting() -> None:
    turns = TableLock("s.t")
    with turns.exclusive(1), pytest.raises(CancelledError), turns.shared(60, lambda: True):
        pass
    with turns.shared(60, lambda: True):
        pass  # it did not have to wait
