"""In-memory doubles of the catalog's capabilities, for tests of the RPC layer alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from gateway.catalog.capabilities import (
    AsOf,
    BatchStream,
    Chunk,
    ColumnStatistics,
    Description,
    ScanReport,
    ScanRequest,
    TableSize,
)
from gateway.catalog.names import TableName, fold
from gateway.catalog.registry import Catalog
from gateway.errors import CancelledError, NotFoundError, PreconditionError, RequestError
from gateway.wire.listing import ROWID_KEY, STATISTICS_KEY
from gateway.wire.tickets import Slice, stamp_of


def declared_shape(table: pa.Table) -> pa.Schema:
    rowid = pa.field("rowid", pa.int64(), metadata={ROWID_KEY: b"1"})
    return pa.schema([*table.schema, rowid], metadata={STATISTICS_KEY: b"1"})


class MemoryStream:
    """Batches of a table, one row each batch where `rows_per_batch` is 1; `before_batch` may block or raise."""

    def __init__(self, table: MemoryTable, data: pa.Table, request: ScanRequest) -> None:
        self.report = ScanReport(route="memory", route_reason="test", files_total=1)
        self.closed = threading.Event()
        self._table = table
        self._data = data
        self._request = request

    def __iter__(self) -> Iterator[Chunk]:
        whole = self._data.append_column("rowid", pa.array(range(self._data.num_rows), pa.int64()))
        for batch in whole.to_batches(max_chunksize=self._table.rows_per_batch):
            self._table.before_batch(self)
            if self.closed.is_set():
                raise CancelledError("closed")
            columns = [
                batch.column(f.name) if f.name in self._request.columns else pa.nulls(batch.num_rows, f.type)
                for f in self._request.shape
            ]
            yield Chunk(pa.RecordBatch.from_arrays(columns, schema=self._request.shape), 0.5)

    def close(self) -> None:
        self.closed.set()


@dataclass(frozen=True)
class MemorySnapshot:
    table: MemoryTable
    version: int
    data: pa.Table
    identity: str = "memory"

    @property
    def shape(self) -> pa.Schema:
        return declared_shape(self.data)

    @property
    def size(self) -> TableSize:
        return TableSize(self.data.num_rows, self.data.nbytes, 1)

    @property
    def rows(self) -> int | None:
        return self.data.num_rows

    def statistics(self, column: str) -> ColumnStatistics:
        return self.table.known.get(column, ColumnStatistics())

    def slices(self, request: ScanRequest) -> list[Slice | None]:
        return [None] * self.table.endpoints

    def open(self, request: ScanRequest) -> BatchStream:
        stream = MemoryStream(self.table, self.data, request)
        self.table.opened.append(stream)
        return stream


@dataclass(eq=False)
class MemoryTable:
    name: TableName
    versions: list[pa.Table]
    comment: str = ""
    rows_per_batch: int = 1000
    endpoints: int = 1
    known: dict[str, ColumnStatistics] = field(default_factory=dict)
    before_batch: Callable[[MemoryStream], None] = lambda _stream: None
    opened: list[MemoryStream] = field(default_factory=list)
    gone: bool = False

    def describe(self) -> Description:
        newest = MemorySnapshot(self, len(self.versions) - 1, self.versions[-1])
        stamp = stamp_of(newest.shape, newest.version)
        return Description(newest.version, newest.shape, stamp, self.comment, newest.size)

    def refresh(self) -> bool:
        return False

    def current(self) -> MemorySnapshot:
        if self.gone:
            raise NotFoundError(f"table '{self.name}' not found")
        return self.at(len(self.versions) - 1)

    def at(self, version: int) -> MemorySnapshot:
        if not 0 <= version < len(self.versions):
            raise NotFoundError(f"table '{self.name}' has no version {version}")
        return MemorySnapshot(self, version, self.versions[version])

    def version_as_of(self, point: AsOf) -> int:
        if not point.value.isdigit():
            raise RequestError(f"'{point.value}' is not a version")
        return self.at(int(point.value)).version


class MemorySource:
    """A catalog's source that tests fill by hand, counting how often it is listed."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], MemoryTable | Exception] = {}
        self.extra_schemas: list[str] = []
        self.listings = 0
        self.probes = 0

    def add(self, table: MemoryTable) -> MemoryTable:
        self.found[table.name.schema, table.name.table] = table
        return table

    def schemas(self) -> Iterable[str]:
        self.listings += 1
        return [*self.extra_schemas, *(schema for schema, _ in self.found)]

    def tables(self) -> Iterable[tuple[str, str]]:
        return list(self.found)

    def has_table(self, schema: str, table: str) -> tuple[str, str] | None:
        self.probes += 1
        return next((names for names in self.found if tuple(map(fold, names)) == (fold(schema), fold(table))), None)

    def open(self, name: TableName) -> MemoryTable:
        found = self.found[name.schema, name.table]
        if isinstance(found, Exception):
            raise found
        return found


def run_in_turn(jobs: Iterable[Callable[[], None]]) -> None:
    for job in jobs:
        job()


def memory_catalog(source: MemorySource, name: str = "lake", first_version: int = 1) -> Catalog:
    return Catalog(name, source, first_version, run_in_turn)


@dataclass(frozen=True)
class InTransaction:
    """A statement of a transaction that nobody manages."""

    transaction: str
    is_refused: bool = False
    since: int | None = None
    is_stopped: bool = False

    def refusal(self) -> PreconditionError | None:
        return PreconditionError("not active") if self.is_refused else None

    def begin_commit(self) -> None: ...

    def wrote(self, version: int | None, row_ids: Container[int]) -> None: ...
