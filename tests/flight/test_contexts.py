from __future__ import annotations

import pyarrow as pa
import pytest

from gateway.catalog.changes import OwnWrite, Undone
from gateway.catalog.names import TableName
from gateway.errors import (
    ConflictError,
    ConstraintError,
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
)
from gateway.flight.contexts import WriteContexts
from gateway.settings import TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.transactions.records import Status
from gateway.transactions.state import State
from gateway.wire.headers import CallHeaders
from gateway.wire.json_dialect import Command, DeleteCommand, InsertCommand, UpdateCommand
from tests.doubles import MemorySnapshot, MemoryTable

INSERT = InsertCommand(schema="s", table="t")
UPDATE = UpdateCommand(schema="s", table="t", row_ids=(1,))
DELETE = DeleteCommand(schema="s", table="t", row_ids=(1,))


def never() -> bool:
    return False


@pytest.fixture
def transactions() -> TransactionManager:
    return TransactionManager(TransactionSettings())


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable(TableName("lake", "s", "t"), [pa.table({"a": [1]})] * 3)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ConstraintError("no"), State.ABORTED),
        (OutcomeUnknownError("who knows"), State.ACTIVE),
        (InternalError("the log has nothing of it"), State.ABORTED),
        (RuntimeError("nor of this"), State.ABORTED),
    ],
)
def test_a_failure_aborts_the_transaction_unless_the_statement_may_have_been_written(
    transactions: TransactionManager, table: MemoryTable, error: Exception, state: State
) -> None:
    contexts, headers = WriteContexts(transactions), CallHeaders(transaction=transactions.begin())
    assert headers.transaction is not None

    def statement() -> None:
        with contexts.outcome(headers):
            contexts.of_caller(headers, table, INSERT, never).begin_commit()
            raise error

    with pytest.raises(type(error)):
        statement()
    assert transactions.status(headers.transaction) == Status(state)


def test_what_fails_before_the_table_is_known_aborts_the_transaction_too(transactions: TransactionManager) -> None:
    identity = transactions.begin()
    with pytest.raises(NotFoundError), WriteContexts(transactions).outcome(CallHeaders(transaction=identity)):
        raise NotFoundError("no such table")
    assert transactions.status(identity) == Status(State.ABORTED)


def test_a_second_operation_is_refused_without_harm_to_the_first(
    transactions: TransactionManager, table: MemoryTable
) -> None:
    contexts = WriteContexts(transactions)
    headers = CallHeaders(transaction=transactions.begin(), is_contract_transaction=True)
    assert headers.transaction is not None
    with contexts.outcome(headers):
        first = contexts.of_caller(headers, table, INSERT, never)
        with pytest.raises(PreconditionError, match="one is running"), contexts.outcome(headers):
            contexts.of_caller(headers, table, INSERT, never)
        assert transactions.status(headers.transaction) == Status(State.ACTIVE)
        first.begin_commit()
    assert transactions.status(headers.transaction) == Status(State.COMMITTED)


def test_a_rollback_stops_the_statement_which_is_told_so(transactions: TransactionManager, table: MemoryTable) -> None:
    contexts, headers = WriteContexts(transactions), CallHeaders(transaction=transactions.begin())
    assert headers.transaction is not None
    found: list[bool] = []

    def statement() -> None:
        with contexts.outcome(headers):
            context = contexts.of_caller(headers, table, INSERT, never)
            found.append(context.is_cancelled())
            transactions.rollback(str(headers.transaction), lambda _table, _footprint: Undone(0, None))
            found.append(context.is_cancelled())
            context.begin_commit()

    told = f"^transaction {headers.transaction} was rolled back meanwhile; nothing was written$"
    with pytest.raises(PreconditionError, match=told):
        statement()
    assert found == [False, True]
    assert transactions.status(headers.transaction) == Status(State.ABORTED)


@pytest.mark.parametrize("command", [INSERT, UPDATE, DELETE])
def test_a_statement_sent_again_with_its_key_is_refused_only_where_its_key_is_not_known(
    transactions: TransactionManager, table: MemoryTable, command: Command
) -> None:
    contexts = WriteContexts(transactions)
    headers = CallHeaders(transaction=transactions.begin(), is_contract_transaction=True, idempotency_key="key")
    with contexts.outcome(headers):
        assert contexts.of_caller(headers, table, command, never).refusal is None
    again = contexts.of_caller(headers, table, command, never)
    assert again.refusal is not None
    assert again.refusal().message == f"transaction {headers.transaction} is not active (state: committed)"
    with pytest.raises(PreconditionError, match="is not known"):
        contexts.of_caller(CallHeaders(transaction="not a tx", idempotency_key="key"), table, command, never)


@pytest.mark.parametrize("command", [UPDATE, DELETE])
def test_a_json_change_in_a_transaction_is_computed_from_what_the_transaction_read(
    transactions: TransactionManager, table: MemoryTable, command: Command
) -> None:
    identity = transactions.begin()
    transactions.touch(identity, table.name.key, lambda: table.at(0))
    transactions.wrote(identity, table.name.key, 1, {7})
    context = WriteContexts(transactions).of_caller(CallHeaders(transaction=identity), table, command, never)
    assert (context.transaction, context.read_version, context.conflict_base) == (identity, 1, 0)
    assert context.own == (OwnWrite(1, {7}),)


def test_a_json_change_brings_its_own_base_or_none(transactions: TransactionManager, table: MemoryTable) -> None:
    contexts = WriteContexts(transactions)
    given = UpdateCommand(schema="s", table="t", row_ids=(1,), read_version=1)
    for headers in (CallHeaders(), CallHeaders(transaction=transactions.begin())):
        context = contexts.of_caller(headers, table, given, never)
        assert (context.transaction, context.read_version, context.conflict_base) == (headers.transaction, 1, None)
    free = contexts.of_caller(CallHeaders(), table, UPDATE, never)
    assert (free.read_version, free.conflict_base) == (None, None)
    for command in (given, INSERT, UPDATE, DELETE):
        with pytest.raises(PreconditionError, match="is not known"):
            contexts.of_caller(CallHeaders(transaction="foreign"), table, command, never)


def test_a_table_that_was_replaced_during_the_transaction_is_a_conflict(
    transactions: TransactionManager, table: MemoryTable
) -> None:
    identity = transactions.begin()
    transactions.touch(identity, table.name.key, lambda: MemorySnapshot(table, 2, table.versions[2], "another"))
    with pytest.raises(ConflictError, match=r"table 's\.t' was replaced by another one meanwhile"):
        WriteContexts(transactions).of_caller(CallHeaders(transaction=identity), table, UPDATE, never)


def test_without_a_manager_ids_mean_nothing(table: MemoryTable) -> None:
    contexts = WriteContexts(TransactionManager(TransactionSettings(enabled=False)))
    headers = CallHeaders(transaction="any", is_contract_transaction=True)
    for _ in range(2):
        context = contexts.of_caller(headers, table, UPDATE, never)
        assert (context.transaction, context.read_version, context.conflict_base) == (None, None, None)
