"""The JSON dialect's statements: INSERT and UPDATE over DoPut, DELETE as an action.

Row ids come in a list of their own and join the rows here, so that both dialects
use the same abilities of a table. An id that the table does not have is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from gateway.access.policy import Action
from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import (
    Operation,
    WriteOptions,
    can_delete,
    can_update,
    find_rowid_column,
    why_unchangeable,
)
from gateway.catalog.guarding import seen_by
from gateway.catalog.names import fold
from gateway.catalog.registry import Catalogs
from gateway.errors import NotFoundError, PreconditionError, RequestError
from gateway.flight.statements import Change, Execution, Statements
from gateway.flight.upload_watch import Upload, UploadWatch
from gateway.settings import LimitSettings
from gateway.wire.json_dialect import (
    Command,
    InsertCommand,
    decode_delete,
    decode_put,
    encode_delete_reply,
    encode_put_reply,
    encode_rows,
    printable,
)
from gateway.wire.listing import ROWID_KEY

ROWID = pa.field("rowid", pa.int64(), metadata={ROWID_KEY: b"1"})
# What a reply has around it as a message, and the largest count that it may hold.
_ENVELOPE_BYTES = 16
_MAX_COUNT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _CommandTable:
    """The table a command means, and its shape as it is now."""

    table: Readable
    shape: pa.Schema

    @property
    def columns(self) -> list[str]:
        """Every column but the rowid."""
        return [field.name for field in self.shape if not (field.metadata or {}).get(ROWID_KEY)]


class Puts:
    """Thread-safe: holds nothing of a call."""

    def __init__(self, catalogs: Catalogs, statements: Statements, uploads: UploadWatch, limits: LimitSettings) -> None:
        self._catalogs = catalogs
        self._statements = statements
        self._uploads = uploads
        self._limits = limits

    def put(
        self,
        call: Call,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with self._uploads.watched(call, reader) as upload:
            with self._statements.executing(call) as execution:
                reply = self._put(call, execution, descriptor, upload)
            upload.mark_written()
            with upload.answering():
                writer.write(pa.py_buffer(reply))

    def delete(self, call: Call, body: bytes) -> bytes:
        with self._statements.executing(call) as execution:
            command = decode_delete(body)
            target = self._find(call, command, Action.DELETE)
            if not can_delete(target.table):
                raise _unchangeable(Operation.DELETE, target)
            change, reply = self._change(Operation.DELETE, command, target, encode_delete_reply)
            schema = pa.schema([ROWID])
            rows = pa.RecordBatch.from_arrays([pa.array(command.row_ids, pa.int64())], schema=schema)
            statement = execution.open(change, schema)
            return reply.encode(execution.run(statement, [rows], reply, drains=False))

    def _put(self, call: Call, execution: Execution, descriptor: flight.FlightDescriptor, upload: Upload) -> bytes:
        if descriptor.descriptor_type != flight.DescriptorType.CMD:
            raise RequestError("DoPut takes a command descriptor that holds a JSON object")
        command = decode_put(descriptor.command)
        target = self._find(call, command, Action.INSERT if isinstance(command, InsertCommand) else Action.UPDATE)
        if isinstance(command, InsertCommand):
            change, reply = self._change(Operation.INSERT, command, target, encode_put_reply)
            mapping = _map_insert(target, upload.schema())
            schema, rows = mapping.schema, mapping.rows(upload)
        else:
            if not can_update(target.table):
                raise _unchangeable(Operation.UPDATE, target)
            change, reply = self._change(Operation.UPDATE, command, target, encode_put_reply)
            mapping = _map_update(target, upload.schema())
            schema, rows = mapping.schema.append(ROWID), _with_row_ids(mapping.rows(upload), command.row_ids)
        statement = execution.open(change, schema)
        upload.bind(statement)
        return reply.encode(execution.run(statement, rows, reply, drains=False))

    def _change(
        self,
        operation: Operation,
        command: Command,
        target: _CommandTable,
        encode: Callable[[int, bytes | None], bytes],
    ) -> tuple[Change, _PutReply]:
        columns = None
        if command.returning:
            columns = _match(target, target.shape.names, command.returning_columns, "returning_columns")
        change = Change(
            operation,
            target.table,
            WriteOptions(returning=command.returning, strict=True),
            read_version=command.read_version,
            idempotency_key=command.idempotency_key,
        )
        return change, _PutReply(target.table.name.table, columns, encode, self._limits.returned_bytes)

    def _find(self, call: Call, command: Command, action: Action) -> _CommandTable:
        catalog = seen_by(call, self._catalogs).get(command.catalog or call.headers.catalog)
        table = catalog.table(command.schema, command.table, action)
        if command.returning:
            catalog.check(Action.READ, command.schema, command.table)
        try:
            return _CommandTable(table, table.current().shape)
        except NotFoundError:
            catalog.forget(table)
            raise


def _unchangeable(operation: Operation, target: _CommandTable) -> PreconditionError:
    name, why = target.table.name.table, why_unchangeable(target.table)
    return PreconditionError(f"table '{name}' does not support {operation.verb} ({why})")


def _match(target: _CommandTable, columns: Sequence[str], asked: Iterable[str], what: str, hint: str = "") -> list[str]:
    """The asked names as the table spells them; names are compared as users do."""
    spelled = {fold(name): name for name in columns}
    found: dict[str, None] = {}
    for name in asked:
        column = spelled.get(fold(name))
        if column is None:
            raise RequestError(f"{what}: table '{target.table.name.table}' has no column '{printable(name)}'{hint}")
        if column in found:
            raise RequestError(f"{what}: column '{printable(name)}' is given twice")
        found[column] = None
    return list(found)


def _match_upload(target: _CommandTable, names: Iterable[str]) -> list[str]:
    return _match(target, target.columns, names, "column mismatch", "; columns are matched by name, in any order")


@dataclass(frozen=True, slots=True)
class _ColumnMapping:
    """Which uploaded columns are taken, in which order, under the table's names."""

    places: tuple[int, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, upload: pa.Schema, places: Iterable[int], names: Iterable[str]) -> _ColumnMapping:
        taken = dict(zip(names, places, strict=True))
        fields = [_unmarked(upload.field(place)).with_name(name) for name, place in taken.items()]
        return cls(tuple(taken.values()), pa.schema(fields))

    def rows(self, upload: Upload) -> Iterator[pa.RecordBatch]:
        for batch in upload.batches():
            taken = [batch.column(place) for place in self.places]
            try:
                rows = pa.RecordBatch.from_arrays(taken, schema=self.schema)
            except pa.ArrowInvalid as error:
                raise RequestError("the uploaded batch is not valid Arrow data") from error
            yield rows


def _unmarked(field: pa.Field) -> pa.Field:
    """The field without a mark that would make it the rowid."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != ROWID_KEY}
    return field.with_metadata(metadata or None)


def _map_insert(target: _CommandTable, upload: pa.Schema) -> _ColumnMapping:
    # A row id sent along with new rows says nothing: the table gives ids at the commit.
    rowid = find_rowid_column(upload)
    places = [place for place in range(len(upload)) if place != rowid]
    if len(places) != len(target.columns):
        raise RequestError(f"column mismatch: table has {len(target.columns)} columns, input has {len(places)}")
    names = _match_upload(target, (upload.field(place).name for place in places))
    at = dict(zip(names, places, strict=True))
    return _ColumnMapping.of(upload, (at[name] for name in target.columns), target.columns)


def _map_update(target: _CommandTable, upload: pa.Schema) -> _ColumnMapping:
    if find_rowid_column(upload) >= 0:
        raise RequestError("column mismatch: UPDATE takes the row ids from row_ids, not from a rowid column")
    if not upload.names:
        raise RequestError("column mismatch: UPDATE sets no column")
    return _ColumnMapping.of(upload, range(len(upload)), _match_upload(target, upload.names))


def _with_row_ids(batches: Iterable[pa.RecordBatch], row_ids: Sequence[int]) -> Iterator[pa.RecordBatch]:
    ids = pa.array(row_ids, pa.int64())
    rows = 0
    for batch in batches:
        first, rows = rows, rows + batch.num_rows
        if rows <= len(ids):  # the others are only counted
            yield batch.append_column(ROWID, ids.slice(first, batch.num_rows))
    if rows != len(ids):
        raise RequestError(f"row_ids count ({len(ids)}) does not match input rows ({rows})")


class _PutReply:
    """The reply, which is one message: a count, and the rows that the statement returns, if it was asked for any.

    `columns` are those to return: none of them means all, None that nothing is returned.
    It is made and measured before anything is written: a commit whose reply cannot be received would look
    like a failure.
    """

    def __init__(
        self, table: str, columns: list[str] | None, encode: Callable[[int, bytes | None], bytes], max_bytes: int
    ) -> None:
        self._table = table
        self._columns = columns
        self._encode = encode
        self._max_bytes = max_bytes
        self._schema = pa.schema([])
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows: bytes | None = None

    def begin(self, schema: pa.Schema) -> None:
        for name in self._columns or ():
            if name not in schema.names:
                raise PreconditionError(f"table '{self._table}' cannot return column '{name}'")
        self._schema = pa.schema([schema.field(name) for name in self._columns or schema.names])

    def add(self, rows: pa.RecordBatch) -> None:
        narrow = rows.select(self._schema.names)
        self._bytes += narrow.nbytes
        if self._bytes > self._max_bytes:
            raise self._too_large()
        self._batches.append(narrow)

    def finish(self) -> None:
        if self._columns is None:
            return
        self._rows = encode_rows(self._schema, self._batches)
        if len(self.encode(_MAX_COUNT)) + _ENVELOPE_BYTES > self._max_bytes:
            raise self._too_large()

    def encode(self, count: int) -> bytes:
        return self._encode(count, self._rows)

    def _too_large(self) -> RequestError:
        limit = f"{self._max_bytes} bytes (limits.returned_bytes)"
        return RequestError(f"the returned rows take more than {limit}; return fewer columns, or change fewer rows")
