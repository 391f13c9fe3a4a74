"""Conditions on Spark's columns that more than one room needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gateway.lake.id_sets import Range

_LISTED = 8  # ids of a range this short are named one by one: Spark looks lists up, and tries conditions in turn


def differs(one: str, other: str, kind: pa.DataType) -> Any:
    """Whether two columns hold different values; NULL is the same as NULL."""
    from pyspark.sql import functions

    left, right = functions.col(one), functions.col(other)
    if _holds_map(kind):  # which Spark cannot compare
        left, right = left.cast("string"), right.cast("string")
    return ~left.eqNullSafe(right)


def _holds_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_map(kind.field(index).type) for index in range(kind.num_fields))


def lies_in(number: Any, ranges: Sequence[Range]) -> Any:
    """Whether a column's number is in one of the ranges."""
    from pyspark.sql import functions

    listed = [each for low, high in ranges if high - low < _LISTED for each in range(low, high + 1)]
    conditions = [number.isin(listed)] if listed else []
    conditions += [
        (number >= functions.lit(low)) & (number <= functions.lit(high))
        for low, high in ranges
        if high - low >= _LISTED
    ]
    return _any_of(conditions) if conditions else functions.lit(False)


def _any_of(conditions: Sequence[Any]) -> Any:
    """Halved and halved again: a chain of thousands would be too deep for Spark."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return _any_of(conditions[:middle]) | _any_of(conditions[middle:])
