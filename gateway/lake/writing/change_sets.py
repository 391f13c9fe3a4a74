"""Change sets: what one MERGE does, as rows with an operation, a row id and values.

Small statements bring their rows in memory, and several of them may share one
change set; a spooled one has a set of its own, whose rows Spark reads from files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from gateway.catalog.changes import Operation
from gateway.errors import GatewayError, InternalError
from gateway.lake.tables.id_sets import IdSet, Range, joined
from gateway.lake.tables.internal_names import OPERATION, POSITION, ROWID_FIELD
from gateway.lake.tables.schemas import TableSchema
from gateway.lake.writing.pending import Committed, Outcome, Work
from gateway.lake.writing.staging import StagedRows

log = structlog.get_logger(__name__)

CODES = {Operation.INSERT: 0, Operation.UPDATE: 1, Operation.DELETE: 2}


@dataclass(frozen=True, slots=True)
class Span:
    """Rows that go back from what they were `after` to what they were `before`; without ids, all that differ."""

    before: int
    after: int
    row_ids: IdSet | None


@dataclass(slots=True)
class ChangeSet:
    """What one commit does, for one or more statements; empty where it does nothing.

    `members` are the statements that are written, with what becomes of each: their versions are still to come.
    `settled` are those that need no commit: they failed or change nothing. What is in neither goes on waiting.
    `named` are the ids of rows that are there, as ranges; `first_new` is the lowest id of new rows. An undo has
    no rows of its own, only the versions that Spark finds them in.
    """

    members: dict[Work, Committed] = field(default_factory=dict)
    settled: dict[Work, Outcome] = field(default_factory=dict)
    rows: pa.Table | StagedRows | Sequence[Span] = ()
    operations: frozenset[Operation] = frozenset()
    inserted: tuple[str, ...] = ()  # the columns that new rows have
    updated: tuple[str, ...] = ()  # the columns that an UPDATE sets
    named: Sequence[Range] = ()
    first_new: int | None = None
    mark: int | None = None  # the highest id ever given, where the log does not say so yet
    fewest_rows: int | None = None  # that it affects, where the members may have counted one twice

    @property
    def is_empty(self) -> bool:
        return not self.operations

    @contextlib.contextmanager
    def blaming(self, work: Work) -> Iterator[None]:
        """What goes wrong inside is the error of this statement alone, expected or not; it is not written then."""
        try:
            yield
        except GatewayError as error:
            self._refuse(work, error)
        except Exception as error:
            log.exception("statement_not_prepared", operation=work.kind)
            failure = InternalError("the statement could not be prepared; nothing was written")
            failure.__cause__ = error
            self._refuse(work, failure)

    def _refuse(self, work: Work, error: GatewayError) -> None:
        self.settled[work] = error
        self.members.pop(work, None)  # it may have come so far before it failed

    def expects(self, rows: int) -> bool:
        """Whether the commit may have affected so many rows."""
        counted = sum(done.affected for done in self.members.values())
        return (counted if self.fewest_rows is None else self.fewest_rows) <= rows <= counted

    def landed(self, version: int, affected: int | None) -> None:
        """A statement alone is counted by the MERGE; in a group each counted its rows at the head, which still held."""
        alone = len(self.members) == 1
        for work, done in self.members.items():
            counted = affected if alone and affected is not None else done.affected
            self.members[work] = replace(done, affected=counted, version=version)

    @property
    def row_ids(self) -> IdSet:
        """Of all rows that it touches."""
        touched = [part for done in self.members.values() for part in done.row_ids.ranges]
        return IdSet(tuple(joined(touched)), all(done.row_ids.is_exact for done in self.members.values()))


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
