"""Conditions as Spark columns, through the Column API and typed literals only."""

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (Spark's own idiom)

from gateway.lake.pushdown.conditions import (
    Among,
    Compare,
    CompareColumns,
    Leaf,
    Match,
    NaN,
    Null,
    Shape,
    StoredValue,
    Target,
)
from gateway.lake.pushdown.datafusion import decimal_text
from gateway.lake.sql.quoting import quoted
from gateway.wire.filter_tree import Operator

_TYPES = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (counts from here, with or without a zone)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
MOST_ITEMS = 500
"""A literal costs half a millisecond on its way to the JVM; longer lists become their range."""


def literal(value: StoredValue, type_: pa.DataType) -> Column | None:
    """A literal of exactly this type, or None if Spark has none; the casts fold away when the query is planned."""
    if isinstance(value, bool | str):
        return F.lit(value)
    if isinstance(value, bytes):
        return F.lit(bytearray(value))
    if isinstance(value, float):
        return F.lit(value).cast("float") if pa.types.is_float32(type_) else F.lit(value)
    if type_ in _TYPES:
        return F.lit(value).cast(_TYPES[type_])
    if pa.types.is_decimal128(type_):
        return F.lit(decimal_text(value, type_.scale)).cast(f"decimal({type_.precision},{type_.scale})")
    if pa.types.is_date32(type_):
        return _day(value)
    if pa.types.is_timestamp(type_) and type_.unit in _PER_SECOND:
        return _moment(value, _PER_SECOND[type_.unit], has_zone=type_.tz is not None)
    return None


def _day(days: int) -> Column | None:
    try:
        return F.lit((date(1970, 1, 1) + timedelta(days)).isoformat()).cast("date")
    except OverflowError:
        return None


def _moment(count: int, per_second: int, *, has_zone: bool) -> Column | None:
    # As text, because a datetime passes through the machine's own time zone on its way.
    seconds, rest = divmod(count, per_second)
    try:
        text = (_EPOCH + timedelta(seconds=seconds, microseconds=rest * 10**6 // per_second)).isoformat()
    except OverflowError:
        return None
    return F.lit(f"{text}Z").cast("timestamp_ltz") if has_zone else F.lit(text).cast("timestamp_ntz")


class SparkDialect:
    """Leaves and junctions as Spark columns; None where a literal has no Spark value."""

    @property
    def false(self) -> Column:
        return F.lit(False)

    def leaf(self, leaf: Leaf) -> Column | None:
        match leaf:
            case Compare(target, operator, value):
                constant = literal(value, target.type)
                return None if constant is None else _compare(_column(target), operator, constant)
            case CompareColumns(left, operator, right):
                return _compare(_column(left), operator, _column(right))
            case Among():
                return self._among(leaf)
            case Null(target, negated):
                return _column(target).isNotNull() if negated else _column(target).isNull()
            case NaN(target):
                return F.isnan(_column(target))
            case Match(_, _, _, negated):
                matches = _match(leaf)
                return ~matches if negated else matches

    def all(self, parts: Sequence[Column]) -> Column:
        return _balanced(Column.__and__, parts)

    def any(self, parts: Sequence[Column]) -> Column:
        return _balanced(Column.__or__, parts)

    def _among(self, leaf: Among) -> Column | None:
        column, type_ = _column(leaf.target), leaf.target.type
        if len(leaf.values) > MOST_ITEMS:
            if leaf.negated:
                return column.isNotNull()
            low, high = (literal(end, type_) for end in leaf.range)
            return None if low is None or high is None else (column >= low) & (column <= high)
        literals = [literal(value, type_) for value in leaf.values]
        if any(item is None for item in literals):
            return None
        listed = column.isin(literals)
        return ~listed if leaf.negated else listed


_OPERATORS: dict[Operator, Callable[[Column, Column], Column]] = {
    Operator.EQUAL: lambda left, right: left == right,
    Operator.NOT_EQUAL: lambda left, right: left != right,
    Operator.LESS: lambda left, right: left < right,
    Operator.GREATER: lambda left, right: left > right,
    Operator.LESS_EQUAL: lambda left, right: left <= right,
    Operator.GREATER_EQUAL: lambda left, right: left >= right,
}


def _compare(left: Column, operator: Operator, right: Column) -> Column:
    return _OPERATORS[operator](left, right)


def _match(leaf: Match) -> Column:
    column = _column(leaf.target)
    match leaf.shape:
        case Shape.SUFFIX:
            return column.endswith(leaf.text)
        case Shape.CONTAINS:
            return column.contains(leaf.text)
        case Shape.LIKE:
            return column.like(leaf.text)


def _column(target: Target) -> Column:
    column = F.col(quoted(target.column))
    for member in target.path:
        column = column.getField(member)
    return column


def _balanced(join: Callable[[Column, Column], Column], parts: Sequence[Column]) -> Column:
    """A chain would be as deep as it is long, and Spark walks it by recursion."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(join, parts[:middle]), _balanced(join, parts[middle:]))
