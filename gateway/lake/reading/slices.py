"""Cutting a scan into slices that together give every row exactly once.

A slice is a range of one column's values. Any boundaries cut correctly, since
ranges cover every value and rows without one belong to the first slice; the
log's statistics only choose a column and boundaries such that few files have
to be read twice. Where no column cuts well, the scan stays whole.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from gateway.errors import MalformedTicketError
from gateway.lake.pushdown.conditions import Compare, Null, Target
from gateway.lake.pushdown.translation import Engine
from gateway.lake.tables.schemas import Column, TableSchema
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.wire.filter_tree import Operator
from gateway.wire.tickets import Bound, Slice

P = TypeVar("P")

_CANDIDATES = 8  # leading columns looked at; sorted tables are sorted by an early one
_WASTE = 1.3  # bytes read by all slices together, as a multiple of the files' own


@dataclass(frozen=True, slots=True)
class FileRange:
    """What a file holds of a column, None where the log does not say, and its size."""

    low: Bound
    high: Bound
    bytes: int


def cut(
    snapshot: LogSnapshot, surviving: Sequence[int], within: Slice | None, target_bytes: int, at_most: int
) -> list[Slice | None]:
    """Slices of about `target_bytes` of the surviving files, inside `within`; [within] where cutting does not pay."""
    sizes = snapshot.files.column("size_bytes").to_pylist()
    if sum(sizes[index] for index in surviving) <= target_bytes or at_most < 2:
        return [within]
    for column in _candidates(snapshot):
        if within is not None and column.name != within.column:
            continue
        ranges = list(_file_ranges(snapshot, column, sizes))
        files = _inside([ranges[index] for index in surviving], within)
        total = sum(file.bytes for file in files)
        count = min(at_most, -(-total // target_bytes))
        if count < 2:
            return [within]
        boundaries = _inner(_boundaries(files, total / count), within)
        if boundaries and bytes_read(files, boundaries) <= _WASTE * total:
            return list(_cut_at(column.name, boundaries, within))
    return [within]


def _candidates(snapshot: LogSnapshot) -> Iterator[Column]:
    """The row id first: it is unique, has statistics, and follows the order in which rows came."""
    schema = snapshot.schema
    if schema.rowid is not None:
        yield schema.rowid
    partitions = [column for column in schema.columns if column.name in snapshot.partition_columns]
    others = [column for column in schema.columns if column.name not in snapshot.partition_columns]
    for column in [*partitions, *others[:_CANDIDATES]]:
        if _is_sliceable(column.type):
            yield column


def _is_sliceable(kind: pa.DataType) -> bool:
    # Types with one order that every engine shares; floats have NaN and two zeros.
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_string(kind))


def _file_ranges(snapshot: LogSnapshot, column: Column, sizes: Sequence[int]) -> Iterator[FileRange]:
    lows, highs = _edges(snapshot, column, "min"), _edges(snapshot, column, "max")
    for low, high, size in zip(lows, highs, sizes, strict=True):
        yield FileRange(low, high, size)


def _edges(snapshot: LogSnapshot, column: Column, kind: str) -> Sequence[Bound]:
    """Each file's bound for a column as a number or text, None where the log has none."""
    values = snapshot.file_values(column, kind)
    if values is None:
        return [None] * snapshot.files.num_rows
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_temporal(values.type):
        values = values.cast(pa.int64())
    bounds: list[Bound] = values.to_pylist()
    return bounds


def _inside(files: list[FileRange], within: Slice | None) -> list[FileRange]:
    return files if within is None else [file for file in files if _overlaps(file, within)]


def _overlaps(file: FileRange, part: Slice) -> bool:
    if file.low is None or file.high is None:
        return True  # nothing known: it has to be read
    return (part.low is None or file.high >= part.low) and (part.high is None or file.low < part.high)  # type: ignore[operator]


def _boundaries(files: Sequence[FileRange], target: float) -> list[Bound]:
    known = sorted((file for file in files if file.low is not None), key=lambda file: file.low)  # type: ignore[arg-type,return-value]
    boundaries: list[Bound] = []
    filled = 0
    for file in known:
        if filled >= target and (not boundaries or boundaries[-1] != file.low) and file.low != known[0].low:
            boundaries.append(file.low)
            filled = 0
        filled += file.bytes
    return boundaries


def _inner(boundaries: Sequence[Bound], within: Slice | None) -> list[Bound]:
    low, high = (None, None) if within is None else (within.low, within.high)
    return [b for b in boundaries if (low is None or b > low) and (high is None or b < high)]  # type: ignore[operator]


def _cut_at(column: str, boundaries: Sequence[Bound], within: Slice | None) -> list[Slice]:
    low, high = (None, None) if within is None else (within.low, within.high)
    return [Slice(column, start, end) for start, end in itertools.pairwise([low, *boundaries, high])]


def bytes_read(files: Sequence[FileRange], boundaries: Sequence[Bound]) -> int:
    """What all slices together read: each file once for every slice that may have a row in it.

    Boundaries are in order. Two searches per file: tables have thousands of files, and as many slices.
    """
    return sum(file.bytes * _slices_of(file, boundaries) for file in files)


def _slices_of(file: FileRange, boundaries: Sequence[Any]) -> int:
    if file.low is None or file.high is None:
        return len(boundaries) + 1  # nothing known: each has to look
    return bisect_right(boundaries, file.high) - bisect_right(boundaries, file.low) + 1


def slice_predicate(engine: Engine[P], piece: Slice | None, schema: TableSchema) -> P | None:
    """The slice's rows, in the engine's words; None where they are all rows. Exact, unlike a pushed down filter."""
    if piece is None:
        return None
    column = _slice_column(piece, schema)
    target = Target(column.name, column.type)
    low = None if piece.low is None else _said(engine, Compare(target, Operator.GREATER_EQUAL, piece.low))
    high = None if piece.high is None else _said(engine, Compare(target, Operator.LESS, piece.high))
    if low is None:
        return None if high is None else engine.any([high, _said(engine, Null(target))])
    return low if high is None else engine.all([low, high])


def _said(engine: Engine[P], leaf: Compare | Null) -> P:
    words = engine.leaf(leaf)
    if words is None:
        raise MalformedTicketError("the ticket's slice does not fit its column")
    return words


def _slice_column(piece: Slice, schema: TableSchema) -> Column:
    rowid = schema.rowid
    column = rowid if rowid is not None and piece.column == rowid.name else schema.column(piece.column)
    bounds = [bound for bound in (piece.low, piece.high) if bound is not None]
    if column is None or not _is_sliceable(column.type):
        raise MalformedTicketError("the ticket's slice is by a column that cannot be sliced")
    if not all(_fits(bound, column.type) for bound in bounds):
        raise MalformedTicketError("the ticket's slice does not fit its column")
    return column


def _fits(bound: int | str, kind: pa.DataType) -> bool:
    if isinstance(bound, str) or pa.types.is_string(kind):
        return isinstance(bound, str) and bool(pa.types.is_string(kind))
    limit = 1 << (int(kind.bit_width) - 1)
    return -limit <= bound < limit
