"""Change sets: what one MERGE does, as rows with an operation, a row id and values.

Small statements bring their rows in memory, and several of them may share one
change set; a spooled one has a set of its own, whose rows Spark reads from files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.changes import Operation
from gateway.lake.tables.id_sets import IdSet, Range
from gateway.lake.tables.internal_names import OPERATION, POSITION, ROWID_FIELD
from gateway.lake.tables.schemas import TableSchema
from gateway.lake.writing.staging import StagedRows

CODES = {Operation.INSERT: 0, Operation.UPDATE: 1, Operation.DELETE: 2}


@dataclass(frozen=True, slots=True)
class Span:
    """Rows that go back from what they were `after` to what they were `before`; without ids, all that differ."""

    before: int
    after: int
    row_ids: IdSet | None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """`named` are the ids of rows that are there, as ranges; `first_new` is the lowest id of new rows.

    An undo has no rows of its own, only the versions that Spark finds them in.
    """

    rows: pa.Table | StagedRows | Sequence[Span]
    operations: frozenset[Operation]
    inserted: tuple[str, ...] = ()  # the columns that new rows have
    updated: tuple[str, ...] = ()  # the columns that an UPDATE sets
    named: Sequence[Range] = ()
    first_new: int | None = None
    mark: int | None = None  # the highest id ever given, where the log does not say so yet


def code_column(operation: Operation, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(CODES[operation], pa.int8()), rows)


def beside(rows: pa.Table, found: pa.Table) -> pa.Table:
    """For each of the rows what a look-up found under its id; the look-up's first column is the id."""
    return found.take(pc.index_in(rows.column(ROWID_FIELD), found.column(0).combine_chunks()))


def last_of_each(table: pa.Table) -> pa.Table:
    """Of several rows with one id the last one counts; row ids are unique afterwards."""
    if table.num_rows < 2:
        return table
    row_ids = table.column(ROWID_FIELD).combine_chunks()
    unique = pc.unique(row_ids)
    if len(unique) == table.num_rows:
        return table
    # The first of each backwards is the last of each; `group_by` would warn of the alignment of Flight's buffers.
    backwards = row_ids.take(pa.arange(len(row_ids) - 1, -1, -1))
    last = pc.subtract(len(row_ids) - 1, pc.index_in(unique, backwards).cast(pa.int64()))
    return table.take(last.take(pc.sort_indices(last)))


def together(tables: Sequence[pa.Table], schema: TableSchema) -> pa.Table:
    """The rows of several statements as one table; what a statement does not have is null."""
    whole = _all_columns(tables, schema)
    return pa.concat_tables([_filled(table, whole) for table in tables])


def _all_columns(tables: Sequence[pa.Table], schema: TableSchema) -> pa.Schema:
    present = reduce(set.union, (set(table.column_names) for table in tables))
    kinds = {column.name: column.type for column in schema.columns}
    kinds |= {ROWID_FIELD: pa.int64(), OPERATION: pa.int8()}
    return pa.schema([(name, kind) for name, kind in kinds.items() if name in present and name != POSITION])


def _filled(table: pa.Table, whole: pa.Schema) -> pa.Table:
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in whole
    ]
    return pa.Table.from_arrays(columns, schema=whole)
