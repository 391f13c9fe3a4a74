from __future__ import annotations

import pytest

from gateway.transactions.state import Event, NotAllowedError, TransactionState, next_state

ACTIVE, COMMITTED, ABORTED = TransactionState.ACTIVE, TransactionState.COMMITTED, TransactionState.ABORTED
WROTE, FAILED, COMMIT, ROLLBACK = Event.WROTE, Event.FAILED, Event.COMMIT, Event.ROLLBACK


@pytest.mark.parametrize(
    ("state", "event", "then", "manual"),
    [
        (ACTIVE, WROTE, COMMITTED, ACTIVE),
        (ACTIVE, FAILED, ABORTED, ACTIVE),
        (ACTIVE, COMMIT, COMMITTED, COMMITTED),
        (ACTIVE, ROLLBACK, ABORTED, ABORTED),
        (COMMITTED, WROTE, COMMITTED, COMMITTED),
        (COMMITTED, FAILED, COMMITTED, COMMITTED),
        (COMMITTED, COMMIT, COMMITTED, COMMITTED),
        (COMMITTED, ROLLBACK, COMMITTED, COMMITTED),
        (ABORTED, FAILED, ABORTED, ABORTED),
        (ABORTED, ROLLBACK, ABORTED, ABORTED),
    ],
)
def test_an_event_leads_to_a_state(
    state: TransactionState, event: Event, then: TransactionState, manual: TransactionState
) -> None:
    assert next_state(state, event) is then
    assert next_state(state, event, manual=True) is manual


@pytest.mark.parametrize("event", [COMMIT, WROTE])
def test_aborted_is_final(event: Event) -> None:
    for manual in (False, True):
        with pytest.raises(NotAllowedError):
            next_state(ABORTED, event, manual=manual)
