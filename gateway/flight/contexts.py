"""Who writes, in which transaction, from which version: the context of a change, for both dialects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from gateway.catalog.capabilities import Readable, Snapshot
from gateway.catalog.changes import WriteContext
from gateway.errors import ConflictError, NotFoundError, OutcomeUnknownError, RequestError
from gateway.transactions.manager import Owner, TransactionManager
from gateway.wire.headers import CallHeaders
from gateway.wire.json_dialect import Command, InsertCommand
from gateway.wire.tickets import SchemaStamp

ANONYMOUS = "anonymous"
_LONGEST_KEY = 200


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
        key = _checked(headers.idempotency_key)
        transaction = self._open(headers, changes_rows=changes_rows)
        if transaction is None or not changes_rows:
            return WriteContext(ANONYMOUS, transaction, idempotency_key=key, is_cancelled=is_cancelled)
        view = self._transactions.touch(transaction, table.name.key, table.current, owner_of(headers))
        if view.identity is not None and table.current().identity != view.identity:
            raise ConflictError(f"table '{table.name}' was replaced by another one meanwhile; start a new transaction")
        return WriteContext(
            ANONYMOUS,
            transaction,
            not_before(table, table.at(view.read_version), stamp).version,
            view.base,
            view.own,
            view.altered,
            idempotency_key=key,
            is_cancelled=is_cancelled,
        )

    def of_caller(
        self, headers: CallHeaders, table: Readable, command: Command, is_cancelled: Callable[[], bool]
    ) -> WriteContext:
        """The JSON dialect: the caller may say which version it read; without that and a transaction it did not."""
        headers = replace(headers, idempotency_key=command.idempotency_key or headers.idempotency_key)
        if command.read_version is None:
            changes_rows = not isinstance(command, InsertCommand)
            return self.of_transaction(headers, table, is_cancelled, changes_rows=changes_rows)
        # The caller brings the base itself, so it does not matter whether the transaction still has one.
        transaction = self._open(headers, changes_rows=False)
        key = _checked(headers.idempotency_key)
        return WriteContext(
            ANONYMOUS, transaction, command.read_version, idempotency_key=key, is_cancelled=is_cancelled
        )

    @contextlib.contextmanager
    def outcome(self, headers: CallHeaders) -> Iterator[None]:
        """Around one statement: what fails in it aborts its transaction."""
        try:
            yield
        except OutcomeUnknownError:
            self._transactions.unclear(headers.transaction)
            raise
        except BaseException:
            self._transactions.failed(headers.transaction)
            raise

    def _open(self, headers: CallHeaders, *, changes_rows: bool) -> str | None:
        """The transaction that the statement runs in, if any; refused when it has ended."""
        if not headers.transaction or not self._transactions.is_enabled:
            return None
        self._transactions.open_statement(
            headers.transaction,
            owner_of(headers),
            once=headers.is_contract_transaction,
            changes_rows=changes_rows,
        )
        return headers.transaction


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
