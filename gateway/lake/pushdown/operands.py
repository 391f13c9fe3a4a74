"""Operands: the client's columns and constants, as stored columns and stored values.

A constant is exact: an integer or fraction of a unit, never a rounded float. A
comparison is rewritten so that the literal is a value the column could hold
(`i32 > 2.5` becomes `i32 > 2`), or so that no literal is left (`i8 < 1000` becomes
`i8 IS NOT NULL`). Engines then never convert, round or overflow anything.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

import pyarrow as pa

from gateway.lake.pushdown.conditions import (
    ALWAYS,
    NEVER,
    Compare,
    Condition,
    NaN,
    Null,
    StoredValue,
    Target,
    all_of,
    any_of,
)
from gateway.lake.values.leaves import sortable_bytes
from gateway.lake.values.types import StoredForm
from gateway.wire.filter_tree import INTEGER_BOUNDS, Cast, ColumnRef, Constant, Expression, Operator, TypeId, ValueType


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a client's column is stored: the engine's column, and the type its reader produces.

    `exact_statistics` says that the log's minimum and maximum of this column are known to
    be right, NaN included, as Spark writes them. It matters to floats and to decimals of
    more than 15 digits alone: unless it is set, no file is skipped by those. `form` says
    what stored values stand for; without it they are themselves.
    """

    column: str
    type: pa.DataType
    exact_statistics: bool = False
    form: StoredForm | None = None


class Bindings:
    """The client's column names (and `rowid`) -> stored columns.

    Names match exactly, else case-insensitively if only one does. What is not bound
    is not pushed down: leave out columns that an engine compares by a collation, and
    columns whose reader changes values on the way (rounding, recoding).
    """

    def __init__(self, columns: Mapping[str, Binding]) -> None:
        self._exact = dict(columns)
        self._folded: dict[str, Binding | None] = {}
        for name, binding in columns.items():
            self._folded[name.lower()] = None if name.lower() in self._folded else binding

    def find(self, name: str) -> Binding | None:
        return self._exact.get(name) or self._folded.get(name.lower())


class Family(Enum):
    """What values are compared as. Only operands of one family meet."""

    NUMBER = "number"  # integers and decimals
    FLOAT = "float"
    CALENDAR = "calendar"  # dates, and timestamps without a zone
    INSTANT = "instant"  # timestamps with a zone: UTC
    CLOCK = "clock"  # times of day
    TEXT = "text"
    BYTES = "bytes"
    TRUTH = "truth"
    OTHER = "other"  # only ever tested for NULL


_DAY = 86_400
# Integers that are stored as bytes, in an order that sorts like the numbers.
_WIDE = {"hugeint": TypeId.HUGEINT, "uhugeint": TypeId.UHUGEINT}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FAMILIES: dict[TypeId, tuple[Family, Fraction]] = {
    **dict.fromkeys(INTEGER_BOUNDS, (Family.NUMBER, Fraction(1))),
    TypeId.DATE: (Family.CALENDAR, Fraction(1, _DAY)),
    TypeId.TIMESTAMP_S: (Family.CALENDAR, Fraction(1)),
    TypeId.TIMESTAMP_MS: (Family.CALENDAR, Fraction(10**3)),
    TypeId.TIMESTAMP: (Family.CALENDAR, Fraction(10**6)),
    TypeId.TIMESTAMP_NS: (Family.CALENDAR, Fraction(10**9)),
    TypeId.TIMESTAMPTZ: (Family.INSTANT, Fraction(10**6)),
    TypeId.TIME: (Family.CLOCK, Fraction(10**6)),
    TypeId.TIME_NS: (Family.CLOCK, Fraction(10**9)),
    TypeId.FLOAT: (Family.FLOAT, Fraction(1)),
    TypeId.DOUBLE: (Family.FLOAT, Fraction(1)),
    TypeId.VARCHAR: (Family.TEXT, Fraction(1)),
    TypeId.UUID: (Family.TEXT, Fraction(1)),
    TypeId.BLOB: (Family.BYTES, Fraction(1)),
    TypeId.BOOLEAN: (Family.TRUTH, Fraction(1)),
}


def family_of(type_: ValueType) -> tuple[Family, Fraction]:
    """A DuckDB type's family, and how many of its units make one base unit (1, or a second)."""
    if type_.id is TypeId.DECIMAL:
        return Family.NUMBER, Fraction(10**type_.scale)
    return _FAMILIES.get(type_.id, (Family.OTHER, Fraction(1)))


@dataclass(frozen=True, slots=True)
class Field:
    """A stored column as an operand, possibly seen through casts that keep its order.

    `units` is how many stored units make one base unit of the family. `precision` is
    set when the client compares it as a float of that many bits; `whole_days` when it
    compares the date of a timestamp.
    """

    target: Target
    family: Family
    units: Fraction = Fraction(1)
    precision: int | None = None
    whole_days: bool = False


Operand = Field | Constant


def operand_of(expression: Expression, bindings: Bindings) -> Operand | None:
    """A column or a constant under casts that keep its value; None for all else."""
    casts: list[ValueType] = []
    while isinstance(expression, Cast) and not expression.is_try:
        casts.append(expression.type)
        expression = expression.child
    operand: Operand | None = None
    if isinstance(expression, Constant):
        operand = expression
    elif isinstance(expression, ColumnRef):
        operand = _field(expression, bindings)
    declared = expression.type if isinstance(expression, ColumnRef | Constant) else None
    for type_ in reversed(casts):
        if operand is None or declared is None:
            return None
        operand = _cast_constant(operand, type_) if isinstance(operand, Constant) else _cast(operand, declared, type_)
        declared = type_
    return operand


def _field(column: ColumnRef, bindings: Bindings) -> Field | None:
    binding = bindings.find(column.name)
    if binding is None:
        return None
    stored, form, path = binding.type, binding.form, []
    for name in column.path:
        member = _member(stored, name)
        if member is None:
            return None
        stored = member.type
        form = None if form is None else next((part for part in form.parts if part.name == member.name), None)
        path.append(member.name)
    meaning = None if form is None else form.meaning
    family, units = _stored_as(column.type, stored, meaning)
    return Field(Target(binding.column, stored, tuple(path), binding.exact_statistics, meaning), family, units)


def _member(stored: pa.DataType, name: str) -> pa.Field | None:
    if not pa.types.is_struct(stored):
        return None
    exact = [field for field in stored if field.name == name]
    candidates = exact or [field for field in stored if field.name.lower() == name.lower()]
    return candidates[0] if len(candidates) == 1 else None


def _stored_as(declared: ValueType, stored: pa.DataType, meaning: str | None) -> tuple[Family, Fraction]:
    """Whether stored values compare like the declared type's; if not, they are only NULL or not."""
    family, units = family_of(declared)
    if meaning in _WIDE:
        fits = declared.id is _WIDE[meaning]
    elif family is Family.NUMBER and _is_whole(stored):
        fits = units == 1
    elif family is Family.NUMBER:
        fits = bool(pa.types.is_decimal128(stored) and units == 10**stored.scale)
    elif family in (Family.CALENDAR, Family.INSTANT) and pa.types.is_timestamp(stored):
        fits = declared.id is not TypeId.DATE and (stored.tz is not None) == (family is Family.INSTANT)
        units = Fraction(_PER_SECOND[stored.unit])
    elif family is Family.CALENDAR and pa.types.is_date32(stored):
        fits = declared.id is TypeId.DATE
    elif family in (Family.CLOCK, Family.CALENDAR):
        # TIME, TIME_NS and TIMESTAMP_NS have no Delta type: a long in the declared unit.
        fits = pa.types.is_int64(stored) and (family is Family.CLOCK or declared.id is TypeId.TIMESTAMP_NS)
    else:
        fits = _fits_plainly(declared, family, stored)
    return (family, units) if fits else (Family.OTHER, Fraction(1))


def _is_whole(stored: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(stored) or (pa.types.is_decimal128(stored) and stored.scale == 0))


def _fits_plainly(declared: ValueType, family: Family, stored: pa.DataType) -> bool:
    types = pa.types
    if family is Family.FLOAT:
        return bool(types.is_float32(stored) if declared.id is TypeId.FLOAT else types.is_float64(stored))
    tests = {
        Family.TEXT: (types.is_string, types.is_large_string, types.is_string_view),
        Family.BYTES: (types.is_binary, types.is_large_binary, types.is_binary_view),
        Family.TRUTH: (types.is_boolean,),
    }
    return any(bool(test(stored)) for test in tests.get(family, ()))


def _cast(field: Field, source: ValueType, type_: ValueType) -> Field | None:
    """A column under one more cast. A cast that may fail is as good as none: if it fails, so does the query."""
    family, units = family_of(type_)
    if field.family is Family.OTHER or field.whole_days or field.precision is not None:
        return None
    if field.family is Family.FLOAT:
        is_wide_enough = type_.id is TypeId.DOUBLE or source.id is TypeId.FLOAT
        return field if family is Family.FLOAT and is_wide_enough else None
    if field.family is Family.NUMBER and family is Family.FLOAT:
        return replace(field, precision=53 if type_.id is TypeId.DOUBLE else 24)
    if source.id is TypeId.TIMESTAMP and type_.id is TypeId.DATE:
        return replace(field, whole_days=True)
    if field.family is not family:
        return None
    if family in (Family.NUMBER, Family.CALENDAR, Family.CLOCK):
        # To a coarser unit DuckDB rounds.
        return field if units >= family_of(source)[1] else None
    return field if type_ == source else None


def _cast_constant(constant: Constant, type_: ValueType) -> Constant | None:
    """A constant under a cast, if it comes out with exactly the same value."""
    if constant.value is None or constant.type == type_:
        return Constant(type_, constant.value)
    family, units = family_of(type_)
    if family_of(constant.type)[0] is not family or family not in (Family.NUMBER, Family.CALENDAR):
        return None
    if is_infinite(constant):
        return None
    exact = number_of(constant) * units
    return Constant(type_, exact.numerator) if exact.denominator == 1 else None


def number_of(constant: Constant) -> Fraction:
    """A constant that counts units, in base units."""
    assert isinstance(constant.value, int)
    return constant.value / family_of(constant.type)[1]


def is_infinite(constant: Constant) -> bool:
    """Whether this is one of DuckDB's infinite dates or timestamps, which keep no distance to others."""
    if family_of(constant.type)[0] not in (Family.CALENDAR, Family.INSTANT) or not isinstance(constant.value, int):
        return False
    return abs(constant.value) >= (2**31 - 1 if constant.type.id is TypeId.DATE else 2**63 - 1)


def compare_constant(field: Field, operator: Operator, constant: Constant) -> Condition:
    """A column against a constant that is not NULL, by one of the six comparisons."""
    value, family = constant.value, family_of(constant.type)[0]
    if field.precision is not None and isinstance(value, float):
        return _compare_rounded(field, operator, value)
    if family is not field.family or field.precision is not None or family is Family.OTHER:
        return ALWAYS
    if isinstance(value, float):
        return _compare_float(field.target, operator, value)
    if family in (Family.TEXT, Family.BYTES, Family.TRUTH) and isinstance(value, bool | str | bytes):
        return Compare(field.target, operator, value)
    if isinstance(value, int) and not field.whole_days and family_of(constant.type)[1] == field.units:
        return _compare_number(field.target, operator, value)
    if is_infinite(constant):
        return ALWAYS
    if field.whole_days:
        return _compare_day(field, operator, number_of(constant))
    return _compare_number(field.target, operator, number_of(constant) * field.units)


def _bounds(target: Target) -> tuple[int, int]:
    stored = target.type
    if target.meaning in _WIDE:
        return INTEGER_BOUNDS[_WIDE[target.meaning]]
    if pa.types.is_decimal128(stored):
        return 1 - 10**stored.precision, 10**stored.precision - 1
    bits: int = stored.bit_width
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _compare_number(target: Target, operator: Operator, exact: Fraction | int) -> Condition:
    """A column of counted units against an exact number of them."""
    low, high = _bounds(target)
    below, above = math.floor(exact), math.ceil(exact)
    match operator:
        case Operator.EQUAL | Operator.NOT_EQUAL:
            if below == above and low <= below <= high:
                return Compare(target, operator, _stored_number(target, below))
            return NEVER if operator is Operator.EQUAL else Null(target, negated=True)
        case Operator.LESS | Operator.GREATER_EQUAL:
            bound, is_least = above, operator is Operator.GREATER_EQUAL
            all_pass, none_pass = (bound <= low, bound > high) if is_least else (bound > high, bound <= low)
        case _:
            bound, is_least = below, operator is Operator.GREATER
            all_pass, none_pass = (bound < low, bound >= high) if is_least else (bound >= high, bound < low)
    if none_pass:
        return NEVER
    return Null(target, negated=True) if all_pass else Compare(target, operator, _stored_number(target, bound))


def _stored_number(target: Target, number: int) -> StoredValue:
    return sortable_bytes(number, target.meaning) if target.meaning in _WIDE else number


def _compare_day(field: Field, operator: Operator, seconds: Fraction) -> Condition:
    """The date of a timestamp: the day's first moment, or the next day's, takes the date's place."""
    start, end = seconds * field.units, (seconds + _DAY) * field.units
    less, at_least = Operator.LESS, Operator.GREATER_EQUAL
    match operator:
        case Operator.EQUAL:
            return all_of([_compare_number(field.target, at_least, start), _compare_number(field.target, less, end)])
        case Operator.NOT_EQUAL:
            return any_of([_compare_number(field.target, less, start), _compare_number(field.target, at_least, end)])
        case Operator.LESS | Operator.GREATER_EQUAL:
            return _compare_number(field.target, operator, start)
        case _:
            return _compare_number(field.target, less if operator is Operator.LESS_EQUAL else at_least, end)


def _compare_rounded(field: Field, operator: Operator, value: float) -> Condition:
    """A number the client compares as a float: its rounding may move it across the constant."""
    target, present = field.target, Null(field.target, negated=True)
    if not math.isfinite(value):
        is_above = value > 0 or math.isnan(value)
        passes = {Operator.LESS, Operator.LESS_EQUAL} if is_above else {Operator.GREATER, Operator.GREATER_EQUAL}
        return present if operator in passes | {Operator.NOT_EQUAL} else NEVER
    exact = Fraction(value) * field.units
    low, high = _bounds(target)
    if field.units == 1 and max(-low, high) <= 2 ** (field.precision or 0):
        return _compare_number(target, operator, exact)
    # DuckDB's conversions are a few units in the last place off at worst.
    slack = abs(exact) / 2 ** ((field.precision or 0) - 6)
    at_least = _compare_number(target, Operator.GREATER_EQUAL, exact - slack)
    at_most = _compare_number(target, Operator.LESS_EQUAL, exact + slack)
    match operator:
        case Operator.EQUAL:
            return all_of([at_least, at_most])
        case Operator.NOT_EQUAL:
            return present
        case Operator.LESS | Operator.LESS_EQUAL:
            return at_most
        case _:
            return at_least


def _compare_float(target: Target, operator: Operator, value: float) -> Condition:
    """A float column. DuckDB: NaN is one value above all others, and -0.0 is 0.0.

    Engines may order -0.0 before 0.0 and a NaN with a sign below everything, and file
    statistics know nothing of NaN: every condition that NaN meets asks for it by name.
    """
    nan, zeros = NaN(target), (0.0, -0.0) if value == 0 else (value,)
    if math.isnan(value):
        return _compare_nan(target, operator)
    if pa.types.is_float32(target.type):
        below, above = _singles_around(value)
    else:
        below = above = value
    match operator:
        case Operator.EQUAL:
            return any_of(Compare(target, operator, zero) for zero in zeros) if below == above else NEVER
        case Operator.NOT_EQUAL:
            others = all_of(Compare(target, operator, zero) for zero in zeros)
            return any_of([others, nan]) if below == above else Null(target, negated=True)
        case Operator.LESS:
            return Compare(target, operator, -0.0 if above == 0 else above)
        case Operator.LESS_EQUAL:
            return Compare(target, operator, 0.0 if below == 0 else below)
        case Operator.GREATER:
            return any_of([Compare(target, operator, 0.0 if below == 0 else below), nan])
        case _:
            return any_of([Compare(target, operator, -0.0 if above == 0 else above), nan])


def _compare_nan(target: Target, operator: Operator) -> Condition:
    match operator:
        case Operator.EQUAL | Operator.GREATER_EQUAL:
            return NaN(target)
        case Operator.GREATER:
            return NEVER
        case _:
            return Null(target, negated=True)


def _singles_around(value: float) -> tuple[float, float]:
    """The 32-bit floats next below and next above a double, or twice the value itself if it is one."""
    if math.isinf(value):
        return value, value
    largest = 3.4028234663852886e38
    if abs(value) > largest:
        return (largest, math.inf) if value > 0 else (-math.inf, -largest)
    (near,) = struct.unpack("<f", struct.pack("<f", value))
    if near == value:
        return value, value
    (bits,) = struct.unpack("<i", struct.pack("<f", near))
    # One step of the bits is one float, away from zero on either side of it.
    is_outward = (near < value) == (bits >= 0)
    (other,) = struct.unpack("<f", struct.pack("<i", bits + (1 if is_outward else -1)))
    return (near, other) if near < value else (other, near)
