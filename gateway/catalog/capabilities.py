"""What a table can do, as protocols, and the values that pass between a table and its callers.

A table is an object with some of these abilities; the RPC layer asks for the
ability, never for the class, so that an in-memory double serves its tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from gateway.catalog.names import TableName
from gateway.wire.filter_tree import Expression
from gateway.wire.tickets import SchemaStamp, Slice


@dataclass(frozen=True, slots=True)
class TableSize:
    """What the log says about a snapshot's size; None where it says nothing. `rows` may count deleted ones."""

    rows: int | None
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Bounds that hold for every row; None where none is proven. Never narrower than the data."""

    minimum: pa.Scalar | None = None
    maximum: pa.Scalar | None = None
    may_have_null: bool = True
    may_have_value: bool = True


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What one stream must deliver.

    `shape` is the schema declared to the client, rowid included; the stream has
    exactly its columns and types. `columns` names those whose values matter;
    the others are null. `conjuncts` may be used to leave rows out, or not.
    """

    shape: pa.Schema
    columns: frozenset[str]
    conjuncts: tuple[Expression, ...] = ()
    slice: Slice | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    batch: pa.RecordBatch
    progress: float


@dataclass(slots=True)
class ScanReport:
    """How a scan was done; filled in by the table, read by metrics and logs when the scan ends."""

    route: str = "none"
    route_reason: str = ""
    files_total: int = 0
    files_pruned: int = 0
    filters_pushed: int = 0
    filters_dropped: int = 0


class BatchStream(Protocol):
    """The batches of one scan, for one reader.

    `close` may be called from any thread and more than once, and waits for
    nobody: it releases what the scan holds, and whoever is reading gets a
    CancelledError at the next batch.
    """

    report: ScanReport

    def __iter__(self) -> Iterator[Chunk]: ...

    def close(self) -> None: ...


class Snapshot(Protocol):
    """A table at one version: immutable and safe to share between threads."""

    @property
    def version(self) -> int: ...

    @property
    def identity(self) -> str:
        """Distinguishes this table from another one made later under the same name."""

    @property
    def shape(self) -> pa.Schema:
        """The schema as declared to clients, rowid last."""

    @property
    def size(self) -> TableSize: ...

    @property
    def rows(self) -> int | None:
        """How many rows there are; deleted ones count, too, where the log does not say how many those are."""

    def slices(self, request: ScanRequest) -> list[Slice | None]:
        """Cuts a scan into parts that together give every row once; [None] is the uncut scan."""

    def open(self, request: ScanRequest) -> BatchStream:
        """Start reading. The caller closes the stream."""


@runtime_checkable
class WithStatistics(Protocol):
    def statistics(self, column: str) -> ColumnStatistics: ...


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in a table's history, as the client wrote it."""

    unit: Literal["VERSION", "TIMESTAMP"]
    value: str


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Description:
    """What listings declare of a table, as of the last refresh. A refresh that changes it makes a new one."""

    version: int
    shape: pa.Schema
    stamp: SchemaStamp
    comment: str
    size: TableSize
    abilities: tuple[str, ...] = field(default=("read",))


class Readable(Protocol):
    """A table whose snapshots can be read. Thread-safe."""

    @property
    def name(self) -> TableName: ...

    def describe(self) -> Description:
        """As of the last `refresh`; reads nothing."""

    def refresh(self) -> bool:
        """Read the table's own log; True when the description's shape or comment changed."""

    def current(self) -> Snapshot: ...

    def at(self, version: int) -> Snapshot: ...

    def version_as_of(self, point: AsOf) -> int: ...
