"""Which files of a snapshot a scan has to look at, as far as the log can tell.

The engines prune by themselves; this tells beforehand how much is left, so that
a look-up in a huge table is not cut into many empty pieces, and afterwards how
well the statistics served. Only estimates depend on it, never a result.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gateway.lake.pushdown.conditions import (
    NEVER,
    AllOf,
    Among,
    AnyOf,
    Compare,
    Condition,
    Null,
    StoredValue,
    Target,
    all_of,
)
from gateway.lake.pushdown.translation import Conditions
from gateway.lake.tables.schemas import Column, TableSchema
from gateway.wire.filter_tree import Operator

_CUT_MILLISECONDS = 1_000  # statistics of timestamps are cut to milliseconds
_MANY_VALUES = 100  # beyond this an IN list counts as the range it spans


class Statistics(Protocol):
    """What is known of each file of a snapshot, or of each row group of a file."""

    @property
    def schema(self) -> TableSchema: ...

    @property
    def files(self) -> pa.Table:
        """A row for each, `num_records` among its columns."""

    def file_values(self, column: Column, kind: str) -> pa.ChunkedArray | None:
        """For each its `min`, `max` or `null_count` of a column; None if not kept."""


def surviving_files(snapshot: Statistics, conditions: Conditions) -> list[int]:
    """Positions of the files that may hold a row for which every condition is true."""
    return files_for(snapshot, all_of([condition for condition in conditions if condition is not None]))


def files_for(snapshot: Statistics, condition: Condition) -> list[int]:
    """Positions of the files that may hold a row for which the condition is true."""
    mask = _may_match(snapshot, condition)
    if mask is None:
        return list(range(snapshot.files.num_rows))
    return [index for index, keep in enumerate(mask.to_pylist()) if keep is not False]


def _may_match(snapshot: Statistics, condition: Condition) -> pa.Array | None:
    """For each file, false where no row can match; None where nothing is known of any file."""
    match condition:
        case AllOf(children):
            known = [mask for child in children if (mask := _may_match(snapshot, child)) is not None]
            return reduce(pc.and_kleene, known) if known else None
        case AnyOf(children):
            masks = [_may_match(snapshot, child) for child in children]
            return None if any(mask is None for mask in masks) else reduce(pc.or_kleene, masks)
        case Compare(target, operator, value):
            return _in_range(snapshot, target, operator, value)
        case Among(target, values, False):
            return _any_in_range(snapshot, target, values)
        case Null(target, negated):
            return _null_test(snapshot, target, negated=negated)
    if condition is NEVER:
        return pa.array([False] * snapshot.files.num_rows)
    return None


def _in_range(snapshot: Statistics, target: Target, operator: Operator, value: StoredValue) -> pa.Array | None:
    bounds = _bounds(snapshot, target)
    if bounds is None:
        return None
    low, high = bounds
    match operator:
        case Operator.EQUAL:
            return pc.and_kleene(pc.less_equal(low, value), pc.greater_equal(high, value))
        case Operator.LESS:
            return pc.less(low, value)
        case Operator.LESS_EQUAL:
            return pc.less_equal(low, value)
        case Operator.GREATER:
            return pc.greater(high, value)
        case Operator.GREATER_EQUAL:
            return pc.greater_equal(high, value)
    return None


def _any_in_range(snapshot: Statistics, target: Target, values: tuple[StoredValue, ...]) -> pa.Array | None:
    bounds = _bounds(snapshot, target)
    if bounds is None:
        return None
    low, high = bounds
    spans = [(value, value) for value in values]
    if len(values) > _MANY_VALUES:
        spans = [(min(values), max(values))]
    return reduce(
        pc.or_kleene,
        (pc.and_kleene(pc.less_equal(low, last), pc.greater_equal(high, first)) for first, last in spans),
    )


def _null_test(snapshot: Statistics, target: Target, *, negated: bool) -> pa.Array | None:
    column = _column(snapshot, target)
    nulls = None if column is None else snapshot.file_values(column, "null_count")
    if nulls is None or not pa.types.is_integer(nulls.type):
        return None
    return pc.less(nulls, snapshot.files.column("num_records")) if negated else pc.greater(nulls, 0)


def _bounds(snapshot: Statistics, target: Target) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
    """The files' bounds in the unit of a stored value, where a comparison of them means what it says."""
    column = _column(snapshot, target)
    if column is None:
        return None
    low, high = snapshot.file_values(column, "min"), snapshot.file_values(column, "max")
    if low is None or high is None:
        return None
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return low, high
    if pa.types.is_date32(kind):
        return low.cast(pa.int32()), high.cast(pa.int32())
    if pa.types.is_timestamp(kind):
        latest = pc.min_element_wise(high.cast(pa.int64()), pa.scalar(2**63 - 1 - _CUT_MILLISECONDS))
        return low.cast(pa.int64()), pc.add(latest, _CUT_MILLISECONDS)
    return None


def _column(snapshot: Statistics, target: Target) -> Column | None:
    if target.path:
        return None
    rowid = snapshot.schema.rowid
    return rowid if rowid is not None and rowid.name == target.column else snapshot.schema.column(target.column)
