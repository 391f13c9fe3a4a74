"""A table at a version: what the Delta log says of it, and a handle to read it with.

Snapshots are immutable and shared between threads. The newest one is kept per
table and brought up to date before use by looking at two files of the log;
older ones are loaded when asked for and kept for a while.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from gateway.catalog.capabilities import TableSize
from gateway.errors import GatewayError, InternalError, NotFoundError, UnsupportedError
from gateway.lake.tables.history import available_versions, commit_file
from gateway.lake.tables.protocols import WriterProtocol
from gateway.lake.tables.schemas import Column, TableSchema, read_schema, shape_of
from gateway.lake.tables.storage import Folder, Stamp

LOG = "_delta_log"
_KEPT_SNAPSHOTS = 8
# What the log says of a file takes half a kilobyte, and as much again or more in a handle of an older version.
_KEPT_FILES = 40_000
# Rows per batch are fixed when a table is registered with the engine, so a snapshot is
# registered once per size, when a scan first needs that size by its row width.
BATCH_ROWS = (131_072, 65_536, 32_768, 16_384, 2_048, 256, 32, 8, 1)
MARK_APPLICATION = "deltaport.rowid"  # the `txn` action that keeps a table's highest row id
# How the log reader begins when it read everything and knows that it must not go on.
_REFUSAL = re.compile(r"(?:[A-Za-z ]+: )*Unsupported\b")
# Runs a function with a handle at the snapshot's own version.
UseTable = Callable[[Callable[[DeltaTable], Any]], Any]
# Reads rows of a snapshot by the engine that gets them right; given by the room that knows both engines.
ReadRows = Callable[["LogSnapshot", Any], Iterator[pa.RecordBatch]]
TABLE = "t"  # the name a snapshot has in the engine's SQL


@dataclass(frozen=True, eq=False)
class LogSnapshot:
    """What the log says of a table at one version. Compared by identity."""

    table: str
    uri: str
    version: int
    table_id: str
    schema: TableSchema
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    reader_features: frozenset[str]
    writers: WriterProtocol
    comment: str
    files: pa.Table = field(repr=False)
    offers_statistics: bool
    _using: UseTable = field(repr=False)
    _is_retired: Callable[[], bool] = field(repr=False)
    _read_rows: ReadRows | None = field(default=None, repr=False)
    _builders: dict[int, QueryBuilder] = field(default_factory=dict, repr=False)

    @cached_property
    def shape(self) -> pa.Schema:
        """The schema that clients see, rowid last."""
        return shape_of(self.schema, statistics=self.offers_statistics)

    @cached_property
    def size(self) -> TableSize:
        # Rows deleted through deletion vectors are counted: an upper bound, which is what planners need.
        known = self.files.column("num_records")
        rows = None if known.null_count else pc.sum(known, min_count=0).as_py()
        return TableSize(rows, pc.sum(self.files.column("size_bytes"), min_count=0).as_py(), self.files.num_rows)

    @cached_property
    def rowid_mark(self) -> int:
        """The highest row id that the log says was ever given; -1 where it says nothing."""
        mark = self._using(lambda table: table.transaction_version(MARK_APPLICATION))
        return -1 if mark is None else int(mark)

    @cached_property
    def stored_row_bytes(self) -> int:
        """What a row takes in the file with the widest rows; 0 where the log does not say."""
        filled = self.files.filter(pc.greater(self.files.column("num_records"), 0))
        widest = pc.max(pc.divide(filled.column("size_bytes"), filled.column("num_records"))).as_py()
        return 0 if widest is None else int(widest)

    def file_values(self, column: Column, kind: str) -> pa.ChunkedArray | None:
        """Each file's `min`, `max` or `null_count` of a column, None if not kept; a partition's value is both."""
        partition = column.name in self.partition_columns and kind != "null_count"
        group, name = ("partition", column.name) if partition else (kind, column.physical_name)
        if group not in self.files.column_names:
            return None
        struct = self.files.column(group)
        if struct.type.get_field_index(name) < 0:
            return None
        chunks = [pc.struct_field(chunk, name) for chunk in struct.chunks]
        return pa.chunked_array(chunks, struct.type.field(name).type)

    def kept_rows(self, path: str) -> pa.BooleanArray | None:
        """Which rows of a data file are still there, by its deletion vector; None where it has none."""
        return self._kept_rows.get(unquote(path))

    @cached_property
    def _kept_rows(self) -> dict[str, pa.BooleanArray]:
        """By path as the log has it, decoded."""
        vectors = self._using(lambda table: pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all())
        paths = {unquote(path) for path in self.files.column("path").to_pylist()}
        kept: dict[str, pa.BooleanArray] = {}
        for uri, rows in zip(*(vectors.column(place) for place in (0, 1)), strict=True):
            steps = unquote(uri.as_py()).split("/")
            # The log's path is relative to the table, or whole for a file of another table.
            path = next((path for path in _endings(steps) if path in paths), None)
            if path is None or path in kept:
                raise InternalError(f"table '{self.table}': a deletion vector belongs to no data file")
            kept[path] = rows.values
        return kept

    @cached_property
    def is_directly_readable(self) -> bool:
        """Whether the direct reader takes this table, whose features it may refuse."""
        try:
            self._builder(BATCH_ROWS[0])
        except DeltaError:
            return False
        return True

    def check_in_place(self) -> None:
        """Raise where the table was dropped or renamed meanwhile: its files are elsewhere, perhaps others there."""
        if self._is_retired():
            raise NotFoundError(f"table '{self.table}' was dropped or renamed while it was read")

    def rows(self, selection: Any) -> Iterator[pa.RecordBatch]:
        """Read for the gateway itself; `reading.lookups` says what a selection is."""
        assert self._read_rows is not None, "these snapshots were made without a reader"
        return self._read_rows(self, selection)

    def query(self, sql: str, most_rows: int) -> pa.RecordBatchReader:
        """Start a query of the direct reader, with at most so many rows per batch.

        Read through the C stream only: iterating deltalake's own reader keeps
        the GIL for as long as a batch takes, and every other call waits.
        """
        if not self.is_directly_readable:
            raise UnsupportedError(f"table '{self.table}' uses a Delta feature that only Spark can read here")
        batch_rows = next((rows for rows in BATCH_ROWS if rows <= most_rows), BATCH_ROWS[-1])
        return pa.RecordBatchReader.from_stream(self._builder(batch_rows).execute(sql))

    @contextlib.contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Errors of the direct reader in our words; what it says itself, with its paths, goes to the log only."""
        try:
            yield
        except (GatewayError, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a panic of the native reader is a BaseException
            self.check_in_place()
            text = str(error).lower()
            if "not found" in text or "no such file" in text:
                raise InternalError(
                    f"table '{self.table}': a data file of version {self.version} is missing"
                ) from error
            raise InternalError(f"table '{self.table}': version {self.version} cannot be read") from error

    def _builder(self, batch_rows: int) -> QueryBuilder:
        """Two threads may both register; either result serves."""
        if (known := self._builders.get(batch_rows)) is None:
            known = self._builders[batch_rows] = self._using(partial(_register, batch_rows=batch_rows))
        return known


class Snapshots:
    """The snapshots of one table. Thread-safe: one lock guards the head and the kept ones."""

    def __init__(
        self,
        table: str,
        folder: Folder,
        rowid_column: str,
        read_rows: ReadRows | None = None,
        *,
        offers_statistics: bool = True,
    ) -> None:
        self._table = table
        self._folder = folder
        self._log = folder.child(LOG)
        self._rowid_column = rowid_column
        self._read_rows = read_rows
        self._offers_statistics = offers_statistics
        self._lock = threading.Lock()
        self._head: DeltaTable | None = None
        self._head_stamp: Stamp | None = None
        self._life = 0  # counts how often the table was found made anew
        self._kept: OrderedDict[int, LogSnapshot] = OrderedDict()
        self._is_closed = False

    def close(self) -> None:
        """The table was dropped or has another name: whatever is in its place from now on is another one."""
        with self._lock:
            self._is_closed = True
            self._life += 1
            self._kept.clear()

    def current(self) -> LogSnapshot:
        """The newest version, as of now."""
        with self._lock, _log_errors(self._table):
            head = self._newest()
            return self._keep(head.version(), head)

    def at(self, version: int) -> LogSnapshot:
        """One version, out of the kept ones or out of the log; NotFoundError says which versions exist."""
        with self._lock, _log_errors(self._table):
            # The head is looked at first: what is kept of a table goes when the table is made anew.
            head, life = self._newest(), self._life
            newest = head.version()
            if version == newest or version in self._kept:
                return self._keep(version, head)
        if version > newest:
            raise self._no_version(version)
        # Loaded outside the lock: an old version may take a while, and others read the head meanwhile.
        table = self._load(version)
        with self._lock, _log_errors(self._table):
            if life == self._life:
                return self._keep(version, table)
        return self.at(version)

    def _load(self, version: int) -> DeltaTable:
        try:
            with _log_errors(self._table):
                return DeltaTable(self._folder.uri, version=version)
        except (NotFoundError, InternalError) as error:
            first, last = self._available()
            if first <= version <= last:
                raise InternalError(f"table '{self._table}': version {version} cannot be read from its log") from error
            raise self._no_version(version) from error

    def _newest(self) -> DeltaTable:
        if self._is_closed:
            raise NotFoundError(f"table '{self._table}' was dropped or renamed; attach again")
        if self._head is None or not self._is_up_to_date(self._head.version()):
            return self._catch_up()
        return self._head

    def _is_up_to_date(self, version: int) -> bool:
        # The head is the newest if the next commit does not exist. That its own commit is the same
        # file as before tells a table that was dropped and made anew from one that stands still.
        own, following = self._log.stamps([commit_file(version), commit_file(version + 1)])
        return own is not None and own == self._head_stamp and following is None

    def _catch_up(self) -> DeltaTable:
        if self._head is not None and self._head_stamp is not None:
            own = commit_file(self._head.version())
            if self._log.stamps([own]) == [self._head_stamp]:
                self._head.update_incremental()
                before, after = self._log.stamps([own, commit_file(self._head.version())])
                if before == self._head_stamp:  # still the same table
                    self._head_stamp = after
                    return self._head
        self._kept.clear()
        self._life += 1
        # Listed before it is loaded: a table made anew in between has other stamps, and the next look finds out.
        files = self._log.files()
        self._head = DeltaTable(self._folder.uri)
        self._head_stamp = files.get(commit_file(self._head.version()))
        return self._head

    def _keep(self, version: int, table: DeltaTable) -> LogSnapshot:
        snapshot = self._kept.get(version)
        if snapshot is None:
            # The head moves on, so what is asked of it later has to make sure of its version.
            using: UseTable = (
                partial(self._use_at, version, self._life) if table is self._head else lambda use: use(table)
            )
            snapshot = self._kept[version] = self._read(table, using)
        self._kept.move_to_end(version)
        while len(self._kept) > 1 and self._keeps_too_much():
            self._kept.popitem(last=False)
        return snapshot

    def _read(self, table: DeltaTable, using: UseTable) -> LogSnapshot:
        metadata, protocol = table.metadata(), table.protocol()
        return LogSnapshot(
            table=self._table,
            uri=self._folder.uri,
            version=table.version(),
            table_id=str(metadata.id),
            schema=read_schema(table.schema().to_json(), metadata.configuration, self._rowid_column),
            partition_columns=tuple(metadata.partition_columns),
            configuration=dict(metadata.configuration),
            reader_features=frozenset(str(feature) for feature in protocol.reader_features or ()),
            writers=WriterProtocol(
                protocol.min_writer_version, frozenset(str(feature) for feature in protocol.writer_features or ())
            ),
            comment=metadata.description or "",
            files=pa.table(table.get_add_actions()),
            offers_statistics=self._offers_statistics,
            _using=using,
            _is_retired=lambda: self._is_closed,
            _read_rows=self._read_rows,
        )

    def _keeps_too_much(self) -> bool:
        files = sum(kept.files.num_rows for kept in self._kept.values())
        return len(self._kept) > _KEPT_SNAPSHOTS or files > _KEPT_FILES

    def _use_at(self, version: int, life: int, use: Callable[[DeltaTable], Any]) -> Any:
        """Run something with a handle at a version that was the head; under the lock, which keeps the head there."""
        with self._lock:
            if self._is_closed:
                raise NotFoundError(f"table '{self._table}' was dropped or renamed; attach again")
            if self._life != life:
                raise NotFoundError(f"table '{self._table}' was replaced by another one; run the statement again")
            if self._head is not None and self._head.version() == version:
                return use(self._head)
        return use(self._load(version))

    def _available(self) -> tuple[int, int]:
        try:
            return available_versions(self._log)
        except NotFoundError as error:
            raise NotFoundError(f"table '{self._table}' not found") from error

    def _no_version(self, version: int) -> NotFoundError:
        first, last = self._available()
        return NotFoundError(f"table '{self._table}' has no version {version}; it has {first} to {last}")


def _endings(steps: list[str]) -> Iterator[str]:
    """A path's endings, the longest first."""
    return ("/".join(steps[place:]) for place in range(len(steps)))


def _register(table: DeltaTable, batch_rows: int) -> QueryBuilder:
    """What is registered stays at the version that the table has now."""
    return QueryBuilder({"datafusion.execution.batch_size": str(batch_rows)}).register(TABLE, table)


@contextlib.contextmanager
def _log_errors(table: str) -> Iterator[None]:
    """The log reader's errors as ours: a missing log is NotFound, an unreadable one is reported in our own words."""
    try:
        yield
    except GatewayError:
        raise
    except TableNotFoundError as error:
        raise NotFoundError(f"table '{table}' not found") from error
    except BaseException as error:
        # deltalake's runtime panics are BaseExceptions of a class of their own.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if _REFUSAL.match(str(error)):
            raise UnsupportedError(f"table '{table}' uses a Delta feature that cannot be read here") from error
        raise InternalError(f"table '{table}': its Delta log cannot be read") from error
