"""The JSON dialect's statements: INSERT and UPDATE over DoPut, DELETE as an action.

A statement is checked as far as it can be before its first row is taken, and is
one commit or nothing: whatever fails, and a caller who goes away, aborts it. Row
ids come in a list of their own and join the rows here, so that both dialects
use the same abilities of a table. An id that the table does not have is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import (
    Operation,
    Statement,
    WriteContext,
    WriteOptions,
    can_delete,
    can_update,
    delete_of,
    find_rowid_column,
    insert_into,
    update_of,
    why_unchangeable,
)
from gateway.catalog.names import fold
from gateway.catalog.registry import Catalogs
from gateway.errors import CancelledError, NotFoundError, PreconditionError, RequestError
from gateway.flight.uploads import Upload, Uploads
from gateway.settings import LimitSettings
from gateway.wire.headers import CallHeaders
from gateway.wire.json_dialect import (
    Command,
    InsertCommand,
    UpdateCommand,
    decode_delete,
    decode_put,
    encode_delete_reply,
    encode_put_reply,
    encode_rows,
    printable,
)
from gateway.wire.listing import ROWID_KEY

IsCancelled = Callable[[], bool]
ResolveContext = Callable[[CallHeaders, Readable, Command, IsCancelled], WriteContext]
# Around one statement: hears of its failure.
Outcome = Callable[[CallHeaders], AbstractContextManager[None]]

ROWID = pa.field("rowid", pa.int64(), metadata={ROWID_KEY: b"1"})
# What an answer has around it as a message, and the largest count that it may hold.
_ENVELOPE_BYTES = 16
_MOST_ROWS = (1 << 63) - 1
# A frame with nothing in it looks to pyarrow like the end of the upload, and rows may follow. After the true end every
# further read ends at once.
_BLANK_FRAMES = 64


@dataclass(frozen=True, slots=True)
class _Target:
    """The table a command means, and its shape as it is now."""

    table: Readable
    shape: pa.Schema

    @property
    def columns(self) -> list[str]:
        """Every column but the rowid."""
        return [field.name for field in self.shape if not (field.metadata or {}).get(ROWID_KEY)]


class Puts:
    """Thread-safe: holds nothing of a call."""

    def __init__(
        self,
        catalogs: Catalogs,
        resolve_context: ResolveContext,
        outcome: Outcome = lambda _headers: contextlib.nullcontext(),
        uploads: Uploads | None = None,
        returned_bytes: int = LimitSettings().returned_bytes,
    ) -> None:
        self._catalogs = catalogs
        self._resolve_context = resolve_context
        self._outcome = outcome
        self._uploads = uploads or Uploads()
        self._returned_bytes = returned_bytes

    def put(
        self,
        headers: CallHeaders,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
        is_cancelled: IsCancelled,
        peer: str = "",
    ) -> None:
        with self._uploads.watched(reader, peer, headers.transaction) as upload:
            with self._outcome(headers):
                reply = self._put(headers, descriptor, upload, is_cancelled)
            upload.was_written()
            with upload.answering():
                writer.write(pa.py_buffer(reply))

    def delete(self, headers: CallHeaders, body: bytes, is_cancelled: IsCancelled) -> bytes:
        with self._outcome(headers):
            return self._delete(headers, body, is_cancelled)

    def _put(
        self,
        headers: CallHeaders,
        descriptor: flight.FlightDescriptor,
        upload: Upload,
        is_cancelled: IsCancelled,
    ) -> bytes:
        if descriptor.descriptor_type != flight.DescriptorType.CMD:
            raise RequestError("DoPut takes a command descriptor that holds a JSON object")
        command = decode_put(descriptor.command)
        target = self._find(headers, command)
        options = _options(command, target)
        if isinstance(command, InsertCommand):
            statement, rows = self._insert(headers, command, target, options, upload, is_cancelled)
        else:
            statement, rows = self._update(headers, command, target, options, upload, is_cancelled)
        upload.fills(statement)
        return self._carry_out(statement, rows, target, options, is_cancelled, encode_put_reply)

    def _delete(self, headers: CallHeaders, body: bytes, is_cancelled: IsCancelled) -> bytes:
        command = decode_delete(body)
        target = self._find(headers, command)
        if not can_delete(target.table):
            raise _unchangeable(Operation.DELETE, target)
        options = _options(command, target)
        context = self._resolve_context(headers, target.table, command, is_cancelled)
        upload = pa.schema([ROWID])
        rows = pa.RecordBatch.from_arrays([pa.array(command.row_ids, pa.int64())], schema=upload)
        statement = delete_of(target.table, upload, options, context)
        return self._carry_out(statement, [rows], target, options, is_cancelled, encode_delete_reply)

    def _insert(
        self,
        headers: CallHeaders,
        command: InsertCommand,
        target: _Target,
        options: WriteOptions,
        upload: Upload,
        is_cancelled: IsCancelled,
    ) -> tuple[Statement, Iterator[pa.RecordBatch]]:
        plan = _plan_insert(target, schema_of(upload, is_cancelled))
        context = self._resolve_context(headers, target.table, command, is_cancelled)
        statement = insert_into(target.table, target.table.name, plan.schema, options, context)
        return statement, plan.rows(upload, is_cancelled)

    def _update(
        self,
        headers: CallHeaders,
        command: UpdateCommand,
        target: _Target,
        options: WriteOptions,
        upload: Upload,
        is_cancelled: IsCancelled,
    ) -> tuple[Statement, Iterator[pa.RecordBatch]]:
        if not can_update(target.table):
            raise _unchangeable(Operation.UPDATE, target)
        plan = _plan_update(target, schema_of(upload, is_cancelled))
        context = self._resolve_context(headers, target.table, command, is_cancelled)
        statement = update_of(target.table, plan.schema.append(ROWID), options, context)
        return statement, _with_row_ids(plan.rows(upload, is_cancelled), command.row_ids)

    def _carry_out(
        self,
        statement: Statement,
        batches: Iterable[pa.RecordBatch],
        target: _Target,
        options: WriteOptions,
        is_cancelled: IsCancelled,
        encode: Callable[[int, bytes | None], bytes],
    ) -> bytes:
        """The answer; all of it but the count is made, and measured, before anything is written."""
        try:
            returned = None
            if options.returning:
                returned = _Returned(target, options.columns, statement.reply_schema, self._returned_bytes)
            for batch in batches:
                _check_still_there(is_cancelled)
                rows = statement.add(batch)
                if returned is not None and rows is not None:
                    returned.add(rows)
            encoded = None if returned is None else returned.encode()
            # The answer is one message, and a commit whose answer cannot be received would look like a failure.
            if returned is not None and len(encode(_MOST_ROWS, encoded)) + _ENVELOPE_BYTES > self._returned_bytes:
                raise returned.too_large()
            _check_still_there(is_cancelled)
            return encode(statement.commit(), encoded)
        finally:
            statement.abort()  # after a commit it only lets go of what was staged

    def _find(self, headers: CallHeaders, command: Command) -> _Target:
        catalog = self._catalogs.get(command.catalog or headers.catalog)
        table = catalog.table(command.schema, command.table)
        try:
            return _Target(table, table.current().shape)
        except NotFoundError:
            catalog.forget(table)
            raise


def _unchangeable(operation: Operation, target: _Target) -> PreconditionError:
    name, why = target.table.name.table, why_unchangeable(target.table)
    return PreconditionError(f"table '{name}' does not support {operation.verb} ({why})")


def _options(command: Command, target: _Target) -> WriteOptions:
    if not command.returning:
        return WriteOptions(strict=True)
    columns = _match(target, target.shape.names, command.returning_columns, "returning_columns")
    return WriteOptions(returning=True, columns=tuple(columns), strict=True)


def _match(target: _Target, columns: Sequence[str], asked: Iterable[str], what: str, hint: str = "") -> list[str]:
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


def _match_upload(target: _Target, names: Iterable[str]) -> list[str]:
    return _match(target, target.columns, names, "column mismatch", "; columns are matched by name, in any order")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which uploaded columns are taken, in which order, under the table's names."""

    places: tuple[int, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, upload: pa.Schema, places: Iterable[int], names: Iterable[str]) -> _Plan:
        taken = dict(zip(names, places, strict=True))
        fields = [_unmarked(upload.field(place)).with_name(name) for name, place in taken.items()]
        return cls(tuple(taken.values()), pa.schema(fields))

    def rows(self, upload: Upload, is_cancelled: IsCancelled) -> Iterator[pa.RecordBatch]:
        for batch in batches_of(upload, is_cancelled):
            taken = [upload.checked(batch).column(place) for place in self.places]
            try:
                rows = pa.RecordBatch.from_arrays(taken, schema=self.schema)
            except pa.ArrowInvalid as error:
                raise RequestError("the uploaded batch is not valid Arrow data") from error
            yield rows


def _unmarked(field: pa.Field) -> pa.Field:
    """The field without a mark that would make it the rowid."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != ROWID_KEY}
    return field.with_metadata(metadata or None)


def _plan_insert(target: _Target, upload: pa.Schema) -> _Plan:
    # A row id sent along with new rows says nothing: the table gives ids at the commit.
    rowid = find_rowid_column(upload)
    places = [place for place in range(len(upload)) if place != rowid]
    if len(places) != len(target.columns):
        raise RequestError(f"column mismatch: table has {len(target.columns)} columns, input has {len(places)}")
    names = _match_upload(target, (upload.field(place).name for place in places))
    at = dict(zip(names, places, strict=True))
    return _Plan.of(upload, (at[name] for name in target.columns), target.columns)


def _plan_update(target: _Target, upload: pa.Schema) -> _Plan:
    if find_rowid_column(upload) >= 0:
        raise RequestError("column mismatch: UPDATE takes the row ids from row_ids, not from a rowid column")
    if not upload.names:
        raise RequestError("column mismatch: UPDATE sets no column")
    return _Plan.of(upload, range(len(upload)), _match_upload(target, upload.names))


def schema_of(reader: Upload, is_cancelled: IsCancelled) -> pa.Schema:
    try:
        schema = reader.schema
        schema.names  # noqa: B018  a name that is no text fails here
    except (pa.ArrowException, flight.FlightError, OSError, UnicodeDecodeError) as error:
        _check_still_there(is_cancelled)
        raise RequestError("the upload has no schema that can be read") from error
    return schema


def batches_of(reader: Upload, is_cancelled: IsCancelled) -> Iterator[pa.RecordBatch]:
    """The upload's batches. The stream of a caller who went away just ends, as a finished one does."""
    ends = 0
    while ends < _BLANK_FRAMES:
        try:
            batch = reader.read_chunk().data
            ends = 0
        except StopIteration:
            ends += 1
            continue
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            _check_still_there(is_cancelled)
            raise RequestError("the upload cannot be read") from error
        if batch is not None:
            yield batch


def _with_row_ids(batches: Iterable[pa.RecordBatch], row_ids: Sequence[int]) -> Iterator[pa.RecordBatch]:
    ids = pa.array(row_ids, pa.int64())
    rows = 0
    for batch in batches:
        first, rows = rows, rows + batch.num_rows
        if rows <= len(ids):  # the others are only counted
            yield batch.append_column(ROWID, ids.slice(first, batch.num_rows))
    if rows != len(ids):
        raise RequestError(f"row_ids count ({len(ids)}) does not match input rows ({rows})")


class _Returned:
    """The rows a statement returns: those columns, in that order."""

    def __init__(self, target: _Target, columns: Sequence[str], reply: pa.Schema, most_bytes: int) -> None:
        for name in columns:
            if name not in reply.names:
                raise PreconditionError(f"table '{target.table.name.table}' cannot return column '{name}'")
        self._columns = list(columns or reply.names)
        self._schema = pa.schema([reply.field(name) for name in self._columns])
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._most_bytes = most_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        narrow = rows.select(self._columns)
        self._bytes += narrow.nbytes
        if self._bytes > self._most_bytes:
            raise self.too_large()
        self._batches.append(narrow)

    def encode(self) -> bytes:
        return encode_rows(self._schema, self._batches)

    def too_large(self) -> RequestError:
        limit = f"{self._most_bytes} bytes (limits.returned_bytes)"
        return RequestError(f"the returned rows take more than {limit}; return fewer columns, or change fewer rows")


def _check_still_there(is_cancelled: IsCancelled) -> None:
    if is_cancelled():
        raise CancelledError("the caller went away; nothing was written")
