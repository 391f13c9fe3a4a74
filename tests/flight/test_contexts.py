from __future__ import annotations

import pytest

from gateway.errors import ConstraintError, OutcomeUnknownError
from gateway.flight.contexts import WriteContexts
from gateway.settings import TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.transactions.state import State
from gateway.wire.headers import CallHeaders


@pytest.mark.parametrize(
    ("error", "state"),
    [(ConstraintError("no"), State.ABORTED), (OutcomeUnknownError("who knows"), State.ACTIVE)],
)
def test_a_failure_aborts_the_transaction_unless_the_statement_may_have_been_written(
    error: Exception, state: State
) -> None:
    transactions = TransactionManager(TransactionSettings())
    identity = transactions.begin()
    with pytest.raises(type(error)), WriteContexts(transactions).outcome(CallHeaders(transaction=identity)):
        raise error
    assert transactions.state(identity) is state
