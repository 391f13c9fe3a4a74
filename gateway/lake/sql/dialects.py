"""SQL expressions between Delta's dialect, which is Spark's, and DuckDB's.

Checks and defaults are stored in Spark SQL; the client parses and binds them
with DuckDB, and one that it cannot read fails the whole table. So only
expressions made of parts that mean the same in both dialects are passed on.
Of those that others wrote, the rest is left out: Delta itself still enforces a
check on every write. Of those that a client writes, the rest is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from enum import Enum, auto
from typing import Protocol

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from gateway.catalog.names import fold


class _Typed(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def type(self) -> pa.DataType: ...


class _Family(Enum):
    """What a part of an expression is. Both dialects compare members of one family alike."""

    NUMBER = auto()
    WHOLE = auto()  # a number without a fraction, which both write alike
    SMALL = auto()  # a number, but Spark computes with it in wider types than DuckDB does
    TEXT = auto()
    DAY = auto()
    MOMENT = auto()  # without a zone; to be compared with its like alone, as the next one
    INSTANT = auto()
    BOOLEAN = auto()
    NULL = auto()
    OPAQUE = auto()  # only to be asked whether it is null


_WIDE = {_Family.NUMBER, _Family.WHOLE}
_NUMBERS = {*_WIDE, _Family.SMALL}
_CLAUSES = {_Family.BOOLEAN, _Family.NULL}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_NOW = {"current_timestamp()": "current_timestamp", "current_date()": "current_date", "now()": "now()"}


def to_duckdb(expression: str, columns: Sequence[_Typed]) -> str | None:
    """The expression as DuckDB reads it, or None when that is not certain."""
    if (clock := _NOW.get(expression.strip().lower())) is not None:
        return clock
    if "\\" in expression:
        return None  # an escape in Spark's string literals, a plain character in DuckDB's
    try:
        tree = sqlglot.parse_one(expression, dialect="spark")
        if _family(tree, {fold(column.name): _column_family(column.type) for column in columns}) is None:
            return None
        return tree.sql(dialect="duckdb", comments=False)
    except (SqlglotError, RecursionError):
        return None


def to_spark(expression: exp.Expr, columns: Sequence[_Typed]) -> str | None:
    """An expression parsed as DuckDB's, in Spark SQL; None when it is not certain to mean the same there."""
    try:
        if _family(expression, {fold(column.name): _column_family(column.type) for column in columns}) is None:
            return None
        return expression.sql(dialect="spark", comments=False, identify=True)
    except (SqlglotError, RecursionError):
        return None


def is_condition(expression: exp.Expr, columns: Sequence[_Typed]) -> bool:
    """Whether the expression, which `to_spark` translates, is true or false."""
    return _family(expression, {fold(column.name): _column_family(column.type) for column in columns}) in _CLAUSES


def _column_family(kind: pa.DataType) -> _Family:
    if pa.types.is_integer(kind):
        return _Family.SMALL if kind.bit_width < 32 else _Family.WHOLE
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _Family.MOMENT if kind.tz is None else _Family.INSTANT
    # Not 32-bit floats, which DuckDB compares with 0.1 as floats and Spark as doubles.
    if pa.types.is_decimal(kind) or pa.types.is_float64(kind):
        return _Family.NUMBER
    families = {pa.string(): _Family.TEXT, pa.date32(): _Family.DAY, pa.bool_(): _Family.BOOLEAN}
    return families.get(kind, _Family.OPAQUE)


def _family(node: exp.Expr | None, columns: Mapping[str, _Family]) -> _Family | None:
    """The family of an expression, or None where the dialects might differ.

    Division is out, since Spark's and DuckDB's differ, and so are LIKE, whose escape
    rules do, and `upper` and `lower`, which disagree about the letter ß.
    """
    match node:
        case exp.Column() if not node.table:
            return columns.get(fold(node.name))
        case exp.Literal():
            return _Family.TEXT if node.is_string else _Family.NUMBER
        case exp.Boolean():
            return _Family.BOOLEAN
        case exp.Null():
            return _Family.NULL
        case exp.Paren():
            return _family(node.this, columns)
        case exp.And() | exp.Or() | exp.Not():
            return _Family.BOOLEAN if _all_among(_CLAUSES, list(node.iter_expressions()), columns) else None
        case exp.Neg() | exp.Abs() | exp.Add() | exp.Sub() | exp.Mul():
            return _Family.NUMBER if _all_among(_WIDE, list(node.iter_expressions()), columns) else None
        case exp.Length():
            return _Family.NUMBER if _all_among({_Family.TEXT}, [node.this], columns) else None
        case exp.Coalesce():
            return _common([node.this, *node.expressions], columns)
        case exp.Is():
            return _is_test(node, columns)
        case exp.In() if node.expressions:
            return _comparison([node.this, *node.expressions], columns)
        case exp.Between() if not node.args.get("symmetric"):
            return _comparison([node.this, node.args["low"], node.args["high"]], columns)
    return _comparison([node.left, node.right], columns) if isinstance(node, _COMPARISONS) else _rarer(node, columns)


def _rarer(node: exp.Expr | None, columns: Mapping[str, _Family]) -> _Family | None:
    match node:
        case exp.Mod() if _is_nonzero(node.expression):
            return _Family.NUMBER if _all_among(_WIDE, [node.this], columns) else None
        case exp.Like():
            return _Family.BOOLEAN if _is_pattern(node, columns) else None
        case exp.DPipe():
            return _Family.TEXT if _all_among({_Family.TEXT}, [node.left, node.right], columns) else None
        case exp.Case() if node.this is None:
            return _case(node, columns)
        case exp.Concat() if node.args.get("coalesce"):  # as DuckDB has it: NULLs are left out
            return _Family.TEXT if _all_among({_Family.TEXT}, node.expressions, columns) else None
        case exp.Cast():  # and TRY_CAST, as which Spark's CAST is parsed: none of these can fail
            return _cast(node, columns)
    return None


def _cast(node: exp.Cast, columns: Mapping[str, _Family]) -> _Family | None:
    if node.to.is_type("date"):
        return _Family.DAY if _is_day(node.this) else None
    is_whole = _all_among({_Family.WHOLE, _Family.SMALL}, [node.this], columns)
    return _Family.TEXT if node.to.is_type("text", "varchar") and not node.to.expressions and is_whole else None


def _is_nonzero(node: exp.Expr) -> bool:
    """A remainder of zero is an error in one dialect and NULL in the other."""
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal() and int(node.name) != 0


def _is_pattern(node: exp.Like, columns: Mapping[str, _Family]) -> bool:
    """A backslash in a pattern escapes in one dialect only."""
    pattern = node.expression
    is_plain = isinstance(pattern, exp.Literal) and pattern.is_string and "\\" not in pattern.name
    return is_plain and _all_among({_Family.TEXT}, [node.this], columns)


def _case(node: exp.Case, columns: Mapping[str, _Family]) -> _Family | None:
    branches = node.args["ifs"]
    if not _all_among(_CLAUSES, [branch.this for branch in branches], columns):
        return None
    default = node.args.get("default")
    return _common([*(branch.args["true"] for branch in branches), *([default] if default else [])], columns)


def _all_among(allowed: set[_Family], parts: Sequence[exp.Expr], columns: Mapping[str, _Family]) -> bool:
    return all(_family(part, columns) in allowed for part in parts)


def _is_test(node: exp.Is, columns: Mapping[str, _Family]) -> _Family | None:
    tested, against = _family(node.this, columns), node.expression
    if isinstance(against, exp.Null):
        return None if tested is None else _Family.BOOLEAN
    return _Family.BOOLEAN if isinstance(against, exp.Boolean) and tested in _CLAUSES else None


def _comparison(parts: Sequence[exp.Expr], columns: Mapping[str, _Family]) -> _Family | None:
    return None if _common(parts, columns) is None else _Family.BOOLEAN


def _common(parts: Sequence[exp.Expr], columns: Mapping[str, _Family]) -> _Family | None:
    """The family of parts that can be compared with each other; a day may be compared with a day's text."""
    families = [_family(part, columns) for part in parts]
    if None in families or _Family.OPAQUE in families:
        return None
    known = {family for family in families if family is not None and family is not _Family.NULL}
    if known <= _NUMBERS:
        return _Family.NUMBER if known & _WIDE else next(iter(known), _Family.NULL)
    if known == {_Family.DAY, _Family.TEXT}:
        texts = [part for part, family in zip(parts, families, strict=True) if family is _Family.TEXT]
        return _Family.DAY if all(_is_day(text) for text in texts) else None
    return known.pop() if len(known) == 1 else None


def _is_day(text: exp.Expr) -> bool:
    try:
        return isinstance(text, exp.Literal) and date.fromisoformat(text.name).isoformat() == text.name
    except ValueError:
        return False
