"""From the columns an engine gives to the stream that was declared to the client.

The stream has every declared column in its place with exactly its type, whatever
was asked for: a stream of another shape crashes the client. Columns nobody
asked for are null, made once per type and reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.capabilities import ScanRequest
from gateway.errors import RequestError
from gateway.lake.tables.schemas import Column, TableSchema, declared_type, is_rowid
from gateway.lake.values.codec import decode
from gateway.settings import ScanSettings
from gateway.wire.bodies import value_bytes

_NEGLIGIBLE = 64 << 10  # bytes in a batch that are not worth a copy


@dataclass(frozen=True, slots=True)
class Projection:
    """Which stored columns to read, and where each declared column comes from (None: nulls)."""

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
    if not declared_type(column).equals(field.type, check_metadata=True):
        raise RequestError(f"column '{field.name}' changed its type: the schema changed, attach again")
    return column


class Widener:
    """Makes full-width batches. For one stream, not shared between threads."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._nulls: dict[pa.DataType, pa.Array] = {}

    def widen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        reads = self._projection.reads
        arrays = [
            self._null(field.type, batch.num_rows)
            if source is None
            else decode(batch.column(source), reads[source].form, field.type)
            for field, source in zip(self._projection.shape, self._projection.sources, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._projection.shape)

    def _null(self, kind: pa.DataType, rows: int) -> pa.Array:
        nulls = self._nulls.get(kind)
        if nulls is None or len(nulls) < rows:
            nulls = self._nulls[kind] = pa.nulls(rows, kind)
        return nulls.slice(0, rows)


def rows_per_batch(kinds: Iterable[pa.DataType], boundless_bytes: int, settings: ScanSettings) -> int:
    """How many rows of these types make a batch of about the wanted bytes.

    `boundless_bytes` is what their values without a fixed width take in a wide row.
    """
    width = max(sum(value_bytes(kind) for kind in kinds), boundless_bytes, 1)
    return max(1, min(settings.batch_rows, settings.batch_bytes // width))


def pieces_of(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """A batch halved until no part is much larger than `max_bytes`; wide rows defy every guess made before."""
    return [_compact(part) for part in _halved(batch, lambda part: _is_within(part, 2 * max_bytes))]


def before_decoding(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """A batch of the direct reader in parts that stay of about `max_bytes` when views become plain values.

    Views may show one value many times over, and decoding repeats it.
    """
    if not any(_shrinks_by_views(column.type) for column in batch.columns):
        return [batch]
    return _halved(batch, lambda part: decoded_bytes(part) <= 2 * max_bytes)


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """What the values of a batch take without views; texts at the top stay views."""
    return sum(
        _content_bytes(column) if _shrinks_by_views(column.type) else int(column.nbytes) for column in batch.columns
    )


def _shrinks_by_views(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind)) or any(_has_views(kind.field(i).type) for i in range(kind.num_fields))


def _has_views(kind: pa.DataType) -> bool:
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return True
    return any(_has_views(kind.field(index).type) for index in range(kind.num_fields))


def _halved(batch: pa.RecordBatch, is_small: Callable[[pa.RecordBatch], bool]) -> list[pa.RecordBatch]:
    if batch.num_rows < 2 or is_small(batch):
        return [batch]
    half = batch.num_rows // 2
    return [*_halved(batch.slice(0, half), is_small), *_halved(batch.slice(half), is_small)]


def _is_within(batch: pa.RecordBatch, max_bytes: int) -> bool:
    # The buffers have at least the bytes that are seen, and counting those costs more than all else here.
    return batch.nbytes <= max_bytes or sum(_content_bytes(column) for column in batch.columns) <= max_bytes


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Views keep whole pages of texts alive, and on the wire all of them travel, for a single row too."""
    if not any(_is_mostly_unseen(column) for column in batch.columns):
        return batch
    columns = [
        column.cast(pa.large_string()).cast(column.type) if _is_mostly_unseen(column) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_mostly_unseen(array: pa.Array) -> bool:
    if not pa.types.is_string_view(array.type) or array.nbytes <= 2 * 16 * len(array) + _NEGLIGIBLE:
        return False  # a view alone takes 16 bytes, so at least half of this is seen
    return bool(array.nbytes > 2 * _content_bytes(array) + _NEGLIGIBLE)


def _content_bytes(array: pa.Array) -> int:
    """The bytes that a reader of this array sees, which for views are not those that the buffers have."""
    types, kind = pa.types, array.type
    if len(array) == 0 or not _has_views(kind):
        return int(array.nbytes)
    if types.is_struct(kind):
        return sum(_content_bytes(part) for part in array.flatten())
    if types.is_map(kind):
        first, last = (array.offsets[place].as_py() for place in (0, -1))
        return 4 * len(array) + sum(
            _content_bytes(part.slice(first, last - first)) for part in (array.keys, array.items)
        )
    if kind.num_fields:
        return 4 * len(array) + _content_bytes(array.flatten())
    # A view is two numbers of 64 bits, and the low half of the first is the value's length. (A third of the time that
    # `list_element` takes over numbers of 32 bits: 1.1 ms for 131,072 texts, and this runs for every batch.)
    end = array.offset + len(array)
    words = pa.Array.from_buffers(pa.int64(), 2 * end, [None, array.buffers()[1]])
    lengths = pc.bit_wise_and(words.take(pa.arange(2 * array.offset, 2 * end, 2)), 0xFFFF_FFFF)
    if array.null_count:
        lengths = pc.if_else(array.is_valid(), lengths, 0)
    seen = pc.sum(lengths).as_py()
    return 16 * len(array) + int(seen)
