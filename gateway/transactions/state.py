"""A transaction's states: event in, new state out.

A transaction is active until its first statement ends: committed if that was
written, aborted if it failed. The DuckDB client goes on under the same id for
the rest of a BEGIN block and never says COMMIT, so a committed transaction
takes further statements; what they do no longer changes its state.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(Enum):
    WROTE = "wrote"
    FAILED = "failed"


_NEXT = {
    (State.ACTIVE, Event.WROTE): State.COMMITTED,
    (State.ACTIVE, Event.FAILED): State.ABORTED,
    (State.COMMITTED, Event.WROTE): State.COMMITTED,
    (State.COMMITTED, Event.FAILED): State.COMMITTED,
    (State.ABORTED, Event.FAILED): State.ABORTED,
}


class NotAllowedError(Exception):
    """An event that the state does not allow; the state stays as it was."""


def after(state: State, event: Event) -> State:
    try:
        return _NEXT[state, event]
    except KeyError:
        raise NotAllowedError(f"{event.value} is not allowed when {state.value}") from None
