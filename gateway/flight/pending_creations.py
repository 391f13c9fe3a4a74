"""CREATE TABLE AS: a new table and its first rows, which the client sends as two calls.

The first insert into a table belongs to the statement that made the table when the
same client sends it under a transaction that is older than the table: the client
asks for a new transaction with every other statement, unless it is in a BEGIN
block, which DuckDB would undo as a whole. When such an insert fails or is
cancelled, the table is dropped. Whether an insert is still to come cannot be known.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from gateway.catalog.calls import Call, Owner
from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import Operation
from gateway.catalog.editing import Editors
from gateway.errors import GatewayError, OutcomeUnknownError
from gateway.transactions.manager import TransactionManager

log = structlog.get_logger(__name__)

_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Creation:
    table: Readable
    owner: Owner
    began_ms: int


class PendingCreations:
    """Thread-safe: one lock guards the tables that nobody has written to yet."""

    def __init__(self, editors: Editors, transactions: TransactionManager) -> None:
        self._editors = editors
        self._transactions = transactions
        self._lock = threading.Lock()
        self._pending: OrderedDict[tuple[str, str, str], _Creation] = OrderedDict()

    def record_creation(self, call: Call, table: Readable, began_ms: int) -> None:
        if call.owner.session is None:
            return
        with self._lock:
            self._pending[table.name.key] = _Creation(table, call.owner, began_ms)
            while len(self._pending) > _REMEMBERED:
                self._pending.popitem(last=False)

    @contextlib.contextmanager
    def guard(self, call: Call, table: Readable) -> Iterator[None]:
        """Around an exchange: where the first rows of CREATE TABLE AS fail, the table is dropped."""
        if not self._belongs_to_creation(call, table):
            yield
            return
        editor = self._editors.get(table.name.catalog)
        editor.begin_creation(table)
        try:
            yield
        except OutcomeUnknownError:
            raise  # it may have been written: the next start checks again
        except BaseException:
            try:
                editor.end_creation(table, complete=False)
            except GatewayError as error:  # the next start checks again
                log.warning("incomplete_table_not_removed", table=str(table.name), reason=error.message)
            raise
        editor.end_creation(table, complete=True)

    def _belongs_to_creation(self, call: Call, table: Readable) -> bool:
        headers = call.headers
        if headers.operation != Operation.INSERT.value or headers.transaction is None:
            return False
        with self._lock:
            created = self._pending.get(table.name.key)
            if created is None or created.table is not table or created.owner != call.owner:
                return False
            issued = self._transactions.issued_ms(headers.transaction)
            del self._pending[table.name.key]
        return issued is not None and issued <= created.began_ms
