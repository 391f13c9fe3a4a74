"""One upload over DoExchange, frame by frame as the client does it.

pyarrow runs on the same C++ as the client and puts the same frames on the wire:
`do_exchange` sends the message that holds only the descriptor, `begin` the one
that holds descriptor and schema, `done_writing` the half-close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from tests.airport.arrow_types import duckdb_type, upload_type
from tests.airport.packing import ProtocolViolation
from tests.airport.replies import Flight, decode_total_changed, judge_batch

MAX_ROWS = 2048


@dataclass(frozen=True)
class Changed:
    """Outcome of a DML statement; `returned` is None unless RETURNING was asked for."""

    total_changed: int
    returned: pa.Table | None
    reply_schema: pa.Schema


def upload(
    streams: tuple[flight.FlightStreamWriter, flight.FlightStreamReader],
    schema: pa.Schema,
    source: Iterable[pa.RecordBatch],
    *,
    returning: bool,
    judge_reply: Callable[[pa.Schema], None],
    is_disguised: bool = False,
) -> Changed:
    """Send `source` and wait for the count.

    Nothing of `source` is taken before the server's schema is here, so a source
    that scans the same table starts its scan while the exchange is open. When the
    source itself fails, the client half-closes as after a success, waits for the
    reply, and only then shows the failure: so does this. A disguised source is sent
    batch by batch as it is, empty ones and all.
    """
    writer, reader = streams
    try:
        writer.begin(schema)
        reply_schema = reader.schema  # blocks: no batch leaves before the server's schema is here
        if returning:
            judge_reply(reply_schema)
        returned, failure = _send(writer, reader, iter(source) if is_disguised else split(source), returning)
        writer.done_writing()
        changed = _read_outcome(reader)
    except BaseException:
        with suppress(pa.ArrowException, OSError):
            reader.cancel()
        with suppress(pa.ArrowException, OSError):
            writer.close()
        raise
    writer.close()
    if failure is not None:
        raise failure
    return Changed(changed, pa.Table.from_batches(returned, reply_schema) if returning else None, reply_schema)


def split(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """DuckDB vectors: at most 2048 rows each, never an empty one."""
    for batch in source:
        for start in range(0, batch.num_rows, MAX_ROWS):
            yield batch.slice(start, MAX_ROWS)


def _send(
    writer: flight.FlightStreamWriter,
    reader: flight.FlightStreamReader,
    source: Iterator[pa.RecordBatch],
    returning: bool,
) -> tuple[list[pa.RecordBatch], Exception | None]:
    returned = []
    while True:
        try:
            batch = next(source, None)
        except Exception as failure:  # whatever it is, the client ends the upload first
            return returned, failure
        if batch is None:
            return returned, None
        writer.write_batch(batch)
        if returning:
            returned.append(_read_answer(reader, max(batch.num_rows, MAX_ROWS)))


def _read_answer(reader: flight.FlightStreamReader, most: int) -> pa.RecordBatch:
    try:
        chunk = reader.read_chunk()
    except StopIteration:
        raise ProtocolViolation("DoExchange: the stream ended where a batch was due") from None
    if chunk.data is None:
        raise ProtocolViolation("DoExchange: metadata came where a batch was due")
    if chunk.data.num_rows > most:
        raise ProtocolViolation(f"DoExchange: {chunk.data.num_rows} rows in one answer, {most} at most are kept")
    judge_batch(chunk.data)
    return chunk.data


def _read_outcome(reader: flight.FlightStreamReader) -> int:
    try:
        chunk = reader.read_chunk()
    except StopIteration:
        raise ProtocolViolation("DoExchange: the stream ended without total_changed") from None
    if chunk.data is not None:
        raise ProtocolViolation("DoExchange: a batch came after the half-close, the count was due")
    changed = decode_total_changed(chunk.app_metadata)
    # The client stops reading here, so whatever follows is lost to it, an error above all.
    try:
        reader.read_chunk()
    except StopIteration:
        return changed
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation(f"DoExchange: failed after the count was sent: {error}") from error
    raise ProtocolViolation("DoExchange: a message came after the count")


def upload_schema(table: Flight, names: Iterable[str]) -> pa.Schema:
    """Names and the client's own types; all nullable, no metadata."""
    kinds = ((name, table.schema.field(table.position(name)).type) for name in names)
    return pa.schema([pa.field(name, upload_type(kind)) for name, kind in kinds])


def as_batches(rows: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return iter([rows])
    return iter(rows.to_batches()) if isinstance(rows, pa.Table) else iter(rows)


def conform(batch: pa.RecordBatch, schema: pa.Schema, table: Flight) -> pa.RecordBatch:
    """A batch in upload shape; a column that is not given is NULL, as in an INSERT with a column list."""
    arrays = []
    for field in schema:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
            continue
        declared = table.schema.field(table.position(field.name))
        if b"default" in (declared.metadata or {}):
            raise ValueError(f"the client would fill in the default of {field.name}: give its values")
        arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def judge_rows_by_name(table: Flight) -> Callable[[pa.Schema], None]:
    """RETURNING of insert and delete: every table column, found by name, of the same DuckDB type."""

    def judge(reply: pa.Schema) -> None:
        for field in table.columns:
            if field.name not in reply.names:
                raise ProtocolViolation(f"RETURNING: {field.name} is missing from {reply.names}")
            found = reply.field(field.name).type
            if duckdb_type(found) != duckdb_type(field.type):
                raise ProtocolViolation(f"RETURNING: {field.name} is {found}, not {field.type}")

    return judge


def judge_rows_by_position(uploaded: pa.Schema) -> Callable[[pa.Schema], None]:
    """RETURNING of update: the uploaded columns, in upload order, row id included."""

    def judge(reply: pa.Schema) -> None:
        expected = [(field.name, duckdb_type(field.type)) for field in uploaded]
        found = [(field.name, duckdb_type(field.type)) for field in reply]
        if found != expected:
            raise ProtocolViolation(f"RETURNING of an update: {found} instead of {expected}")

    return judge
