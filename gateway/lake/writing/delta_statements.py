"""Statements on Delta tables: rows in, batch by batch, and one commit at the end.

What a table can do follows from what it is, and is decided here: a table takes
new rows unless its writers must do what Delta's writer here cannot; changing rows
needs row ids, and a table that is not append-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.changes import Operation, WriteContext, WriteOptions
from gateway.errors import CancelledError, RequestError
from gateway.lake.reading.lookups import rows_by_id
from gateway.lake.tables.internal_names import POSITION, ROWID_FIELD
from gateway.lake.tables.schemas import is_rowid
from gateway.lake.tables.snapshots import LogSnapshot, Snapshots
from gateway.lake.values.codec import decode
from gateway.lake.writing.change_sets import last_of_each
from gateway.lake.writing.conversion import ComputedColumns, Partitions, convert, plan_upload
from gateway.lake.writing.idempotency import Answers, digest_of
from gateway.lake.writing.pending import Committed, Pending
from gateway.lake.writing.staging import StagedRows, StagingFolder

if TYPE_CHECKING:
    from gateway.lake.writing.writer import TableWriter

_APPEND_ONLY = "delta.appendOnly"
_MAPPING_MODE = "delta.columnMapping.mode"


@dataclass(frozen=True)
class WriteRoom:
    """What a statement needs of its table.

    `has_engine` is false where Spark is switched off: nothing is written then.
    """

    snapshots: Snapshots
    writer: TableWriter
    staging: StagingFolder
    answers: Answers
    has_engine: bool = True


def changes_of(room: WriteRoom) -> object:
    snapshot = room.snapshots.current()
    if not _is_writable(snapshot, room.has_engine):
        return ReadOnly()
    if _is_append_only(snapshot):
        return InsertOnly(room, "append-only")
    return InsertOnly(room) if snapshot.schema.rowid is None else FullyChangeable(room)


def abilities(snapshot: LogSnapshot, *, has_engine: bool) -> tuple[str, ...]:
    """The same, in the words of listings."""
    if not _is_writable(snapshot, has_engine):
        return ("read",)
    if _is_append_only(snapshot) or snapshot.schema.rowid is None:
        return "read", "insert"
    return "read", "insert", "update", "delete"


def _is_writable(snapshot: LogSnapshot, has_engine: bool) -> bool:
    return has_engine and snapshot.writers.is_known


def _is_append_only(snapshot: LogSnapshot) -> bool:
    return snapshot.configuration.get(_APPEND_ONLY, "false").lower() == "true"


@dataclass(frozen=True)
class ReadOnly:
    unchangeable: str = "read-only"


@dataclass(frozen=True)
class InsertOnly:
    """`unchangeable` is why its rows stay as they are."""

    room: WriteRoom
    unchangeable: str = "no rowid"

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
        if (before := room.answers.find(context)) is not None and before.version:
            base = before.version - 1  # sent again: the rows to return are those of the first time
        self._snapshot = room.snapshots.current() if base is None else room.snapshots.at(base)
        self._plan = plan_upload(operation, self._snapshot.schema, upload, _partitions(self._snapshot))
        self._rows = StagedRows(room.staging, convert(self._plan, _empty(upload)).schema)
        self._computed = ComputedColumns(self._plan) if operation is Operation.INSERT else None
        self._returned_ids: set[int] = set()

    @property
    def reply_schema(self) -> pa.Schema:
        # The client matches an UPDATE's answer by position with what it sent, the others by the table's names.
        return self._upload if self._operation is Operation.UPDATE and self._options.echo else self._snapshot.shape

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if self._context.is_cancelled():
            raise CancelledError("the statement was cancelled; nothing was written")
        rows = convert(self._plan, batch)
        if self._computed is not None:
            self._computed.look_at(rows)
        self._rows.add(rows)
        if not self._options.returning:
            return None
        match self._operation:
            case Operation.UPDATE:
                return self._updated(batch, rows)
            case Operation.INSERT:
                return self._inserted(rows)
        return self._old_rows(rows)

    def commit(self) -> int:
        try:
            self._rows.finish()
            self._context.begin_commit()
            committed = self._write()
            # What another call wrote, and is only answered again, is not this one's transaction's to take back.
            self._context.wrote(None if committed.is_repeat else committed.version, committed.row_ids)
            return committed.affected
        finally:
            self._rows.release()

    def _write(self) -> Committed:
        digest = None
        if self._context.idempotency_key is not None:
            digest = digest_of(self._operation, self._plan.names, self._rows)
        plan = self._plan if self._computed is None else self._plan.without(self._computed.left_out())
        pending = Pending(self._operation, plan, self._rows, self._options, digest, context=self._context)

        def commit() -> Committed:
            return self._room.writer.commit(pending) if self._rows.rows else Committed(0, None)

        return commit() if digest is None else self._room.answers.once(self._context, digest, commit)

    def abort(self) -> None:
        self._rows.release()

    def _inserted(self, rows: pa.Table) -> pa.RecordBatch:
        """The new rows as they will be stored; their ids are given at the commit, which is still to come."""
        return self._as_declared(rows.select(list(self._plan.names)))

    def _updated(self, batch: pa.RecordBatch, rows: pa.Table) -> pa.RecordBatch:
        """The rows that are there, each once, with their new values."""
        self._refuse_repeated(rows.column(ROWID_FIELD))
        columns = self._snapshot.schema.columns
        others = () if self._options.echo else [column for column in columns if column.name not in self._plan.names]
        found = rows_by_id(self._snapshot, rows.column(ROWID_FIELD), others)
        places = pa.arange(0, rows.num_rows)
        last = last_of_each(rows.append_column(POSITION, places))
        last = last.filter(pc.is_in(last.column(ROWID_FIELD), found.column(0).combine_chunks()))
        if self._options.echo:
            return _taken(batch, last.column(POSITION).combine_chunks())
        beside = found.take(pc.index_in(last.column(ROWID_FIELD), found.column(0).combine_chunks()))
        for name in self._plan.names:
            beside = beside.append_column(last.schema.field(name), last.column(name))
        return self._as_declared(beside)

    def _refuse_repeated(self, row_ids: pa.ChunkedArray) -> None:
        """The last value of a row counts, but an earlier batch was already answered with another one."""
        named = set(row_ids.to_pylist())
        if repeated := named & self._returned_ids:
            raise RequestError(
                f"row id {min(repeated)} comes in two batches, but UPDATE … RETURNING takes each row once;"
                " nothing was written"
            )
        self._returned_ids |= named

    def _old_rows(self, rows: pa.Table) -> pa.RecordBatch:
        """The rows as they were at the version the statement read; none is returned twice."""
        found = rows_by_id(self._snapshot, rows.column(ROWID_FIELD), self._snapshot.schema.columns)
        row_ids = found.column(0).to_pylist()
        found = found.filter(pa.array([row_id not in self._returned_ids for row_id in row_ids], pa.bool_()))
        self._returned_ids.update(row_ids)
        return self._as_declared(found)

    def _as_declared(self, rows: pa.Table) -> pa.RecordBatch:
        """Stored rows in the declared shape; the row id is null where it is not among them."""
        schema, arrays = self._snapshot.schema, []
        for field in self._snapshot.shape:
            stored = schema.rowid if is_rowid(field) else schema.column(field.name)
            if stored is not None and stored.name in rows.column_names:
                arrays.append(decode(rows.column(stored.name).combine_chunks(), stored.form, field.type))
            else:
                arrays.append(pa.nulls(rows.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._snapshot.shape)


def _taken(batch: pa.RecordBatch, places: pa.Array) -> pa.RecordBatch:
    if len(places) == batch.num_rows:
        return batch
    # Row by row: Arrow's own `take` has no kernel for views.
    pieces = [batch.slice(place, 1) for place in places.to_pylist()]
    return pa.Table.from_batches(pieces, batch.schema).combine_chunks().to_batches()[0] if pieces else batch.slice(0, 0)


def _partitions(snapshot: LogSnapshot) -> Partitions:
    # With column mapping, folders have names that mean nothing.
    is_mapped = snapshot.configuration.get(_MAPPING_MODE, "none") != "none"
    return Partitions(frozenset(snapshot.partition_columns), in_folders=not is_mapped)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
