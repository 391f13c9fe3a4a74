from __future__ import annotations

import pyarrow as pa
import pytest

from gateway.catalog.changes import OwnWrite
from gateway.catalog.names import TableName
from gateway.errors import ConflictError, ConstraintError, OutcomeUnknownError, PreconditionError
from gateway.flight.contexts import WriteContexts
from gateway.settings import TransactionSettings
from gateway.transactions.manager import Status, TransactionManager
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
    [(ConstraintError("no"), State.ABORTED), (OutcomeUnknownError("who knows"), State.ACTIVE)],
)
def test_a_failure_aborts_the_transaction_unless_the_statement_may_have_been_written(
    transactions: TransactionManager, error: Exception, state: State
) -> None:
    identity = transactions.begin()
    with pytest.raises(type(error)), WriteContexts(transactions).outcome(CallHeaders(transaction=identity)):
        raise error
    assert transactions.status(identity) == Status(state)


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
    for headers in (CallHeaders(), CallHeaders(transaction=transactions.begin()), CallHeaders(transaction="foreign")):
        context = contexts.of_caller(headers, table, given, never)
        assert (context.transaction, context.read_version, context.conflict_base) == (headers.transaction, 1, None)
    free = contexts.of_caller(CallHeaders(), table, UPDATE, never)
    assert (free.read_version, free.conflict_base) == (None, None)
    with pytest.raises(PreconditionError, match="is not known"):
        contexts.of_caller(CallHeaders(transaction="foreign"), table, UPDATE, never)
    assert contexts.of_caller(CallHeaders(transaction="foreign"), table, INSERT, never).transaction == "foreign"


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
