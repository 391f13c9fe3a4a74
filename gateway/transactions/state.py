"""A transaction's states: event in, new state out.

A transaction is active until its first statement ends: committed if that was
written, aborted if it failed. The DuckDB client goes on under the same id for
the rest of a BEGIN block and never says COMMIT, so a committed transaction
takes further statements; what they do no longer changes its state.

A manual transaction (`"auto_commit": false`) stays active, whatever its
statements do, until its caller commits it or rolls it back. Either may be
repeated. Rolling back a committed one undoes what it wrote; it stays committed.
"""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(Enum):
    WROTE = "wrote"
    FAILED = "failed"
    COMMIT = "commit"
    ROLLBACK = "rollback"


_NEXT = {
    (TransactionState.ACTIVE, Event.WROTE): TransactionState.COMMITTED,
    (TransactionState.ACTIVE, Event.FAILED): TransactionState.ABORTED,
    (TransactionState.ACTIVE, Event.COMMIT): TransactionState.COMMITTED,
    (TransactionState.ACTIVE, Event.ROLLBACK): TransactionState.ABORTED,
    (TransactionState.COMMITTED, Event.WROTE): TransactionState.COMMITTED,
    (TransactionState.COMMITTED, Event.FAILED): TransactionState.COMMITTED,
    (TransactionState.COMMITTED, Event.COMMIT): TransactionState.COMMITTED,
    (TransactionState.COMMITTED, Event.ROLLBACK): TransactionState.COMMITTED,
    # An aborted transaction has written nothing that stands, and never will: what would write is stopped before.
    (TransactionState.ABORTED, Event.FAILED): TransactionState.ABORTED,
    (TransactionState.ABORTED, Event.ROLLBACK): TransactionState.ABORTED,
}
_MANUAL = {
    **_NEXT,
    (TransactionState.ACTIVE, Event.WROTE): TransactionState.ACTIVE,
    (TransactionState.ACTIVE, Event.FAILED): TransactionState.ACTIVE,
}


class NotAllowedError(Exception):
    """An event that the state does not allow; the state stays as it was."""


def next_state(state: TransactionState, event: Event, *, manual: bool = False) -> TransactionState:
    try:
        return (_MANUAL if manual else _NEXT)[state, event]
    except KeyError:
        raise NotAllowedError(f"{event.value} is not allowed when {state.value}") from None
