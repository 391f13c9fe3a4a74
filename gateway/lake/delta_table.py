"""A Delta table behind the catalog's capabilities: ties log, routes and readers together."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import (
    AsOf,
    BatchStream,
    ColumnStatistics,
    Description,
    ScanReport,
    ScanRequest,
    TableSize,
)
from gateway.catalog.changes import Footprint, Undone, WriteContext
from gateway.catalog.names import TableName
from gateway.errors import NotFoundError, RequestError
from gateway.lake.adopting.adoption import Adopted, Adoption, Limits
from gateway.lake.adopting.automatic import Numbering, SelfAdopting
from gateway.lake.commits.landing import Landing
from gateway.lake.commits.writer_lock import UNGUARDED, WriteGuard
from gateway.lake.ddl.altering import TableAlterer
from gateway.lake.reading.column_statistics import column_statistics
from gateway.lake.reading.reader import Readers
from gateway.lake.spark.engine import Spark, SparkState
from gateway.lake.tables.deletions import deleted_rows
from gateway.lake.tables.history import parse_moment, parse_version, version_at_time
from gateway.lake.tables.snapshots import LOG, LogSnapshot, Snapshots
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.delta_statements import FullyChangeable, ReadOnly, WriteRoom, abilities, changes_of
from gateway.lake.writing.idempotency import Answers
from gateway.lake.writing.pending import Undoing
from gateway.lake.writing.staging import StagingFolder
from gateway.lake.writing.writer import TableWriter
from gateway.settings import WriteSettings
from gateway.wire.ddl_messages import Alteration
from gateway.wire.tickets import Slice, stamp_of

_DELETION_VECTORS = "deletionVectors"


@dataclass(frozen=True)
class DeltaSnapshot:
    """A Delta table at one version, readable by whichever route fits."""

    log: LogSnapshot
    readers: Readers
    folder: Folder

    @property
    def version(self) -> int:
        return self.log.version

    @property
    def identity(self) -> str:
        return self.log.table_id

    @property
    def shape(self) -> pa.Schema:
        return self.log.shape

    @property
    def size(self) -> TableSize:
        return self.log.size

    @cached_property
    def rows(self) -> int | None:
        stored = self.log.size.rows
        if stored is None or _DELETION_VECTORS not in self.log.reader_features:
            return stored
        return stored - (deleted_rows(self.folder, self.version) or 0)

    def statistics(self, column: str) -> ColumnStatistics:
        stored = self.log.schema.column(column)
        if stored is None:
            raise NotFoundError(f"column '{column[:60]}' not found")
        return column_statistics(self.log, stored)

    def slices(self, request: ScanRequest) -> list[Slice | None]:
        return self.readers.slices(self.log, request)

    def open(self, request: ScanRequest) -> BatchStream:
        return self.readers.open(self.log, request, ScanReport())


@dataclass(frozen=True)
class TableTools:
    """What every Delta table of a gateway works with.

    With `adopts`, rows without an id of their own are numbered when a statement meets one.
    """

    readers: Readers
    spark: Spark
    staging: StagingFolder
    write: WriteSettings
    rowid_column: str
    statistics: bool
    writer_lock: WriteGuard = UNGUARDED
    adopts: bool = False


class DeltaTable:
    """Thread-safe: the snapshots have their own lock, `_lock` guards the description."""

    def __init__(self, name: TableName, folder: Folder, tools: TableTools) -> None:
        self._name = name
        self._log = folder.child(LOG)
        self._snapshots = Snapshots(
            str(name), folder, tools.rowid_column, tools.readers.read_rows, offers_statistics=tools.statistics
        )
        self._readers = tools.readers
        self._writer_lock = tools.writer_lock
        self._wait_seconds = tools.write.retry_seconds
        self._landing = Landing(
            str(name), self._snapshots, self._log, tools.spark, tools.write.retry_seconds, tools.writer_lock
        )
        self._rowid_column = tools.rowid_column
        self._alterer = TableAlterer(self._landing, tools.rowid_column)
        self._writer = TableWriter(self._landing, tools.write, tools.staging.settings)
        self._write_room = WriteRoom(
            snapshots=self._snapshots,
            writer=self._writer,
            staging=tools.staging,
            answers=Answers(str(name), self._log, self._snapshots.current, tools.write.idempotency_seconds),
            has_engine=tools.spark.state is not SparkState.OFF,
        )
        self._numbering = Numbering(str(name), self._adopt) if tools.adopts else None
        self._lock = threading.Lock()
        self._description: Description | None = None

    @property
    def name(self) -> TableName:
        return self._name

    @property
    def log_folder(self) -> Folder:
        return self._log

    def describe(self) -> Description:
        if self._description is None:
            self.refresh()
        assert self._description is not None
        return self._description

    def refresh(self) -> bool:
        self._write_room.answers.drop_old()
        snapshot = self.current()
        with self._lock:
            old = self._description
            if old is not None and old.version == snapshot.version and old.shape is snapshot.shape:
                return False
            same_shape = old is not None and old.shape.equals(snapshot.shape, check_metadata=True)
            same = old is not None and same_shape and old.comment == snapshot.log.comment
            self._description = Description(
                # A stamp stays as it is while the schema does: it says where the schema was first seen.
                stamp=old.stamp if old is not None and same_shape else stamp_of(snapshot.shape, snapshot.version),
                version=snapshot.version,
                shape=old.shape if old is not None and same_shape else snapshot.shape,
                comment=snapshot.log.comment,
                size=snapshot.size,
                abilities=abilities(snapshot.log, has_engine=self._write_room.has_engine),
            )
            return not same

    def current(self) -> DeltaSnapshot:
        return DeltaSnapshot(self._snapshots.current(), self._readers, self._log)

    def at(self, version: int) -> DeltaSnapshot:
        return DeltaSnapshot(self._snapshots.at(version), self._readers, self._log)

    def version_as_of(self, point: AsOf) -> int:
        try:
            if point.unit == "VERSION":
                return self._snapshots.at(parse_version(point.value)).version
            return version_at_time(self._log, self._snapshots.current().configuration, parse_moment(point.value))
        except (NotFoundError, RequestError) as error:
            if f"'{self._name}'" in error.message:
                raise
            raise type(error)(f"table '{self._name}': {error.message}") from error

    def changes(self) -> object:
        """What can be done to this table now; UnavailableError when another gateway writes its warehouse."""
        able = changes_of(self._write_room)
        if not isinstance(able, ReadOnly):
            self._writer_lock.refuse_early()
        if self._numbering is not None and isinstance(able, FullyChangeable):
            return SelfAdopting(able, self._numbering)
        return able

    def adoption(self, limits: Limits | None = None) -> Adoption:
        return Adoption(self._landing, self._rowid_column, limits)

    def _adopt(self) -> Adopted:
        with self._writer.shared():
            return self.adoption().run()

    def undo(self, transaction: str, context: WriteContext, footprint: Footprint) -> Undone:
        self._writer_lock.refuse_early()
        done = self._writer.commit(Undoing(transaction, footprint, context=context))
        return Undone(done.affected, done.version)

    def alter(self, change: Alteration, call: Call) -> int | None:
        with self.exclusive():
            return self._alterer.alter(change, call.caller.name)

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        return self._writer.exclusive(self._wait_seconds)

    def retire(self) -> None:
        self._snapshots.close()
