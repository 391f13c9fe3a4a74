"""Conditions as SQL text for DataFusion.

Every literal is cast to exactly the column's type, so DataFusion converts no
column, and its file and row group pruning sees `column op literal`.
"""

from collections.abc import Sequence

import pyarrow as pa

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
from gateway.lake.pushdown.inexact_statistics import may_be_off
from gateway.lake.sql.quoting import double_quoted, standard_literal

_INTEGERS = {pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT"}
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_FUNCTIONS = {Shape.SUFFIX: "ends_with", Shape.CONTAINS: "contains"}
_PRUNABLE_ITEMS = 20  # DataFusion prunes files by an IN list up to this length


def render_literal(value: StoredValue, type_: pa.DataType) -> str | None:
    """A literal of exactly this type, or None if there is no such text."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return standard_literal(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS {'REAL' if pa.types.is_float32(type_) else 'DOUBLE'})"
    if type_ in _INTEGERS:
        return f"CAST('{value}' AS {_INTEGERS[type_]})"
    if pa.types.is_decimal128(type_):
        return f"CAST('{decimal_text(value, type_.scale)}' AS DECIMAL({type_.precision},{type_.scale}))"
    if pa.types.is_date32(type_):
        return f"arrow_cast(CAST('{value}' AS INT), 'Date32')"
    if pa.types.is_timestamp(type_):
        zone = "None" if type_.tz is None else f'Some("{type_.tz}")'
        arrow_type = standard_literal(f"Timestamp({_UNITS[type_.unit]}, {zone})")
        return f"arrow_cast(CAST('{value}' AS BIGINT), {arrow_type})"
    return None


def decimal_text(unscaled: int, scale: int) -> str:
    """All digits of a decimal; never an exponent."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else sign + digits


class DataFusionDialect:
    """Leaves and junctions as SQL text; None where a literal has no text."""

    false = "FALSE"

    def leaf(self, leaf: Leaf) -> str | None:
        said = self._say(leaf)
        targets = (leaf.left, leaf.right) if isinstance(leaf, CompareColumns) else (leaf.target,)
        if said is None or not any(may_be_off(target) for target in targets):
            return said
        # A plain condition makes DataFusion load the column's statistics, and where a file's
        # minimum and maximum are equal it returns that value for every row, NaN or not.
        return f"nullif({said}, FALSE)"

    def _say(self, leaf: Leaf) -> str | None:
        match leaf:
            case Compare(target, operator, value):
                literal = render_literal(value, target.type)
                return None if literal is None else f"{_column(target)} {operator.value} {literal}"
            case CompareColumns(left, operator, right):
                return f"{_column(left)} {operator.value} {_column(right)}"
            case Among():
                return self._among(leaf)
            case Null(target, negated):
                return f"{_column(target)} IS {'NOT ' if negated else ''}NULL"
            case NaN(target):
                return f"isnan({_column(target)})"
            case Match():
                return self._match(leaf)

    def all(self, parts: Sequence[str]) -> str:
        return "(" + " AND ".join(parts) + ")"

    def any(self, parts: Sequence[str]) -> str:
        return "(" + " OR ".join(parts) + ")"

    def _among(self, leaf: Among) -> str | None:
        column, type_ = _column(leaf.target), leaf.target.type
        literals = [render_literal(value, type_) for value in leaf.values]
        known = [literal for literal in literals if literal is not None]
        if len(known) < len(literals):
            return None
        items = f"{column} {'NOT ' if leaf.negated else ''}IN ({', '.join(known)})"
        if leaf.negated or len(known) <= _PRUNABLE_ITEMS:
            return items
        low, high = (render_literal(end, type_) for end in leaf.range)
        return f"({column} >= {low} AND {column} <= {high} AND {items})"

    def _match(self, leaf: Match) -> str:
        column, text = _column(leaf.target), standard_literal(leaf.text)
        if leaf.shape is Shape.LIKE:
            return f"{column} {'NOT ' if leaf.negated else ''}LIKE {text}"
        return f"{'NOT ' if leaf.negated else ''}{_FUNCTIONS[leaf.shape]}({column}, {text})"


def _column(target: Target) -> str:
    text = double_quoted(target.column)
    for member in target.path:
        text = f"get_field({text}, {standard_literal(member)})"
    return text
