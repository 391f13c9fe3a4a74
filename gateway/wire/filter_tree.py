"""The filter tree: what DuckDB will evaluate, as a small closed set of nodes.

Names, declared types and exact constants, no more. Numbers that have a unit
(decimals, dates, times) are integers, and the unit is in their type, so nothing
ever passes through a float that was not one. How the client spells a filter is
known to `filter_parser`; which parts an engine can use is for the lake to decide.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

MAX_DEPTH = 200
"""No expression is deeper: Python's stack ends at about twice as many levels."""


class TypeId(StrEnum):
    """DuckDB's type ids, spelled as on the wire; OTHER stands for every one not listed."""

    OTHER = "OTHER"
    NULL = "NULL"
    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    UTINYINT = "UTINYINT"
    USMALLINT = "USMALLINT"
    UINTEGER = "UINTEGER"
    UBIGINT = "UBIGINT"
    HUGEINT = "HUGEINT"
    UHUGEINT = "UHUGEINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    VARCHAR = "VARCHAR"
    BLOB = "BLOB"
    UUID = "UUID"
    DATE = "DATE"
    TIME = "TIME"
    TIME_NS = "TIME_NS"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_S = "TIMESTAMP_S"
    TIMESTAMP_MS = "TIMESTAMP_MS"
    TIMESTAMP_NS = "TIMESTAMP_NS"
    TIMESTAMPTZ = "TIMESTAMP WITH TIME ZONE"
    STRUCT = "STRUCT"
    LIST = "LIST"
    MAP = "MAP"
    ARRAY = "ARRAY"


class Operator(StrEnum):
    """Comparisons, as SQL spells them."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    GREATER = ">"
    LESS_EQUAL = "<="
    GREATER_EQUAL = ">="
    DISTINCT = "IS DISTINCT FROM"
    NOT_DISTINCT = "IS NOT DISTINCT FROM"


class Function(StrEnum):
    """The functions the tree knows."""

    PREFIX = "prefix"
    SUFFIX = "suffix"
    CONTAINS = "contains"
    LIKE = "like"
    LIKE_ESCAPE = "like_escape"
    IS_NAN = "isnan"
    CONSTANT_OR_NULL = "constant_or_null"
    ROW = "row"
    COALESCE = "coalesce"


@dataclass(frozen=True, slots=True)
class ValueType:
    """A DuckDB type; width and scale are those of a DECIMAL, else 0."""

    id: TypeId
    width: int = 0
    scale: int = 0


Value: TypeAlias = "bool | int | float | str | bytes | tuple[Constant, ...] | None"


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column by the client's name (`rowid` for the row id), or a member of a struct column."""

    name: str
    type: ValueType
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of a type; None is NULL.

    DECIMAL is the unscaled integer; DATE counts days; TIME and TIMESTAMP count the
    unit of their type; UUID is its canonical text; a STRUCT is a tuple of constants.
    """

    type: ValueType
    value: Value


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: Operator
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class And:
    children: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or:
    children: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Not:
    child: "Expression"


@dataclass(frozen=True, slots=True)
class Between:
    input: "Expression"
    lower: "Expression"
    upper: "Expression"
    lower_inclusive: bool
    upper_inclusive: bool


@dataclass(frozen=True, slots=True)
class In:
    needle: "Expression"
    items: tuple["Expression", ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    child: "Expression"
    negated: bool


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion; with `is_try`, what cannot be converted is NULL instead of an error."""

    child: "Expression"
    type: ValueType
    is_try: bool


@dataclass(frozen=True, slots=True)
class FunctionCall:
    function: Function
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Case:
    """CASE: pairs of condition and result, then the result of ELSE."""

    branches: tuple[tuple["Expression", "Expression"], ...]
    otherwise: "Expression"


Expression: TypeAlias = (
    ColumnRef | Constant | Comparison | And | Or | Not | Between | In | IsNull | Cast | FunctionCall | Case
)


def children_of(node: Expression) -> tuple[Expression, ...]:
    """The direct parts of a node, in order."""
    match node:
        case ColumnRef() | Constant():
            return ()
        case Comparison(_, left, right):
            return (left, right)
        case And(children) | Or(children) | FunctionCall(_, children):
            return children
        case Not(child) | IsNull(child) | Cast(child):
            return (child,)
        case Between(needle, lower, upper):
            return (needle, lower, upper)
        case In(needle, items):
            return (needle, *items)
        case Case(branches, otherwise):
            return (*(part for branch in branches for part in branch), otherwise)


def referenced_columns(conjuncts: Iterable[Expression]) -> frozenset[str]:
    """Names of the columns the conjuncts refer to, as the client spells them."""
    names: set[str] = set()
    waiting = list(conjuncts)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ColumnRef):
            names.add(node.name)
        waiting.extend(children_of(node))
    return frozenset(names)


# What a constant of each type may hold. The parser and the ticket decoder ask the
# same question, so a ticket can bring nothing that a document could not.

INTEGER_BOUNDS: dict[TypeId, tuple[int, int]] = {
    TypeId.TINYINT: (-(2**7), 2**7 - 1),
    TypeId.SMALLINT: (-(2**15), 2**15 - 1),
    TypeId.INTEGER: (-(2**31), 2**31 - 1),
    TypeId.BIGINT: (-(2**63), 2**63 - 1),
    TypeId.UTINYINT: (0, 2**8 - 1),
    TypeId.USMALLINT: (0, 2**16 - 1),
    TypeId.UINTEGER: (0, 2**32 - 1),
    TypeId.UBIGINT: (0, 2**64 - 1),
    TypeId.HUGEINT: (-(2**127), 2**127 - 1),
    TypeId.UHUGEINT: (0, 2**128 - 1),
}
_CLOCKS = (
    TypeId.TIME,
    TypeId.TIME_NS,
    TypeId.TIMESTAMP,
    TypeId.TIMESTAMP_S,
    TypeId.TIMESTAMP_MS,
    TypeId.TIMESTAMP_NS,
    TypeId.TIMESTAMPTZ,
)
_BOUNDS = INTEGER_BOUNDS | {
    TypeId.DATE: INTEGER_BOUNDS[TypeId.INTEGER],
    **dict.fromkeys(_CLOCKS, INTEGER_BOUNDS[TypeId.BIGINT]),
}
_UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_text(value: object) -> bool:
    """Whether a value is a string that can be written as UTF-8 (JSON can spell lone surrogates)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_value(type_: ValueType, value: object) -> bool:
    """Whether a constant of this type may hold this value."""
    if value is None:
        return True
    if type_.id in _BOUNDS:
        low, high = _BOUNDS[type_.id]
        return type(value) is int and low <= value <= high
    match type_.id:
        case TypeId.BOOLEAN:
            return isinstance(value, bool)
        case TypeId.DECIMAL:
            return type(value) is int and abs(value) < 10**type_.width
        case TypeId.FLOAT:
            return isinstance(value, float) and _is_single(value)
        case TypeId.DOUBLE:
            return isinstance(value, float)
        case TypeId.VARCHAR:
            return is_text(value)
        case TypeId.BLOB:
            return isinstance(value, bytes)
        case TypeId.UUID:
            return isinstance(value, str) and _UUID_TEXT.fullmatch(value) is not None
        case TypeId.STRUCT:
            return isinstance(value, tuple) and all(isinstance(member, Constant) for member in value)
        case _:
            return False


def _is_single(value: float) -> bool:
    return not math.isfinite(value) or abs(value) <= 3.4028234663852886e38


def is_type(type_: ValueType) -> bool:
    """Whether width and scale are those DuckDB allows for this type."""
    if type_.id is TypeId.DECIMAL:
        return 1 <= type_.width <= 38 and 0 <= type_.scale <= type_.width
    return type_.width == 0 and type_.scale == 0
