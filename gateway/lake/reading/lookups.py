"""Rows of one version by their ids, and columns of the rows that a condition names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from gateway.errors import PreconditionError
from gateway.lake.pushdown.conditions import ALWAYS, AllOf, Among, AnyOf, Compare, Condition, Target
from gateway.lake.tables.id_sets import Range, few_ranges
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.wire.filter_tree import Operator

_LISTED = 2_000
_RANGES = 64


RowIds: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns of at least the rows for which the condition is true.

    Where `row_ids` are given, the first column is the row id, and other rows need not come.
    """

    columns: tuple[Column, ...]
    condition: Condition = ALWAYS
    row_ids: pa.Array | None = None

    @property
    def stored(self) -> pa.Schema:
        return pa.schema([(column.name, column.type) for column in self.columns])


def select(
    snapshot: LogSnapshot, columns: Sequence[Column], condition: Condition = ALWAYS, row_ids: pa.Array | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of the stored columns, of at least the rows for which the condition is true."""
    return snapshot.rows(Selection(tuple(columns), condition, row_ids))


def rows_by_id(snapshot: LogSnapshot, row_ids: RowIds, columns: Sequence[Column]) -> pa.Table:
    """The rows with these ids: the id first, then the columns. An id that is stored twice is refused."""
    rowid = snapshot.schema.rowid
    assert rowid is not None
    stored = pa.schema([(column.name, column.type) for column in [rowid, *columns]])
    wanted = distinct(row_ids)
    if len(wanted) == 0:
        return stored.empty_table()
    condition = ids_condition(rowid, wanted.to_pylist())
    found = pa.Table.from_batches(
        # Each batch is filtered as it comes: what the engine has to look through is not kept.
        [_with_ids(batch, wanted) for batch in select(snapshot, [rowid, *columns], condition, wanted)],
        stored,
    )
    if len(pc.unique(found.column(0))) < found.num_rows:
        raise PreconditionError(
            f"table '{snapshot.table}' holds a row id twice; run `deltaport adopt {snapshot.table}` and try again"
        )
    return found


def _with_ids(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    is_wanted = pc.is_in(batch.column(0), wanted)
    # A batch of which all is kept stays as it is; a filtered one is a copy, which lets go of the others.
    return batch if pc.all(is_wanted).as_py() else batch.filter(is_wanted)


def distinct(row_ids: RowIds) -> pa.Array:
    """Each id once, in order."""
    unique = pc.unique(row_ids)
    return unique.take(pc.sort_indices(unique))


def ids_condition(rowid: Column, ordered: Sequence[int]) -> Condition:
    """At least the rows with these ids; many ids are named by the ranges they lie in."""
    target = Target(rowid.name, rowid.type)
    if len(ordered) <= _LISTED:
        return Among(target, tuple(ordered)) if len(ordered) > 1 else Compare(target, Operator.EQUAL, ordered[0])
    return ranges_condition(rowid, [(row_id, row_id) for row_id in ordered])


def ranges_condition(rowid: Column, ranges: Sequence[Range]) -> Condition:
    """At least the rows whose ids lie in the ranges."""
    target = Target(rowid.name, rowid.type)
    return AnyOf(
        tuple(
            AllOf((Compare(target, Operator.GREATER_EQUAL, low), Compare(target, Operator.LESS_EQUAL, high)))
            for low, high in few_ranges(ranges, _RANGES)
        )
    )


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Whether two look-ups found the same ids with the same values; NaN is the same as NaN."""
    if one.num_rows != other.num_rows:
        return False
    one, other = (table.take(pc.sort_indices(table.column(0))) for table in (one, other))
    return all(_same(left, right) for left, right in zip(one.columns, other.columns, strict=True))


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    if left.type != right.type:
        return False
    if left.type.num_fields:
        return bool(left.equals(right)) or repr(left.to_pylist()) == repr(right.to_pylist())  # a NaN deep inside
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    bits = pa.int64() if left.type == pa.float64() else pa.int32()
    plain = [chunked.combine_chunks() for chunked in (left, right)]
    masks = [pc.is_nan(array) for array in plain]
    if not masks[0].equals(masks[1]):
        return False
    filled = [pc.if_else(mask, pa.scalar(0, array.type), array) for mask, array in zip(masks, plain, strict=True)]
    return bool(filled[0].view(bits).equals(filled[1].view(bits)))
