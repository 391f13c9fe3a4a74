"""Reading a snapshot: route, filter, pieces, and the stream of full-width batches.

Two routes, one result. Whatever the route, a stream holds a bounded amount of
memory, gives exactly the declared shape, and can be closed from another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import structlog

from gateway.catalog.capabilities import BatchStream, Chunk, ScanReport, ScanRequest
from gateway.errors import CancelledError
from gateway.lake.pushdown.datafusion import DataFusionDialect
from gateway.lake.pushdown.translation import Binding, Bindings, Conditions, conditions_of, translate
from gateway.lake.reading.lookups import Selection
from gateway.lake.reading.own_reads import OwnReads
from gateway.lake.reading.projection import (
    Projection,
    Widener,
    before_decoding,
    decoded_bytes,
    pieces_of,
    project,
    rows_per_batch,
)
from gateway.lake.reading.pruning import surviving_files
from gateway.lake.reading.routes import Routes
from gateway.lake.reading.row_groups import RowGroups
from gateway.lake.reading.slices import cut, slice_predicate
from gateway.lake.reading.spark_reader import SparkStream
from gateway.lake.reading.widths import Widths
from gateway.lake.spark.engine import Spark
from gateway.lake.sql.quoting import double_quoted
from gateway.lake.tables.schemas import ROWID, Column, TableSchema, is_rowid
from gateway.lake.tables.snapshots import TABLE, LogSnapshot
from gateway.settings import ScanSettings
from gateway.wire.filter_tree import referenced_columns
from gateway.wire.tickets import Slice

log = structlog.get_logger(__name__)


class Readers:
    """Opens scans by the route that fits. Thread-safe."""

    def __init__(self, settings: ScanSettings, spark: Spark) -> None:
        self._settings = settings
        self._spark = spark
        self._routes = Routes(settings)
        self._widths = Widths()
        self._row_groups = RowGroups()
        self._own = OwnReads(settings, spark, self._routes, self._widths, self._row_groups)

    def read_rows(self, snapshot: LogSnapshot, selection: Selection) -> Iterator[pa.RecordBatch]:
        """What the gateway reads for itself."""
        return self._own.read(snapshot, selection)

    def slices(self, snapshot: LogSnapshot, request: ScanRequest) -> list[Slice | None]:
        if snapshot.size.files == 0:
            return []
        if snapshot.size.bytes <= self._settings.endpoint_bytes:
            return [None]
        files = surviving_files(snapshot, _conditions(snapshot.schema, request))
        return cut(snapshot, files, None, self._settings.endpoint_bytes, self._settings.max_endpoints)

    def open(self, snapshot: LogSnapshot, request: ScanRequest, report: ScanReport) -> BatchStream:
        projection = project(snapshot.schema, request)
        conditions = _conditions(snapshot.schema, request)
        named = referenced_columns(request.conjuncts)
        filtered = [column for column in snapshot.schema.columns if column.name in named]
        route = self._routes.choose(snapshot, [*projection.reads, *filtered])
        files = surviving_files(snapshot, conditions)
        report.route, report.route_reason = route.engine, route.reason
        report.files_total = snapshot.size.files
        report.files_pruned = snapshot.size.files - len(files)
        if route.engine == "spark":
            part, widths = request.slice, self._widths
            return SparkStream(
                self._spark, snapshot, projection, conditions, part, self._settings, report, widths, files
            )
        if request.slice is None:
            with snapshot.explained_errors():
                plan = self._row_groups.plan(snapshot, conditions, [*projection.reads, *filtered], files)
            if plan is not None:
                report.filters_pushed, report.filters_dropped = plan.pushed, plan.dropped
                row_bytes = self._widths.row_bytes(snapshot, plan.columns, files, expands_texts=True)
                rows = rows_per_batch((field.type for field in projection.shape), row_bytes, self._settings)
                batches = self._row_groups.read(snapshot, plan, rows)
                return RowGroupStream(snapshot, projection, plan.columns, batches, self._settings, report)
        pieces = cut(snapshot, files, request.slice, self._settings.piece_bytes, at_most=10_000)
        query = _direct_query(projection, conditions, report)
        return DirectStream(snapshot, projection, query, pieces, self._settings, report, self._widths, files)


def _conditions(schema: TableSchema, request: ScanRequest) -> Conditions:
    return conditions_of(request.conjuncts, _bindings(schema, request.shape)) if request.conjuncts else ()


def _bindings(schema: TableSchema, shape: pa.Schema) -> Bindings:
    """The client's column names, as filters use them, to the stored columns."""
    bound = {column.name: Binding(column.name, column.type, form=column.form) for column in schema.columns}
    named_rowid = next((field.name for field in shape if is_rowid(field)), None)
    # Filters always call it rowid; where a column has that name too, nobody can tell which one is meant.
    if named_rowid == ROWID and schema.rowid is not None:
        bound[ROWID] = Binding(schema.rowid.name, schema.rowid.type)
    elif named_rowid != ROWID:
        bound.pop(ROWID, None)
    return Bindings(bound)


@dataclass(frozen=True, slots=True)
class _Query:
    select: str
    predicate: str | None

    def sql(self, piece: str | None) -> str:
        conditions = [condition for condition in (self.predicate, piece) if condition is not None]
        where = f" WHERE {' AND '.join(f'({condition})' for condition in conditions)}" if conditions else ""
        return f"{self.select}{where}"


def _direct_query(projection: Projection, conditions: Conditions, report: ScanReport) -> _Query:
    translation = translate(DataFusionDialect(), conditions)
    report.filters_pushed, report.filters_dropped = translation.pushed, translation.dropped
    # With nothing to read the engine still counts rows, from the files' footers alone.
    columns = ", ".join(double_quoted(column.name) for column in projection.reads) or "1"
    return _Query(f"SELECT {columns} FROM {TABLE}", translation.predicate)  # noqa: S608 - quoted names


class RowGroupStream:
    """A scan of few row groups. Each batch is a short read, so a scan that was closed ends with the next."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        projection: Projection,
        columns: Sequence[Column],
        batches: Iterator[pa.RecordBatch],
        settings: ScanSettings,
        report: ScanReport,
    ) -> None:
        self.report = report
        self._snapshot = snapshot
        self._projection = projection
        self._places = [columns.index(column) for column in projection.reads]
        self._batches = batches
        self._settings = settings
        self._closed = False

    def __iter__(self) -> Iterator[Chunk]:
        widener = Widener(self._projection)
        while True:
            if self._closed:
                raise CancelledError("the scan was cancelled")
            with self._snapshot.explained_errors():
                batch = next(self._batches, None)
            if batch is None:
                return
            # How far it is, nobody knows before the end: where a row is found says little of the rest.
            for part in pieces_of(widener.widen(batch.select(self._places)), self._settings.batch_bytes):
                yield Chunk(part, 0.0)

    def close(self) -> None:
        self._closed = True


class DirectStream:
    """A scan by the native reader. `_reader` is dropped by `close`, which ends its work at once."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        projection: Projection,
        query: _Query,
        pieces: list[Slice | None],
        settings: ScanSettings,
        report: ScanReport,
        widths: Widths,
        files: Sequence[int],
    ) -> None:
        self.report = report
        self._snapshot = snapshot
        self._widths = widths
        self._files = files
        self._row_bytes: int | None = None
        self._projection = projection
        self._query = query
        self._pieces = pieces
        self._settings = settings
        self._lock = threading.Lock()
        self._reader: pa.RecordBatchReader | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Chunk]:
        widener = Widener(self._projection)
        seen, total = 0, self._snapshot.size.rows or 0
        for index, piece in enumerate(self._pieces):
            # Between pieces a cancelled scan ends, even one that finds no rows to hand over.
            self._start(self._query.sql(slice_predicate(DataFusionDialect(), piece, self._snapshot.schema)))
            while (batch := self._next()) is not None:
                seen += batch.num_rows
                progress = min(1.0, max(index / len(self._pieces), seen / total if total else 0.0))
                for narrow in self._parts(batch):
                    for part in pieces_of(widener.widen(narrow), self._settings.batch_bytes):
                        yield Chunk(part, progress)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._reader = None

    def _start(self, sql: str) -> None:
        if self._closed:
            raise CancelledError("the scan was cancelled")
        with self._snapshot.explained_errors():
            reader = self._snapshot.query(sql, self._batch_rows())
        with self._lock:
            if self._closed:
                raise CancelledError("the scan was cancelled")
            self._reader = reader

    def _next(self) -> pa.RecordBatch | None:
        while True:
            reader = self._reader  # held only while it reads: `close` drops the other reference
            if reader is None:
                raise CancelledError("the scan was cancelled")
            with self._snapshot.explained_errors():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return None
            if batch.num_rows:
                return batch

    def _parts(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        parts = before_decoding(batch, self._settings.batch_bytes)
        if len(parts) > 1:
            row_bytes = decoded_bytes(batch) // batch.num_rows
            self._row_bytes = max(self._row_bytes or 0, row_bytes)
            self._widths.saw(self._snapshot, self._projection.reads, row_bytes)
        return parts

    def _batch_rows(self) -> int:
        if self._row_bytes is None:
            reads = self._projection.reads
            self._row_bytes = self._widths.row_bytes(self._snapshot, reads, self._files, expands_texts=False)
        kinds = (field.type for field in self._projection.shape)
        return rows_per_batch(kinds, self._row_bytes, self._settings)
