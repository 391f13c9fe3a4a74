"""One INSERT, UPDATE or DELETE from its call to its commit, for both dialects.

The dialects differ in how rows arrive and how answers leave; all between is here.
A statement is checked as far as it can be before its first row is taken, and is one commit
or nothing: whatever fails, and a caller who goes away, aborts it, and its transaction with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import (
    Operation,
    Statement,
    WriteContext,
    WriteOptions,
    open_delete,
    open_insert,
    open_update,
)
from gateway.catalog.registry import not_before
from gateway.errors import (
    CancelledError,
    ConflictError,
    GatewayError,
    InternalError,
    OutcomeUnknownError,
    PreconditionError,
    RequestError,
)
from gateway.settings import LimitSettings
from gateway.transactions.manager import TransactionManager
from gateway.transactions.records import Ending, RunningStatement
from gateway.wire.tickets import SchemaStamp

_MAX_KEY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Change:
    """What a call asks for.

    `stamp` is the schema that the client knows. `read_version` is what its caller computed the change from;
    without one, and without a transaction, it did not say.
    """

    operation: Operation
    table: Readable
    options: WriteOptions
    stamp: SchemaStamp | None = None
    read_version: int | None = None
    idempotency_key: str | None = None


class Reply(Protocol):
    """How what a statement returns goes to its client."""

    def begin(self, schema: pa.Schema) -> None:
        """Before the first row is taken."""

    def add(self, rows: pa.RecordBatch) -> None:
        """The rows that one batch returns."""

    def finish(self) -> None:
        """All but the count is there, and nothing is written yet."""


class Statements:
    """Thread-safe: holds nothing of a call."""

    def __init__(self, transactions: TransactionManager, limits: LimitSettings) -> None:
        self._transactions = transactions
        self._limits = limits

    @contextlib.contextmanager
    def executing(self, call: Call) -> Iterator[Execution]:
        """Around all that belongs to one statement: what fails in it aborts its transaction."""
        execution = Execution(call, self._transactions, self._limits.batch_bytes)
        try:
            yield execution
        except BaseException as error:
            execution.failed(error)
            raise
        else:
            execution.done()


class Execution:
    """One statement of one call. For one thread."""

    def __init__(self, call: Call, transactions: TransactionManager, batch_bytes: int) -> None:
        self._call = call
        self._transactions = transactions
        self._batch_bytes = batch_bytes
        self._running: RunningStatement | None = None
        self._is_refused = False  # then it does not count as its transaction's

    def open(self, change: Change, schema: pa.Schema) -> Statement:
        """Check all that can be checked before the rows come."""
        table, context = change.table, self.context_of(change)
        match change.operation:
            case Operation.INSERT:
                return open_insert(table, table.name, schema, change.options, context)
            case Operation.UPDATE:
                return open_update(table, schema, change.options, context)
            case Operation.DELETE:
                return open_delete(table, schema, change.options, context)

    def run(self, statement: Statement, batches: Iterable[pa.RecordBatch], reply: Reply, *, drains: bool) -> int:
        """Take the rows and commit them; how many rows were affected.

        With `drains`, an upload is read to its end before an error of it is raised.
        """
        failure: GatewayError | None = None
        try:
            reply.begin(statement.reply_schema)
            for batch in batches:
                self._check_still_there()
                if failure is not None:
                    continue
                try:
                    self._check_size(batch)
                    returned = statement.add(batch)
                except GatewayError as error:
                    if not drains:
                        raise
                    failure = error
                    statement.abort()
                    continue
                if returned is not None:
                    reply.add(returned)
            if failure is not None:
                raise failure
            reply.finish()
            self._check_still_there()
            return statement.commit()
        finally:
            statement.abort()  # after a commit it only releases what was staged

    def done(self) -> None:
        if self._running is not None:
            self._transactions.end_statement(self._running, Ending.DONE)

    def failed(self, error: BaseException) -> None:
        """A rollback that stopped the statement is its error."""
        running = self._running
        if running is None:
            if not self._is_refused:
                self._transactions.failed(self._call.transaction, self._call.caller.name)
            return
        self._transactions.end_statement(running, _ending(running, error))
        if running.is_stopped and isinstance(error, CancelledError):
            raise PreconditionError(
                f"transaction {running.transaction} was rolled back meanwhile; nothing was written"
            ) from error

    def context_of(self, change: Change) -> WriteContext:
        """In a transaction, the rows to change must still be what they were when it first read the table."""
        context = self._in_transaction(change)
        if change.read_version is not None:
            return replace(context, read_version=change.read_version)
        if self._running is None or change.operation is Operation.INSERT:
            return context
        table = change.table
        view = self._transactions.pin(self._running.transaction, table.name.key, table.current, self._call.owner)
        if view.identity is not None and table.current().identity != view.identity:
            raise ConflictError(f"table '{table.name}' was replaced by another one meanwhile; start a new transaction")
        return replace(
            context,
            read_version=not_before(table, table.at(view.read_version), change.stamp).version,
            conflict_base=view.base,
            own=view.own,
            altered=view.altered,
        )

    def _in_transaction(self, change: Change) -> WriteContext:
        """In the transaction that the call names, if any; refused when that has ended.

        The same statement sent again is no second one: where its key may show that, the refusal comes later.
        """
        key = _checked_key(change.idempotency_key or self._call.headers.idempotency_key)
        context = WriteContext(self._call, idempotency_key=key)
        transaction, once = self._call.transaction, self._call.headers.is_contract_transaction
        if not transaction or not self._transactions.is_enabled:
            return context
        table = change.table
        try:
            self._running = self._transactions.open_statement(
                transaction, self._call.owner, table.name.key, table.current(), once=once
            )
        except PreconditionError:
            self._is_refused = True
            refused = None if key is None else self._transactions.refused_statement(transaction, once=once)
            if refused is None:
                raise
            return replace(context, statement=refused)
        return replace(context, statement=self._running)

    def _check_size(self, batch: pa.RecordBatch) -> None:
        # Of buffers that nobody has validated yet, only the sizes are read.
        if batch.get_total_buffer_size() > self._batch_bytes:
            raise RequestError(f"one batch is larger than {self._batch_bytes} bytes (limits.batch_bytes)")

    def _check_still_there(self) -> None:
        if self._call.is_cancelled():
            raise CancelledError("the caller went away; nothing was written")


def _ending(statement: RunningStatement, error: BaseException) -> Ending:
    if isinstance(error, OutcomeUnknownError):
        return Ending.UNKNOWN
    is_clear = isinstance(error, GatewayError) and not isinstance(error, InternalError)
    if is_clear or not statement.is_committing:
        return Ending.FAILED
    return Ending.DONE if statement.is_written else Ending.BROKEN  # only the reply got lost


def _checked_key(key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= _MAX_KEY_CHARACTERS and key.isprintable()):
        raise RequestError(f"an idempotency key has 1 to {_MAX_KEY_CHARACTERS} printable characters")
    return key
