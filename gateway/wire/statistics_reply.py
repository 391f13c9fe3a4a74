"""The reply to `column_statistics`: one row, with bounds of exactly the column's type."""

from __future__ import annotations

import pyarrow as pa

# The client reads a missing bound of a text as the word NULL, so "unknown" is every text there is;
# it keeps eight bytes of each bound.
_FIRST_TEXT, _LAST_TEXT = "", "\U0010ffff" * 2
_FIRST_BYTES, _LAST_BYTES = b"", b"\xff" * 8


def encode_statistics(
    kind: pa.DataType,
    minimum: pa.Scalar | None,
    maximum: pa.Scalar | None,
    *,
    may_have_null: bool,
    may_have_value: bool,
) -> bytes:
    low, high = _bounds(kind, minimum, maximum)
    columns: dict[str, pa.Array] = {
        "min": low,
        "max": high,
        "has_not_null": pa.array([may_have_value]),
        "has_null": pa.array([may_have_null]),
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


def _bounds(kind: pa.DataType, minimum: pa.Scalar | None, maximum: pa.Scalar | None) -> tuple[pa.Array, pa.Array]:
    if minimum is not None and maximum is not None:
        # As Arrow scalars all the way: Python's own times end with the year 9999.
        low, high = (pa.array([bound], bound.type).cast(kind) for bound in (minimum, maximum))
        return low, high
    if _is_text(kind):
        return pa.array([_FIRST_TEXT]).cast(kind), pa.array([_LAST_TEXT]).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([_FIRST_BYTES], kind), pa.array([_LAST_BYTES], kind)
    return pa.nulls(1, kind), pa.nulls(1, kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_string_view(kind) or isinstance(kind, pa.JsonType))
