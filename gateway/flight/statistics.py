"""Column statistics as the client reads them: one row, bounds of exactly the column's type."""

from __future__ import annotations

import pyarrow as pa

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import ColumnStatistics, WithStatistics
from gateway.errors import NotFoundError, UnsupportedError
from gateway.flight.scans import Scans
from gateway.wire.messages import StatisticsRequest
from gateway.wire.tickets import decode_path

# The client reads a missing bound of a text as the word NULL, so "unknown" is every text there is;
# it keeps eight bytes of each bound.
_FIRST_TEXT, _LAST_TEXT = "", "\U0010ffff" * 2
_FIRST_BYTES, _LAST_BYTES = b"", b"\xff" * 8


def statistics_reply(scans: Scans, call: Call, request: StatisticsRequest) -> bytes:
    target = scans.resolve(call, decode_path(request.descriptor), None)
    index = target.shape.get_field_index(request.column)
    if index < 0:
        raise NotFoundError(f"table '{target.table.name}' has no column '{request.column[:60]}'")
    if not isinstance(target.snapshot, WithStatistics):
        raise UnsupportedError(f"table '{target.table.name}' has no statistics")
    kind = target.shape.field(index).type
    now = target.snapshot.shape.get_field_index(request.column)
    # Of a column that is another one since this client attached nothing is known; reading it is refused.
    is_same = now >= 0 and target.snapshot.shape.field(now).type == kind
    return encode_statistics(kind, target.snapshot.statistics(request.column) if is_same else ColumnStatistics())


def encode_statistics(kind: pa.DataType, known: ColumnStatistics) -> bytes:
    low, high = _bounds(kind, known)
    columns: dict[str, pa.Array] = {
        "min": low,
        "max": high,
        "has_not_null": pa.array([known.may_have_value]),
        "has_null": pa.array([known.may_have_null]),
        "distinct_count": pa.array([0], pa.uint64()),  # 0: unknown
    }
    if _is_text(kind):
        columns["contains_unicode"] = pa.array([True])
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    reply: bytes = sink.getvalue().to_pybytes()
    return reply


def _bounds(kind: pa.DataType, known: ColumnStatistics) -> tuple[pa.Array, pa.Array]:
    if known.minimum is not None and known.maximum is not None:
        # As Arrow scalars all the way: Python's own times end with the year 9999.
        low, high = (pa.array([bound], bound.type).cast(kind) for bound in (known.minimum, known.maximum))
        return low, high
    if _is_text(kind):
        return pa.array([_FIRST_TEXT]).cast(kind), pa.array([_LAST_TEXT]).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([_FIRST_BYTES], kind), pa.array([_LAST_BYTES], kind)
    return pa.nulls(1, kind), pa.nulls(1, kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_string_view(kind) or isinstance(kind, pa.JsonType))
