"""Constraints and defaults as clients write them: parsed as DuckDB's SQL, kept as Spark's.

A text is one expression over the table's own columns and nothing else; what does
not mean the same in both dialects is refused by name. Delta fails a check that is
NULL and DuckDB passes it, so a check is stored within `coalesce(…, true)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Protocol, TypeVar

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from gateway.catalog.names import fold
from gateway.errors import RequestError
from gateway.lake.sql.dialects import is_condition, to_spark

Found = TypeVar("Found")

MAX_TEXT = 10_000
_SHOWN = 80
# Functions that only DuckDB's client evaluates, when it inserts; Spark has no such defaults.
_CLIENT_FUNCTIONS = {"random()", "uuid()", "gen_random_uuid()"}
_NOW = {"now()", "current_timestamp", "current_timestamp()", "get_current_timestamp()"}
_TODAY = {"current_date", "current_date()", "today()"}
_FORBIDDEN = (exp.Query, exp.AggFunc, exp.Window, exp.Placeholder, exp.Parameter, exp.Star)


class Typed(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def type(self) -> pa.DataType: ...


@dataclass(frozen=True, slots=True)
class NamedType:
    """A column as clients know it."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Check:
    """`original` is what the client wrote, `stored` what Delta enforces."""

    original: str
    stored: str


@dataclass(frozen=True, slots=True)
class KeyText:
    columns: tuple[str, ...]
    is_primary: bool


@dataclass(frozen=True, slots=True)
class CheckText:
    expression: str


def translate_check(text: str, columns: Sequence[Typed]) -> Check:
    tree = parse(f"CHECK {_shown(text)}", text, columns)
    translated = to_spark(tree, columns)
    if translated is None or not is_condition(tree, columns):
        raise RequestError(f"CHECK {_shown(text)} cannot be used: it does not surely mean the same in Spark and DuckDB")
    original = tree.sql(dialect="duckdb", comments=False) if "--" in text or "/*" in text else text
    return Check(original, f"coalesce(({translated}), true)")


def stored_check(text: str, columns: Sequence[Typed]) -> str | None:
    """What a client's check is stored as; None when it is none."""
    try:
        return translate_check(text, columns).stored
    except RequestError:
        return None


def translate_default(text: str, column: NamedType) -> str | None:
    """A default as Spark keeps it; None where only the client can have it. `NULL` is no default: see `is_null`."""
    what = f"DEFAULT {_shown(text)}"
    tree = _unwrapped(parse(what, text, ()))
    bare = tree.sql(dialect="duckdb", comments=False).lower()
    if bare in _CLIENT_FUNCTIONS or text.strip().lower() in _CLIENT_FUNCTIONS:
        return None
    literal = _default_literal(text, tree, column.type)
    if literal is None:
        raise RequestError(f"{what} cannot be used for column '{column.name}': it must be a plain value of its type")
    return literal


def is_null(text: str) -> bool:
    return text.strip().strip("()").strip().lower() == "null"


def _default_literal(text: str, tree: exp.Expr, kind: pa.DataType) -> str | None:
    clock = text.strip().lower()
    if pa.types.is_timestamp(kind):
        if clock in _NOW:
            return "current_timestamp()"
        return _moment(tree, kind)
    if pa.types.is_date(kind):
        return "current_date()" if clock in _TODAY else _day(tree)
    if isinstance(tree, exp.Boolean):
        return tree.sql(dialect="spark") if pa.types.is_boolean(kind) else None
    if isinstance(tree, exp.Literal) and tree.is_string:
        is_text = pa.types.is_string(kind) or pa.types.is_string_view(kind) or isinstance(kind, pa.JsonType)
        return tree.sql(dialect="spark") if is_text else None
    return _number(tree, kind)


def _number(tree: exp.Expr, kind: pa.DataType) -> str | None:
    inner = tree.this if isinstance(tree, exp.Neg) else tree
    if not isinstance(inner, exp.Literal) or inner.is_string:
        return None
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return None
    text = tree.sql(dialect="spark")
    try:
        pa.scalar(text.replace(" ", "")).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return text


def _day(tree: exp.Expr) -> str | None:
    text = _quoted_text(tree, "date")
    found = _try(date.fromisoformat, text)
    return None if found is None or found.isoformat() != text else f"DATE '{text}'"


def _moment(tree: exp.Expr, kind: pa.DataType) -> str | None:
    text = _quoted_text(tree, "timestamptz" if kind.tz else "timestampntz", "timestamp")
    found = _try(datetime.fromisoformat, text)
    # A moment without a zone would depend on the zone of whoever reads it.
    if found is None or (found.tzinfo is None) == bool(kind.tz):
        return None
    return f"{'TIMESTAMP' if kind.tz else 'TIMESTAMP_NTZ'} '{found.isoformat(sep=' ')}'"


def _quoted_text(tree: exp.Expr, *types: str) -> str | None:
    if isinstance(tree, exp.Cast) and any(tree.to.is_type(name) for name in types):
        tree = tree.this
    return tree.name if isinstance(tree, exp.Literal) and tree.is_string else None


def _try(parse_text: Callable[[str], Found], text: str | None) -> Found | None:
    try:
        return None if text is None else parse_text(text)
    except ValueError:
        return None


def parse_constraint(text: str) -> KeyText | CheckText:
    """`PRIMARY KEY(a, b)`, `UNIQUE(a)` or `CHECK (…)`; anything else is refused by name."""
    refusal = RequestError(f"the constraint {_shown(text)} is none of PRIMARY KEY, UNIQUE and CHECK")
    if len(text) > MAX_TEXT:
        raise RequestError(f"a constraint is longer than {MAX_TEXT} characters")
    try:
        # As part of a table, which is where the parser knows constraints.
        found = sqlglot.parse(f"CREATE TABLE t (x INT, {text})", dialect="duckdb")
    except (SqlglotError, RecursionError) as error:
        raise refusal from error
    if len(found) != 1 or not isinstance(found[0], exp.Create) or not isinstance(found[0].this, exp.Schema):
        raise refusal
    parts = found[0].this.expressions[1:]
    if len(parts) != 1:
        raise refusal
    part = parts[0].expressions[0] if isinstance(parts[0], exp.Constraint) and parts[0].expressions else parts[0]
    match part:
        case exp.PrimaryKey():
            return KeyText(_key_columns(part.expressions, refusal), is_primary=True)
        case exp.UniqueColumnConstraint() if isinstance(part.this, exp.Schema):
            return KeyText(_key_columns(part.this.expressions, refusal), is_primary=False)
        case exp.CheckColumnConstraint():
            return CheckText(part.this.sql(dialect="duckdb", comments=False))
    raise refusal


def _key_columns(parts: Sequence[exp.Expr], refusal: RequestError) -> tuple[str, ...]:
    names = []
    for part in parts:
        inner = part.this if isinstance(part, exp.Ordered) else part
        inner = inner.this if isinstance(inner, exp.Column) else inner
        if not isinstance(inner, exp.Identifier):
            raise refusal
        names.append(inner.name)
    if not names:
        raise refusal
    return tuple(names)


def parse(what: str, text: str, columns: Sequence[Typed]) -> exp.Expr:
    """One expression over these columns, their names as the table spells them; every defect is reported with `what`."""
    if len(text) > MAX_TEXT:
        raise RequestError(f"an expression is longer than {MAX_TEXT} characters")
    try:
        found = [tree for tree in sqlglot.parse(text, dialect="duckdb") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise RequestError(f"{what} cannot be read as SQL") from error
    if len(found) != 1 or ";" in _without_quotes(text):
        raise RequestError(f"{what} must be one expression")
    tree = found[0]
    if not isinstance(tree, exp.Condition | exp.Paren | exp.Literal | exp.Null) or tree.find(*_FORBIDDEN) is not None:
        raise RequestError(
            f"{what} must be an expression over the row's own columns, without sub-queries or aggregates"
        )
    known = {fold(column.name): column.name for column in columns}
    for column in tree.find_all(exp.Column):
        if column.table or fold(column.name) not in known:
            raise RequestError(f"{what} names the column '{column.name[:60]}', which the table does not have")
        column.set("this", exp.to_identifier(known[fold(column.name)], quoted=True))
    return tree


def _without_quotes(text: str) -> str:
    """The text without what stands in quotes: a semicolon there is a plain character."""
    kept, quote = [], None
    for char in text:
        if quote is None and char in "'\"":
            quote = char
        elif char == quote:
            quote = None
        elif quote is None:
            kept.append(char)
    return "".join(kept)


def _unwrapped(tree: exp.Expr) -> exp.Expr:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def columns_of(text: str, dialect: str) -> frozenset[str]:
    """Folded names of the columns that a stored expression uses; what cannot be parsed may use any: `*`."""
    try:
        tree = sqlglot.parse_one(text, dialect=dialect)
    except (SqlglotError, RecursionError):
        return frozenset("*")
    # In `a.b` the first part may be the column and the second its field.
    return frozenset(fold(part.name) for column in tree.find_all(exp.Column) for part in column.parts)


def renamed(text: str, old: str, new: str) -> str:
    """A client's expression after a column got another name."""
    tree = sqlglot.parse_one(text, dialect="duckdb")
    for column in tree.find_all(exp.Column):
        if fold(column.name) == fold(old):
            column.set("this", exp.to_identifier(new, quoted=True))
    return tree.sql(dialect="duckdb", comments=False)


def _shown(text: str) -> str:
    clean = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return f"'{clean}'" if len(clean) <= _SHOWN else f"'{clean[:_SHOWN]}…'"
