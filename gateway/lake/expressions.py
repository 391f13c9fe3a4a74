"""Delta's SQL expressions in DuckDB's dialect.

Checks and defaults are written in Spark SQL; the client parses them with
DuckDB's parser, and one that it cannot read fails the whole table. So only
expressions made of parts that mean the same in both dialects are passed on.
The others are left out: Delta itself still enforces a check on every write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from gateway.catalog.names import fold


class _Named(Protocol):
    @property
    def name(self) -> str: ...


# Nothing here can fail, depend on a time zone, or compare differently; division is out, since Spark's and
# DuckDB's differ, and so is LIKE, whose escape rules do.
_SAME_IN_BOTH: tuple[type[exp.Expr], ...] = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.And,
    exp.Or,
    exp.Not,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Neg,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Coalesce,
    exp.Length,
    exp.Upper,
    exp.Lower,
    exp.Abs,
)
_NOW = {"current_timestamp()": "current_timestamp", "current_date()": "current_date", "now()": "now()"}


def to_duckdb(expression: str, columns: Sequence[_Named]) -> str | None:
    """The expression as DuckDB reads it, or None when that is not certain."""
    if (clock := _NOW.get(expression.strip().lower())) is not None:
        return clock
    if "\\" in expression:
        return None  # an escape in Spark's string literals, a plain character in DuckDB's
    try:
        tree = sqlglot.parse_one(expression, dialect="spark")
    except (SqlglotError, RecursionError):
        return None
    if tree is None or not _is_portable(tree, {fold(column.name) for column in columns}):
        return None
    return tree.sql(dialect="duckdb")


def _is_portable(tree: exp.Expr, names: set[str]) -> bool:
    return all(
        isinstance(node, _SAME_IN_BOTH)
        and not (isinstance(node, exp.Column) and (node.table or fold(node.name) not in names))
        for node in tree.walk()
    )
