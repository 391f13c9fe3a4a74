"""From the columns an engine gives to the stream a client was told.

The stream has every told column in its place with exactly its type, whatever
was asked for: a stream of another shape crashes the client. Columns nobody
asked for are null, made once per type and reused.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from gateway.catalog.capabilities import ScanRequest
from gateway.errors import RequestError
from gateway.lake.schemas import Column, TableSchema, is_rowid, told_type


@dataclass(frozen=True, slots=True)
class Projection:
    """Which stored columns to read, and where each told column comes from (None: nulls)."""

    shape: pa.Schema
    reads: tuple[Column, ...]
    sources: tuple[int | None, ...]


def project(schema: TableSchema, request: ScanRequest) -> Projection:
    reads: list[Column] = []
    sources: list[int | None] = []
    for field in request.shape:
        column = _stored(schema, field) if field.name in request.columns else None
        if column is None:
            sources.append(None)
        else:
            sources.append(len(reads))
            reads.append(column)
    return Projection(request.shape, tuple(reads), tuple(sources))


def _stored(schema: TableSchema, field: pa.Field) -> Column | None:
    if is_rowid(field):
        return schema.rowid
    column = schema.column(field.name)
    if column is None:
        raise RequestError(f"column '{field.name}' no longer exists: the schema changed, attach again")
    if told_type(column.type) != field.type:
        raise RequestError(f"column '{field.name}' changed its type: the schema changed, attach again")
    return column


class Widener:
    """Makes full-width batches. For one stream, not shared between threads."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._nulls: dict[pa.DataType, pa.Array] = {}

    def widen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            self._null(field.type, batch.num_rows) if source is None else _as_told(batch.column(source), field.type)
            for field, source in zip(self._projection.shape, self._projection.sources, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._projection.shape)

    def _null(self, kind: pa.DataType, rows: int) -> pa.Array:
        nulls = self._nulls.get(kind)
        if nulls is None or len(nulls) < rows:
            nulls = self._nulls[kind] = pa.nulls(rows, kind)
        return nulls.slice(0, rows)


def _as_told(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def row_bytes(projection: Projection) -> int:
    """About how many bytes a row of the stream takes on the wire; nulls take their width too."""
    return sum(_type_bytes(field.type) for field in projection.shape)


def _type_bytes(kind: pa.DataType) -> int:
    if kind.num_fields:
        return 8 + 4 * sum(_type_bytes(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 40  # texts and blobs: a view and a guess at the content


def pieces_of(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """A batch cut so that no part is much larger than `max_bytes`; wide rows defy every guess made before."""
    if batch.nbytes <= 2 * max_bytes or batch.num_rows < 2:
        return [batch]
    rows = max(1, batch.num_rows * max_bytes // batch.nbytes)
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
