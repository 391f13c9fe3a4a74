"""In-memory tables with every mixture of change abilities, and a Flight server that speaks only the JSON dialect."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from gateway.catalog.changes import Operation, Statement, WriteContext, WriteOptions, find_rowid_column
from gateway.catalog.names import TableName
from gateway.catalog.registry import Catalogs
from gateway.errors import CancelledError, NotFoundError, RequestError
from gateway.flight.admission import KEY, CallMiddlewareFactory, call_of
from gateway.flight.boundary import ErrorForm, errors_as_flight, outcome_of
from gateway.flight.puts import Puts
from gateway.flight.statements import Statements
from gateway.flight.upload_watch import UploadWatch
from gateway.settings import LimitSettings, TransactionSettings
from gateway.transactions.manager import TransactionManager
from tests.doubles import MemorySource, MemoryTable, declared_shape, memory_catalog

Row = dict[str, Any]


class MemoryRows(MemoryTable):
    """Rows by id, counted from 1, and a list of what was called; no ability to change of its own. Thread-safe."""

    def __init__(self, name: TableName, data: pa.Table) -> None:
        super().__init__(name, [data])
        self.rows: dict[int, Row] = dict(enumerate(data.to_pylist(), start=1))
        self.called: list[str] = []
        self.uploads: list[pa.Schema] = []
        self.options: list[WriteOptions] = []
        self.contexts: list[WriteContext] = []
        self.commits = 0
        self.aborts = 0
        self.before_add: Callable[[], None] = lambda: None
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        return self.versions[-1].schema

    def note(self, called: str, options: WriteOptions, context: WriteContext) -> None:
        self.called.append(called)
        self.options.append(options)
        self.contexts.append(context)

    def find(self, row_ids: Sequence[int], *, strict: bool) -> list[int]:
        """The ids that exist, each once."""
        missing = [row_id for row_id in row_ids if row_id not in self.rows]
        if missing and strict:
            raise NotFoundError(f"row_id {missing[0]} not found in table")
        return list(dict.fromkeys(row_id for row_id in row_ids if row_id in self.rows))

    def typed(self, batch: pa.RecordBatch | pa.Table) -> list[Row]:
        columns = {}
        for name in batch.schema.names:
            if name == "rowid":
                continue
            try:
                columns[name] = batch.column(name).cast(self.schema.field(name).type).to_pylist()
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise RequestError(f"column '{name}': a value does not fit") from error
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


class MemoryStatement:
    """Stages its rows, and applies them under the table's lock when it is committed."""

    def __init__(
        self, table: MemoryRows, operation: Operation, upload: pa.Schema, options: WriteOptions, context: WriteContext
    ) -> None:
        self._table = table
        self._operation = operation
        self._rowid = find_rowid_column(upload)
        self._options = options
        self._context = context
        self._staged: list[tuple[int | None, Row]] = []
        self._done = False

    @property
    def reply_schema(self) -> pa.Schema:
        return declared_shape(self._table.versions[-1]).remove_metadata()

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        self._table.before_add()
        values = [{} for _ in range(batch.num_rows)]
        if self._operation is not Operation.DELETE:
            values = self._table.typed(batch)
        row_ids: list[int | None] = [None] * batch.num_rows
        if self._operation is not Operation.INSERT:
            row_ids = batch.column(self._rowid).to_pylist()
            self._table.find(row_ids, strict=self._options.strict)
        self._staged += zip(row_ids, values, strict=True)
        if not self._options.returning:
            return None
        rows = [
            {**self._table.rows.get(row_id, {}), **row, "rowid": row_id}
            for row_id, row in zip(row_ids, values, strict=True)
            if row_id is None or row_id in self._table.rows
        ]
        return pa.RecordBatch.from_pylist(rows, schema=self.reply_schema)

    def commit(self) -> int:
        self._table.before_commit()
        if self._context.is_cancelled():
            raise CancelledError("cancelled before the commit")
        with self._table.lock:
            affected = self._apply()
            self._table.commits += 1
        self._done = True
        self._table.after_commit()
        return affected

    def _apply(self) -> int:
        rows = self._table.rows
        if self._operation is Operation.INSERT:
            first = max(rows, default=0) + 1
            rows.update(enumerate((row for _, row in self._staged), start=first))
            return len(self._staged)
        found = self._table.find([row_id for row_id, _ in self._staged], strict=self._options.strict)
        if self._operation is Operation.DELETE:
            for row_id in found:
                del rows[row_id]
            return len(found)
        for row_id, row in self._staged:
            if row_id in rows:
                rows[row_id] = {**rows[row_id], **row}
        return len(found)

    def abort(self) -> None:
        if not self._done:
            self._table.aborts += 1
            self._done = True


class Inserts(MemoryRows):
    def insert(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        self.note("insert", options, context)
        self.uploads.append(upload)
        return MemoryStatement(self, Operation.INSERT, upload, options, context)


class UpdatesBatches(MemoryRows):
    def update_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        self.note("update_batches", options, context)
        return MemoryStatement(self, Operation.UPDATE, upload, options, context)


class DeletesBatches(MemoryRows):
    def delete_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        self.note("delete_batches", options, context)
        return MemoryStatement(self, Operation.DELETE, upload, options, context)


class UpdatesRows(MemoryRows):
    def update_rows(self, row_ids: Sequence[int], rows: pa.Table, options: WriteOptions, context: WriteContext) -> int:
        self.note("update_rows", options, context)
        assert "rowid" not in rows.schema.names
        values = self.typed(rows)
        with self.lock:
            found = self.find(row_ids, strict=options.strict)
            for row_id, row in zip(row_ids, values, strict=True):
                if row_id in self.rows:
                    self.rows[row_id] = {**self.rows[row_id], **row}
        return len(found)


class DeletesRows(MemoryRows):
    def delete_rows(self, row_ids: Sequence[int], options: WriteOptions, context: WriteContext) -> int:
        self.note("delete_rows", options, context)
        with self.lock:
            found = self.find(row_ids, strict=options.strict)
            for row_id in found:
                del self.rows[row_id]
        return len(found)


class ListForms(Inserts, UpdatesRows, DeletesRows):
    """Takes lists of ids only."""


class BatchForms(Inserts, UpdatesBatches, DeletesBatches):
    """Takes ids inside the batches only."""


class BothForms(ListForms, BatchForms):
    """Has every ability there is."""


class NoScans:
    def is_scanning(self, _transaction: str | None) -> bool:
        return False


class PutServer(flight.FlightServerBase):
    """DoPut and `delete` over in-memory tables, and how each call ended."""

    def __init__(self, **limits: int) -> None:
        super().__init__("grpc://127.0.0.1:0", middleware={KEY: CallMiddlewareFactory()})
        self.source = MemorySource()
        self.catalog = memory_catalog(self.source)
        self.outcomes: list[str] = []
        self.transactions = TransactionManager(TransactionSettings())
        bounds = LimitSettings(**limits)
        statements = Statements(self.transactions, bounds)
        self.puts = Puts(Catalogs([self.catalog], "lake"), statements, UploadWatch(bounds, NoScans()), bounds)
        self.location = f"grpc://127.0.0.1:{self.port}"

    def add(self, kind: type[MemoryRows], data: pa.Table, table: str = "events", schema: str = "analytics") -> Any:
        return self.source.add(kind(TableName("lake", schema, table), data))

    def do_put(self, context: flight.ServerCallContext, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._translated():
            self.puts.put(call_of(context), descriptor, reader, writer)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        with self._translated():
            return [self.puts.delete(call_of(context), action.body.to_pybytes())]

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        failure: BaseException | None = None
        try:
            with errors_as_flight(ErrorForm.CODED):
                try:
                    yield
                except BaseException as error:
                    failure = error
                    raise
        finally:
            self.outcomes.append(outcome_of(failure))
