"""Who writes, in which transaction, from which version: the context of a change, for both dialects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import WriteContext
from gateway.errors import OutcomeUnknownError
from gateway.transactions.manager import TransactionManager
from gateway.wire.headers import CallHeaders

ANONYMOUS = "anonymous"


class WriteContexts:
    def __init__(self, transactions: TransactionManager) -> None:
        self._transactions = transactions

    def of_transaction(
        self, headers: CallHeaders, table: Readable, is_cancelled: Callable[[], bool], *, changes_rows: bool
    ) -> WriteContext:
        """In a transaction, the rows to change must still be what they were at the version its scans read."""
        read_version = None
        if headers.transaction:
            self._check(headers, changes_rows=changes_rows)
        if changes_rows and headers.transaction:
            read_version = self._transactions.read_version(
                headers.transaction, table.name.key, lambda: table.current().version
            )
        return WriteContext(ANONYMOUS, headers.transaction, read_version, is_cancelled=is_cancelled)

    def of_caller(
        self, headers: CallHeaders, table: Readable, read_version: int | None, is_cancelled: Callable[[], bool]
    ) -> WriteContext:
        """The JSON dialect: the caller says which version it read, or that its last write may win."""
        if read_version is None:
            return self.of_transaction(headers, table, is_cancelled, changes_rows=False)
        if headers.transaction:
            self._check(headers, changes_rows=False)
        return WriteContext(ANONYMOUS, headers.transaction, read_version, is_cancelled=is_cancelled)

    @contextlib.contextmanager
    def outcome(self, headers: CallHeaders) -> Iterator[None]:
        """Around one statement: what fails in it aborts its transaction."""
        try:
            yield
        except OutcomeUnknownError:
            raise  # it may have been written: nobody may say that it was not
        except BaseException:
            self._transactions.failed(headers.transaction)
            raise

    def _check(self, headers: CallHeaders, *, changes_rows: bool) -> None:
        """An id that is not known cannot be a base to change rows from; new rows need none."""
        assert headers.transaction is not None
        if changes_rows or self._transactions.is_issued(headers.transaction):
            self._transactions.check_writable(headers.transaction, once=headers.is_contract_transaction)
