"""Column statistics out of the Delta log alone, never narrower than the data.

DuckDB trusts the statistics that it gets and leaves rows out by it. So a bound is given
only where every file proves one: deletion vectors only make bounds wider than
needed, timestamps are cut to milliseconds (the upper bound is moved up), long
texts may be cut without a trace (no bound), floats may hide NaN (no bound),
decimals of many digits may have been rounded (no bound).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.capabilities import ColumnStatistics
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.values.types import StoredForm

_FLOAT_DIGITS = 15  # what a 64-bit float keeps of a decimal; some writers take decimals through one
_MAYBE_CUT = 32  # characters; writers cut longer texts to this many
_CUT_OFF = 999  # microseconds that may be cut off; a whole millisecond more could be a time that nobody can say


def column_statistics(snapshot: LogSnapshot, column: Column) -> ColumnStatistics:
    if snapshot.files.num_rows == 0:
        return ColumnStatistics()
    low, high = _client_bounds(column.form, *_bounds(snapshot, column))
    may_have_null, may_have_value = _presence(snapshot, column)
    return ColumnStatistics(low, high, may_have_null, may_have_value)


def _presence(snapshot: LogSnapshot, column: Column) -> tuple[bool, bool]:
    rows = snapshot.files.column("num_records")
    if column.name in snapshot.partition_columns:
        values = snapshot.file_values(column, "min")
        if values is None:
            return True, True
        return values.null_count > 0, values.null_count < len(values)
    nulls = snapshot.file_values(column, "null_count")
    if nulls is None or nulls.null_count or rows.null_count or not pa.types.is_integer(nulls.type):
        return column.nullable, True
    # With deletion vectors the counts are of all rows, deleted ones too: 0 and "all of them" stay proofs.
    return pc.max(nulls).as_py() > 0, not pc.all(pc.equal(nulls, rows)).as_py()


def _bounds(snapshot: LogSnapshot, column: Column) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    kind = column.type
    if pa.types.is_boolean(kind):
        return pa.scalar(False), pa.scalar(True)
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind):
        return None, None
    exact = column.name in snapshot.partition_columns
    if _may_be_rounded(kind) and not exact:
        return None, None
    lows = _proven(snapshot, column, "min")
    highs = _proven(snapshot, column, "max")
    low = None if lows is None else _lower(pc.min(lows), kind)
    high = None if highs is None else _upper(highs, kind, exact=exact)
    return (low, high) if low is not None and high is not None else (None, None)


def _client_bounds(
    form: StoredForm, low: pa.Scalar | None, high: pa.Scalar | None
) -> tuple[pa.Scalar | None, pa.Scalar | None]:
    """Bounds of stored values as bounds of the client's; unknown where their order or their precision differs."""
    if low is None or high is None or form.is_plain or form.meaning == "json":
        return low, high
    declared = form.declared.type
    match form.meaning:
        case "utinyint" | "usmallint" | "uinteger" | "time" | "time_ns" | "timestamp_ns":
            try:
                return low.cast(declared), high.cast(declared)
            except pa.ArrowInvalid:  # others wrote what does not fit
                return None, None
        case "timestamp_s" | "timestamp_ms":
            micros = 10**6 if form.meaning == "timestamp_s" else 10**3
            first, last = (bound.cast(pa.int64()).as_py() for bound in (low, high))
            bounds = pa.array([first // micros, -(-last // micros)], pa.int64()).cast(declared)
            return bounds[0], bounds[1]
    return None, None


def _may_be_rounded(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind)) and kind.precision > _FLOAT_DIGITS


def _proven(snapshot: LogSnapshot, column: Column, kind: str) -> pa.ChunkedArray | None:
    """The bound of each file that has values at all; None when a file might have values without a bound."""
    values = snapshot.file_values(column, kind)
    if values is None:
        return None
    if column.name in snapshot.partition_columns or values.null_count == 0:
        return values.drop_null()
    nulls = snapshot.file_values(column, "null_count")
    if nulls is None:
        return None
    empty = pc.fill_null(pc.equal(nulls, snapshot.files.column("num_records")), False)
    if not pc.all(pc.or_(pc.is_valid(values), empty)).as_py():
        return None
    return values.drop_null()


def _lower(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    return None if not value.is_valid else value.cast(kind)


def _upper(values: pa.ChunkedArray, kind: pa.DataType, *, exact: bool) -> pa.Scalar | None:
    if pa.types.is_string(kind):
        if len(values) == 0 or (not exact and pc.max(pc.utf8_length(values)).as_py() >= _MAYBE_CUT):
            return None
        return pa.scalar(max(values.to_pylist(), key=lambda text: text.encode("utf-8")), kind)
    top = pc.max(values)
    if not top.is_valid:
        return None
    if pa.types.is_timestamp(kind) and not exact:
        return pa.scalar(min(top.cast(pa.int64()).as_py() + _CUT_OFF, 2**63 - 1), pa.int64()).cast(kind)
    return top.cast(kind)
