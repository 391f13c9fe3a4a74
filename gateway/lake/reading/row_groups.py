"""Reading only the row groups of files that a filter may match.

The direct engine does not look at the statistics inside files once a table may have
deletion vectors: for one row it decodes whole files. Here the files' footers say which row
groups are left, and only those are decoded. Where a filter leaves most of them, or the
columns need more than a look, there is no plan, and the engine reads as ever: it
decodes everything in half the time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.lake.pushdown.arrow import ArrowDialect
from gateway.lake.pushdown.translation import Conditions, translate
from gateway.lake.reading.files import open_data_file
from gateway.lake.reading.pruning import surviving_files
from gateway.lake.tables.schemas import Column, TableSchema
from gateway.lake.tables.snapshots import LogSnapshot

_MOST_FILES = 64  # whose footers are read for one scan
_MOST_VECTORS = 2_000  # files of a table whose deletion vectors are kept with its snapshot
_MOST_SHARE = 0.5  # of the rows: beyond this the engine is quicker
_KEPT_FOOTERS = 512
_VECTORS = "deletionVectors"


@dataclass(frozen=True)
class Footer:
    """What a data file says of its row groups; it can be asked like a snapshot, with row groups in place of files."""

    path: str
    metadata: pq.FileMetaData
    schema: TableSchema

    @cached_property
    def kinds(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self.metadata.schema.to_arrow_schema()}

    @cached_property
    def files(self) -> pa.Table:
        groups = [self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)]
        return pa.table({"num_records": pa.array(groups, pa.int64())})

    def file_values(self, column: Column, kind: str) -> pa.ChunkedArray | None:
        """Each row group's `min`, `max` or `null_count` of a column; None if not kept."""
        place = self._places.get(column.physical_name)
        if place is None or not _has_bounds(column.type):
            return None
        values = [_bound(self.metadata.row_group(group).column(place), kind) for group in range(len(self.files))]
        is_text = pa.types.is_string(column.type) and kind != "null_count"
        return pa.chunked_array([pa.array(values, pa.string() if is_text else pa.int64())])

    @cached_property
    def _places(self) -> dict[str, int]:
        schema = self.metadata.schema
        return {schema.column(place).path: place for place in range(len(schema))}


@dataclass(frozen=True, slots=True)
class Part:
    """Row groups of one file, each with the number of its first row, and which rows of the file are still there."""

    footer: Footer
    groups: tuple[tuple[int, int], ...]
    kept: pa.BooleanArray | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read: of these parts, these columns, the rows for which the predicate is true."""

    parts: tuple[Part, ...]
    columns: tuple[Column, ...]
    predicate: pc.Expression | None
    pushed: int
    dropped: int


class RowGroups:
    """Plans and reads. Thread-safe: `_lock` guards the kept footers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._footers: OrderedDict[tuple[str, str], Footer] = OrderedDict()

    def plan(
        self, snapshot: LogSnapshot, conditions: Conditions, columns: Sequence[Column], files: Sequence[int]
    ) -> Plan | None:
        """For a scan that is to read these columns, those of its conditions included; None where it does not pay."""
        if not conditions or len(files) > _MOST_FILES or not _may_help(snapshot):
            return None
        if any(not _is_simple(column, snapshot) for column in columns):
            return None
        paths = snapshot.files.column("path").take(pa.array(files, pa.int64())).to_pylist()
        parts, left, total = [], 0, 0
        for path in paths:
            footer = self._footer(snapshot, path)
            if not all(_is_as_stored(footer, column) for column in columns):
                return None
            groups = _surviving_groups(footer, conditions)
            left += sum(footer.metadata.row_group(group).num_rows for group, _ in groups)
            total += footer.metadata.num_rows
            if groups:
                parts.append(Part(footer, groups, snapshot.kept_rows(path)))
        if left > _MOST_SHARE * total:
            return None
        said = translate(ArrowDialect(), conditions)
        return Plan(tuple(parts), tuple(dict.fromkeys(columns)), said.predicate, said.pushed, said.dropped)

    def read(self, snapshot: LogSnapshot, plan: Plan, most_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of the stored columns. Closing it ends the reading."""
        for part in plan.parts:
            with open_data_file(snapshot, part.footer.path) as file:
                reader = pq.ParquetFile(file, metadata=part.footer.metadata)
                for group, first_row in part.groups:
                    yield from _read_group(reader, part, group, first_row, plan, most_rows)

    def _footer(self, snapshot: LogSnapshot, path: str) -> Footer:
        key = (snapshot.uri, path)
        with self._lock:
            if (known := self._footers.get(key)) is not None:
                self._footers.move_to_end(key)
                return known
        with open_data_file(snapshot, path) as file:
            footer = Footer(path, pq.read_metadata(file), snapshot.schema)
        with self._lock:
            self._footers[key] = footer
            while len(self._footers) > _KEPT_FOOTERS:
                self._footers.popitem(last=False)
        return footer


def _may_help(snapshot: LogSnapshot) -> bool:
    """Other tables are pruned as well by the engine itself."""
    return _VECTORS in snapshot.reader_features and snapshot.files.num_rows <= _MOST_VECTORS


def _is_simple(column: Column, snapshot: LogSnapshot) -> bool:
    # A dot would be taken for a step into a struct.
    return not (column.type.num_fields or column.name in snapshot.partition_columns or "." in column.physical_name)


def _is_as_stored(footer: Footer, column: Column) -> bool:
    """Whether the file has the column in exactly its type, or not at all, as one that is older than the column."""
    kind = footer.kinds.get(column.physical_name)
    return kind is None or kind == column.type


def _has_bounds(kind: pa.DataType) -> bool:
    """Types whose bounds are numbers or texts with one order for everybody."""
    ordered = pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    return bool(ordered or pa.types.is_string(kind))


def _bound(chunk: pq.ColumnChunkMetaData, kind: str) -> int | str | None:
    statistics = chunk.statistics
    if statistics is None:
        return None
    if kind == "null_count":
        return int(statistics.null_count) if statistics.has_null_count else None
    if not statistics.has_min_max or chunk.physical_type == "INT96":
        return None
    if chunk.physical_type == "BYTE_ARRAY":
        text = statistics.min if kind == "min" else statistics.max
        return text if isinstance(text, str) else None
    return int(statistics.min_raw if kind == "min" else statistics.max_raw)


def _surviving_groups(footer: Footer, conditions: Conditions) -> tuple[tuple[int, int], ...]:
    starts, first_row = [], 0
    for rows in footer.files.column(0).to_pylist():
        starts.append(first_row)
        first_row += rows
    return tuple((group, starts[group]) for group in surviving_files(footer, conditions))


def _read_group(
    reader: pq.ParquetFile, part: Part, group: int, first_row: int, plan: Plan, most_rows: int
) -> Iterator[pa.RecordBatch]:
    names = [column.physical_name for column in plan.columns if column.physical_name in part.footer.kinds]
    for batch in reader.iter_batches(most_rows, row_groups=[group], columns=names):
        arrays = [_stored_column(batch, column) for column in plan.columns]
        rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(each.name, each.type) for each in plan.columns]))
        if part.kept is not None:
            rows = rows.filter(_mask(part.kept, first_row, batch.num_rows))
        first_row += batch.num_rows
        if plan.predicate is not None:
            rows = rows.filter(plan.predicate)
        if rows.num_rows:
            yield rows


def _stored_column(batch: pa.RecordBatch, column: Column) -> pa.Array:
    place = batch.schema.get_field_index(column.physical_name)
    return pa.nulls(batch.num_rows, column.type) if place < 0 else batch.column(place)


def _mask(kept: pa.BooleanArray, first_row: int, rows: int) -> pa.BooleanArray:
    """Rows behind the end of a deletion vector are there."""
    known = kept.slice(first_row, rows)
    return known if len(known) == rows else pa.concat_arrays([known, pa.array([True] * (rows - len(known)))])
