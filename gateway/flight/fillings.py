"""CREATE TABLE AS: a new table and its first rows, which the client sends as two calls.

The first insert into a table belongs to the statement that made the table when the
same client sends it under a transaction that is older than the table: the client
asks for a new transaction with every other statement, unless it is in a BEGIN
block, which DuckDB would undo as a whole. When such an insert fails or is
cancelled, the table goes again. Whether an insert is still to come cannot be known.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import Operation
from gateway.catalog.editing import Editor
from gateway.errors import GatewayError, OutcomeUnknownError
from gateway.wire.headers import CallHeaders

log = structlog.get_logger(__name__)

_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Birth:
    table: Readable
    session: str
    began_ms: int


class Fillings:
    """Thread-safe: one lock guards the tables that nobody has written to yet."""

    def __init__(self, editor_of: Callable[[str], Editor], issued_ms: Callable[[str], int | None]) -> None:
        self._editor_of = editor_of
        self._issued_ms = issued_ms
        self._lock = threading.Lock()
        self._births: OrderedDict[tuple[str, str, str], _Birth] = OrderedDict()

    def was_made(self, table: Readable, headers: CallHeaders, began_ms: int) -> None:
        if headers.session is None:
            return
        with self._lock:
            self._births[table.name.key] = _Birth(table, headers.session, began_ms)
            while len(self._births) > _REMEMBERED:
                self._births.popitem(last=False)

    @contextlib.contextmanager
    def around(self, headers: CallHeaders, table: Readable) -> Iterator[None]:
        """Around an exchange: what fails in the first rows of CREATE TABLE AS takes the table along."""
        if not self._belongs_to_creation(headers, table):
            yield
            return
        editor = self._editor_of(table.name.catalog)
        editor.begin_filling(table)
        try:
            yield
        except OutcomeUnknownError:
            raise  # it may have been written: the next start looks again
        except BaseException:
            try:
                editor.end_filling(table, filled=False)
            except GatewayError as error:  # the next start looks again
                log.warning("unfilled_table_left", table=str(table.name), reason=error.message)
            raise
        editor.end_filling(table, filled=True)

    def _belongs_to_creation(self, headers: CallHeaders, table: Readable) -> bool:
        if headers.operation != Operation.INSERT.value or headers.transaction is None:
            return False
        with self._lock:
            birth = self._births.get(table.name.key)
            if birth is None or birth.table is not table or birth.session != headers.session:
                return False
            issued = self._issued_ms(headers.transaction)
            del self._births[table.name.key]
        return issued is not None and issued <= birth.began_ms
