"""How a column's values become another type, in Spark SQL that gives what DuckDB's CAST gives.

Where the two would differ, or a value's text depends on who prints it, there is no
cast. A value that does not fit raises an error in Spark, which fails the statement.
"""

from __future__ import annotations

import pyarrow as pa

_SPARK_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
    pa.uint64(): "DECIMAL(20,0)",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}
DOES_NOT_FIT = "value does not fit"
_TOO_LARGE_FOR_FLOAT = "3.4028235677973366e38D"  # rounds to infinity from here


def cast_expression(value: str, old: pa.DataType, new: pa.DataType) -> str | None:
    """`value` of the old type as the new one; None where there is no sure way."""
    old, new = _plain(old), _plain(new)
    name = _SPARK_NAMES.get(new) or (f"DECIMAL({new.precision},{new.scale})" if pa.types.is_decimal(new) else None)
    if name is None:
        return None
    if old == new:
        return value
    if _is_number(old) and pa.types.is_integer(new):
        return _within(new, _rounded(value, old), name)
    if _is_number(old) and new == pa.float32() and not pa.types.is_integer(old):
        too_large = f"abs({value}) >= {_TOO_LARGE_FOR_FLOAT} AND abs({value}) < double('Infinity')"
        return f"IF({too_large}, CAST(raise_error('{DOES_NOT_FIT}') AS FLOAT), CAST({value} AS FLOAT))"
    is_exact = pa.types.is_integer(old) or pa.types.is_decimal(old)
    allowed = (
        (_is_number(old) and _is_number(new))
        or (pa.types.is_boolean(old) and pa.types.is_integer(new))
        or (pa.types.is_integer(old) and pa.types.is_boolean(new))
        or (old == pa.string())
        or (new == pa.string() and (is_exact or old in (pa.bool_(), pa.date32(), pa.timestamp("us"))))
        or {old, new} == {pa.date32(), pa.timestamp("us")}
    )
    if not allowed:
        return None
    if pa.types.is_unsigned_integer(new):
        return _within(new, value, name)
    return f"CAST({value} AS {name})"


def _plain(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.string_view(), pa.large_string()) or isinstance(kind, pa.JsonType):
        return pa.string()
    return kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _rounded(value: str, old: pa.DataType) -> str:
    """DuckDB rounds a float's half to even and a decimal's away from zero; Spark's cast would cut both."""
    if pa.types.is_floating(old):
        return f"rint({value})"
    return f"round({value})" if pa.types.is_decimal(old) and old.scale > 0 else value


def _within(new: pa.DataType, value: str, name: str) -> str:
    if not pa.types.is_unsigned_integer(new):
        return f"CAST({value} AS {name})"
    most = 2**new.bit_width - 1
    number = f"CAST({value} AS DECIMAL(38,0))"
    outside = f"{number} < 0 OR {number} > {most}"
    return f"IF({outside}, CAST(raise_error('{DOES_NOT_FIT}') AS {name}), CAST({number} AS {name}))"
