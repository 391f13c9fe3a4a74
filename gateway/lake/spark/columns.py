"""Conditions on Spark's columns that more than one room needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions

from gateway.lake.tables.id_sets import Range
from gateway.lake.tables.schemas import Column

_LISTED = 8  # ids of a range this short are named one by one: Spark looks lists up, and tries conditions in turn


def differs(one: str, other: str, kind: pa.DataType) -> Any:
    """Whether two columns hold different values; NULL is the same as NULL."""
    left, right = functions.col(one), functions.col(other)
    if _holds_map(kind):  # which Spark cannot compare
        left, right = left.cast("string"), right.cast("string")
    return ~left.eqNullSafe(right)


def _holds_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_map(kind.field(index).type) for index in range(kind.num_fields))


def comparable(columns: Sequence[Column]) -> list[Column]:
    """The columns that tell whether a row changed: all but variants, which Spark cannot compare."""
    return [column for column in columns if not _holds_variant(column.type)]


def _holds_variant(kind: pa.DataType) -> bool:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind) and [field.name for field in fields] == ["metadata", "value"]:
        return all(field.type == pa.binary() and not field.nullable for field in fields)
    return any(_holds_variant(field.type) for field in fields)


def lies_in(column: str, ranges: Sequence[Range]) -> Any:
    """Whether a column's number is in one of the ranges.

    Said in SQL: a thousand literals made one by one take the better part of a second.
    """
    listed = [str(each) for low, high in ranges if high - low < _LISTED for each in range(low, high + 1)]
    conditions = [f"{column} IN ({', '.join(listed)})"] if listed else []
    conditions += [f"{column} BETWEEN {low} AND {high}" for low, high in ranges if high - low >= _LISTED]
    return functions.expr(_any_of(conditions) if conditions else "false")


def _any_of(conditions: Sequence[str]) -> str:
    """Halved and halved again: a chain of thousands would be too deep for Spark."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return f"({_any_of(conditions[:middle])} OR {_any_of(conditions[middle:])})"
