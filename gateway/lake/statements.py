"""Statements on Delta tables: rows in, batch by batch, and one commit at the end.

What a table can do follows from what it is, and is decided here: any table
takes new rows; changing rows needs row ids; an append-only table does neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from gateway.catalog.changes import Operation, WriteContext, WriteOptions
from gateway.errors import CancelledError
from gateway.lake.lookups import rows_by_id
from gateway.lake.schemas import is_rowid
from gateway.lake.snapshots import LogSnapshot, Snapshots
from gateway.lake.staging import StagedRows, StagingFolder
from gateway.lake.uploads import ROWID_FIELD, UploadPlan, convert, plan_upload
from gateway.lake.writer import Committed, Pending, TableWriter

_APPEND_ONLY = "delta.appendOnly"


@dataclass(frozen=True)
class WriteRoom:
    """What a statement needs of its table; `shape` makes a snapshot's told schema, `landed` hears of commits."""

    snapshots: Snapshots
    writer: TableWriter
    staging: StagingFolder
    shape: Callable[[LogSnapshot], pa.Schema]
    landed: Callable[[WriteContext, Committed], None]


def changes_of(room: WriteRoom) -> object:
    snapshot = room.snapshots.current()
    append_only = snapshot.configuration.get(_APPEND_ONLY, "false").lower() == "true"
    return InsertOnly(room) if snapshot.schema.rowid is None or append_only else FullyChangeable(room)


def abilities(snapshot: LogSnapshot) -> tuple[str, ...]:
    """The same, in the words of listings."""
    append_only = snapshot.configuration.get(_APPEND_ONLY, "false").lower() == "true"
    if append_only:
        return "read", "insert"
    return ("read", "insert", "update", "delete") if snapshot.schema.rowid is not None else ("read", "insert")


@dataclass(frozen=True)
class InsertOnly:
    room: WriteRoom

    def insert(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> DeltaStatement:
        return DeltaStatement(self.room, Operation.INSERT, upload, options, context)


@dataclass(frozen=True)
class FullyChangeable(InsertOnly):
    def update_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> DeltaStatement:
        return DeltaStatement(self.room, Operation.UPDATE, upload, options, context)

    def delete_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> DeltaStatement:
        return DeltaStatement(self.room, Operation.DELETE, upload, options, context)


class DeltaStatement:
    """One INSERT, UPDATE or DELETE. Its rows are staged as they come; `commit` makes one MERGE of them."""

    def __init__(
        self, room: WriteRoom, operation: Operation, upload: pa.Schema, options: WriteOptions, context: WriteContext
    ) -> None:
        self._room = room
        self._operation = operation
        self._upload = upload
        self._options = options
        self._context = context
        base = context.read_version
        self._snapshot = room.snapshots.current() if base is None else room.snapshots.at(base)
        self._shape = room.shape(self._snapshot)
        self._plan: UploadPlan = plan_upload(operation, self._snapshot.schema, upload)
        self._rows = StagedRows(room.staging, convert(self._plan, _empty(upload)).schema)

    @property
    def reply_schema(self) -> pa.Schema:
        # The client matches an UPDATE's answer by position with what it sent, the others by the table's names.
        return self._upload if self._operation is Operation.UPDATE else self._shape

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if self._context.is_cancelled():
            raise CancelledError("the statement was cancelled; nothing was written")
        rows = convert(self._plan, batch)
        self._rows.add(rows)
        if not self._options.returning:
            return None
        match self._operation:
            case Operation.UPDATE:
                return batch
            case Operation.INSERT:
                return self._inserted(rows)
        return self._old_rows(rows)

    def commit(self) -> int:
        try:
            self._rows.finish()
            pending = Pending(self._operation, self._plan, self._rows, self._options, self._context)
            committed = self._room.writer.commit(pending) if self._rows.rows else Committed(0, None)
            self._room.landed(self._context, committed)
            return committed.affected
        finally:
            self._rows.release()

    def abort(self) -> None:
        self._rows.release()

    def _inserted(self, rows: pa.Table) -> pa.RecordBatch:
        """The new rows as they will be stored; their ids are given at the commit, which is still to come."""
        return self._as_told(rows.select(list(self._plan.names)))

    def _old_rows(self, rows: pa.Table) -> pa.RecordBatch:
        """The rows as they were at the version the statement read."""
        schema = self._snapshot.schema
        found = rows_by_id(self._snapshot, rows.column(ROWID_FIELD).to_pylist(), schema.columns)
        return self._as_told(found)

    def _as_told(self, rows: pa.Table) -> pa.RecordBatch:
        """Stored rows in the told shape; the row id is null where it is not among them."""
        stored = self._snapshot.schema.rowid
        arrays = []
        for field in self._shape:
            name = stored.name if is_rowid(field) and stored is not None else field.name
            if name in rows.column_names:
                arrays.append(rows.column(name).combine_chunks().cast(field.type))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._shape)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
