"""Who writes, in which transaction, from which version: the context of a change, for both dialects.

A statement of a transaction is opened when its table is known, and ended with the call
that brought it: that is one thread's work, so the call finds its statement in a context variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace

from gateway.catalog.capabilities import Readable, Snapshot
from gateway.catalog.changes import WriteContext
from gateway.errors import (
    CancelledError,
    ConflictError,
    GatewayError,
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    RequestError,
)
from gateway.transactions.manager import TransactionManager
from gateway.transactions.records import Ending, Owner, RunningStatement
from gateway.wire.headers import CallHeaders
from gateway.wire.json_dialect import Command, InsertCommand
from gateway.wire.tickets import SchemaStamp

ANONYMOUS = "anonymous"
_LONGEST_KEY = 200


@dataclass(slots=True)
class _Call:
    """What became of the statement of one call; a refused one does not count as its transaction's."""

    statement: RunningStatement | None = None
    is_refused: bool = False


_CALL: ContextVar[_Call] = ContextVar("call")


class WriteContexts:
    def __init__(self, transactions: TransactionManager) -> None:
        self._transactions = transactions

    def of_transaction(
        self,
        headers: CallHeaders,
        table: Readable,
        is_cancelled: Callable[[], bool],
        *,
        changes_rows: bool,
        stamp: SchemaStamp | None = None,
    ) -> WriteContext:
        """In a transaction, the rows to change must still be what they were when it met the table."""
        context = self._open(headers, table, is_cancelled)
        if context.transaction is None or context.refusal is not None or not changes_rows:
            return context
        view = self._transactions.touch(context.transaction, table.name.key, table.current, owner_of(headers))
        if view.identity is not None and table.current().identity != view.identity:
            raise ConflictError(f"table '{table.name}' was replaced by another one meanwhile; start a new transaction")
        return replace(
            context,
            read_version=not_before(table, table.at(view.read_version), stamp).version,
            conflict_base=view.base,
            own=view.own,
            altered=view.altered,
        )

    def of_caller(
        self, headers: CallHeaders, table: Readable, command: Command, is_cancelled: Callable[[], bool]
    ) -> WriteContext:
        """The JSON dialect: the caller may say which version it read; without that and a transaction it did not."""
        headers = replace(headers, idempotency_key=command.idempotency_key or headers.idempotency_key)
        if command.read_version is None:
            changes_rows = not isinstance(command, InsertCommand)
            return self.of_transaction(headers, table, is_cancelled, changes_rows=changes_rows)
        return replace(self._open(headers, table, is_cancelled), read_version=command.read_version)

    @contextlib.contextmanager
    def outcome(self, headers: CallHeaders) -> Iterator[None]:
        """Around one statement: what fails in it aborts its transaction."""
        call = _Call()
        token = _CALL.set(call)
        try:
            yield
        except BaseException as error:
            self._end_failed(headers, call, error)
            if call.statement is not None and call.statement.is_stopped and isinstance(error, CancelledError):
                raise PreconditionError(
                    f"transaction {call.statement.transaction} was rolled back meanwhile; nothing was written"
                ) from error
            raise
        else:
            if call.statement is not None:
                self._transactions.end_statement(call.statement, Ending.DONE)
        finally:
            _CALL.reset(token)

    def _end_failed(self, headers: CallHeaders, call: _Call, error: BaseException) -> None:
        if call.statement is not None:
            self._transactions.end_statement(call.statement, _ending(call.statement, error))
        elif not call.is_refused:
            self._transactions.failed(headers.transaction)

    def _open(self, headers: CallHeaders, table: Readable, is_cancelled: Callable[[], bool]) -> WriteContext:
        """In the transaction that the call names, if any; refused when that has ended.

        The same statement sent again is no second one: where its key may tell, the refusal comes later.
        """
        key, transaction = _checked(headers.idempotency_key), headers.transaction
        context = WriteContext(ANONYMOUS, idempotency_key=key, is_cancelled=is_cancelled)
        if not transaction or not self._transactions.is_enabled:
            return context
        call = _CALL.get(_Call())
        once = headers.is_contract_transaction
        try:
            statement = self._transactions.open_statement(
                transaction, owner_of(headers), table.name.key, table.current(), once=once
            )
        except PreconditionError:
            call.is_refused = True
            if key is None or not self._transactions.may_have_written(transaction):
                raise
            return replace(
                context,
                transaction=transaction,
                refusal=lambda: self._transactions.refusal(transaction, once=once),
            )
        call.statement = statement
        return replace(
            context,
            transaction=transaction,
            is_cancelled=lambda: statement.is_stopped or is_cancelled(),
            begin_commit=lambda: self._transactions.begin_commit(statement),
            met_at=statement.since,
        )


def _ending(statement: RunningStatement, error: BaseException) -> Ending:
    if isinstance(error, OutcomeUnknownError):
        return Ending.UNKNOWN
    is_told = isinstance(error, GatewayError) and not isinstance(error, InternalError)
    if is_told or not statement.is_committing:
        return Ending.FAILED
    return Ending.DONE if statement.is_written else Ending.BROKEN  # only the answer got lost


def not_before(table: Readable, snapshot: Snapshot, stamp: SchemaStamp | None) -> Snapshot:
    """A client that altered a table within its transaction knows a schema that the pinned version does not have."""
    if stamp is None or stamp.version <= snapshot.version:
        return snapshot
    try:
        return table.at(stamp.version)
    except NotFoundError:
        return snapshot  # another table by now; its shape tells


def owner_of(headers: CallHeaders) -> Owner:
    return Owner(headers.session, ANONYMOUS)


def _checked(key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isprintable()):
        raise RequestError(f"an idempotency key has 1 to {_LONGEST_KEY} printable characters")
    return key
