from __future__ import annotations

import pyarrow as pa
import pytest

from gateway.catalog.calls import Call
from gateway.catalog.changes import Operation, OwnWrite, Undone, WriteContext, WriteOptions
from gateway.catalog.names import TableName
from gateway.errors import (
    ConflictError,
    ConstraintError,
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
)
from gateway.flight.statements import Change, Statements
from gateway.settings import LimitSettings, TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.transactions.records import TransactionStatus
from gateway.transactions.state import TransactionState
from gateway.wire.headers import CallHeaders
from tests.doubles import MemorySnapshot, MemoryTable

INSERT, UPDATE, DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE


def statements_of(transactions: TransactionManager) -> Statements:
    return Statements(transactions, LimitSettings())


def asked(operation: Operation, table: MemoryTable, read_version: int | None = None) -> Change:
    return Change(operation, table, WriteOptions(), read_version=read_version)


def context_of(transactions: TransactionManager, headers: CallHeaders, change: Change) -> WriteContext:
    """Of a statement that is then written, with nothing in it."""
    with statements_of(transactions).executing(Call(headers)) as execution:
        return execution.context_of(change)


@pytest.fixture
def transactions() -> TransactionManager:
    return TransactionManager(TransactionSettings())


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable(TableName("lake", "s", "t"), [pa.table({"a": [1]})] * 3)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ConstraintError("no"), TransactionState.ABORTED),
        (OutcomeUnknownError("who knows"), TransactionState.ACTIVE),
        (InternalError("the log has nothing of it"), TransactionState.ABORTED),
        (RuntimeError("nor of this"), TransactionState.ABORTED),
    ],
)
def test_a_failure_aborts_the_transaction_unless_the_statement_may_have_been_written(
    transactions: TransactionManager, table: MemoryTable, error: Exception, state: TransactionState
) -> None:
    statements, headers = statements_of(transactions), CallHeaders(transaction=transactions.begin())
    assert headers.transaction is not None

    def statement() -> None:
        with statements.executing(Call(headers)) as execution:
            execution.context_of(asked(INSERT, table)).begin_commit()
            raise error

    with pytest.raises(type(error)):
        statement()
    assert transactions.status(headers.transaction) == TransactionStatus(state)


def test_what_fails_before_the_table_is_known_aborts_the_transaction_too(transactions: TransactionManager) -> None:
    identity = transactions.begin()
    with pytest.raises(NotFoundError), statements_of(transactions).executing(Call(CallHeaders(transaction=identity))):
        raise NotFoundError("no such table")
    assert transactions.status(identity) == TransactionStatus(TransactionState.ABORTED)


def test_a_second_operation_is_refused_without_harm_to_the_first(
    transactions: TransactionManager, table: MemoryTable
) -> None:
    statements = statements_of(transactions)
    headers = CallHeaders(transaction=transactions.begin(), is_contract_transaction=True)
    assert headers.transaction is not None
    with statements.executing(Call(headers)) as execution:
        first = execution.context_of(asked(INSERT, table))
        with pytest.raises(PreconditionError, match="one is running"):
            context_of(transactions, headers, asked(INSERT, table))
        assert transactions.status(headers.transaction) == TransactionStatus(TransactionState.ACTIVE)
        first.begin_commit()
    assert transactions.status(headers.transaction) == TransactionStatus(TransactionState.COMMITTED)


def test_a_rollback_stops_the_statement_and_is_its_error(transactions: TransactionManager, table: MemoryTable) -> None:
    statements, headers = statements_of(transactions), CallHeaders(transaction=transactions.begin())
    assert headers.transaction is not None
    found: list[bool] = []

    def statement() -> None:
        with statements.executing(Call(headers)) as execution:
            context = execution.context_of(asked(INSERT, table))
            found.append(context.is_cancelled())
            transactions.rollback(str(headers.transaction), lambda _table, _footprint: Undone(0, None))
            found.append(context.is_cancelled())
            context.begin_commit()

    expected = f"^transaction {headers.transaction} was rolled back meanwhile; nothing was written$"
    with pytest.raises(PreconditionError, match=expected):
        statement()
    assert found == [False, True]
    assert transactions.status(headers.transaction) == TransactionStatus(TransactionState.ABORTED)


@pytest.mark.parametrize("operation", [INSERT, UPDATE, DELETE])
def test_a_statement_sent_again_with_its_key_is_refused_only_where_its_key_is_not_known(
    transactions: TransactionManager, table: MemoryTable, operation: Operation
) -> None:
    headers = CallHeaders(transaction=transactions.begin(), is_contract_transaction=True, idempotency_key="key")
    change = asked(operation, table)
    assert context_of(transactions, headers, change).refusal() is None
    refusal = context_of(transactions, headers, change).refusal()
    assert refusal is not None
    assert refusal.message == f"transaction {headers.transaction} is not active (state: committed)"
    with pytest.raises(PreconditionError, match="is not known"):
        context_of(transactions, CallHeaders(transaction="not a tx", idempotency_key="key"), change)


@pytest.mark.parametrize("operation", [UPDATE, DELETE])
def test_a_json_change_in_a_transaction_is_computed_from_what_the_transaction_read(
    transactions: TransactionManager, table: MemoryTable, operation: Operation
) -> None:
    identity = transactions.begin()
    transactions.pin(identity, table.name.key, lambda: table.at(0))
    transactions.wrote(identity, table.name.key, 1, {7})
    context = context_of(transactions, CallHeaders(transaction=identity), asked(operation, table))
    assert (context.transaction, context.read_version, context.conflict_base) == (identity, 1, 0)
    assert context.own == (OwnWrite(1, {7}),)


def test_a_json_change_brings_its_own_base_or_none(transactions: TransactionManager, table: MemoryTable) -> None:
    given = asked(UPDATE, table, read_version=1)
    for headers in (CallHeaders(), CallHeaders(transaction=transactions.begin())):
        context = context_of(transactions, headers, given)
        assert (context.transaction, context.read_version, context.conflict_base) == (headers.transaction, 1, None)
    free = context_of(transactions, CallHeaders(), asked(UPDATE, table))
    assert (free.read_version, free.conflict_base) == (None, None)
    for change in (given, *(asked(operation, table) for operation in Operation)):
        with pytest.raises(PreconditionError, match="is not known"):
            context_of(transactions, CallHeaders(transaction="foreign"), change)


def test_a_table_that_was_replaced_during_the_transaction_is_a_conflict(
    transactions: TransactionManager, table: MemoryTable
) -> None:
    identity = transactions.begin()
    transactions.pin(identity, table.name.key, lambda: MemorySnapshot(table, 2, table.versions[2], "another"))
    with pytest.raises(ConflictError, match=r"table 's\.t' was replaced by another one meanwhile"):
        context_of(transactions, CallHeaders(transaction=identity), asked(UPDATE, table))


def test_without_a_manager_ids_mean_nothing(table: MemoryTable) -> None:
    transactions = TransactionManager(TransactionSettings(enabled=False))
    headers = CallHeaders(transaction="any", is_contract_transaction=True)
    for _ in range(2):
        context = context_of(transactions, headers, asked(UPDATE, table))
        assert (context.transaction, context.read_version, context.conflict_base) == (None, None, None)
