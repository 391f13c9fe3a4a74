"""From statements that wait to one change set, as of one head of the table.

Each statement is judged by itself: what is wrong with one is the error of that one,
and the others go on without it. Nothing is written here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from gateway.catalog.changes import Operation
from gateway.errors import GatewayError, NotFoundError, PreconditionError, RequestError
from gateway.lake.reading.lookups import distinct, rows_by_id
from gateway.lake.tables.id_sets import IdSet, Range, joined
from gateway.lake.tables.internal_names import OPERATION, ROWID_FIELD
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.writing.change_sets import ChangeSet, code_column, last_of_each, together
from gateway.lake.writing.conflicts import Conflicts
from gateway.lake.writing.keys import KeyChange, Verdict, judge_keys, keys_of
from gateway.lake.writing.pending import Committed, Pending
from gateway.lake.writing.rowids import highest_row_id

log = structlog.get_logger(__name__)

_MOST_ROW_IDS = 1 << 63


def prepare(head: LogSnapshot, group: Sequence[Pending], conflicts: Conflicts) -> ChangeSet:
    """Raises what cannot be laid at one statement's door."""
    if len(group) == 1 and group[0].rows.is_spooled:
        return _prepare_spooled(head, group[0], conflicts)
    change = ChangeSet()
    parts = _Parts(head, conflicts)
    for pending in group:
        with change.blaming(pending):
            _check_schema(head, pending)
    parts.look_up([pending for pending in group if pending not in change.settled])
    tables: dict[Pending, pa.Table] = {}
    for pending in group:
        if pending not in change.settled:
            with change.blaming(pending):
                rows = parts.rows_of(pending)
                if rows.num_rows:
                    tables[pending] = rows
                else:
                    change.settled[pending] = Committed(0, None)
    _judge_keys(head, tables, change)
    if tables:
        _assemble(head, tables, change)
    return change


class _Parts:
    """The rows of each statement of a group; what the table has of them is looked up once for all."""

    def __init__(self, head: LogSnapshot, conflicts: Conflicts) -> None:
        self._head = head
        self._conflicts = conflicts
        self._known = pa.array([], pa.int64())  # the row ids that are there

    def look_up(self, group: Sequence[Pending]) -> None:
        changing = [pending for pending in group if pending.operation is not Operation.INSERT]
        if changing:
            wanted = pa.chunked_array(
                [chunk for pending in changing for chunk in pending.rows.table().column(ROWID_FIELD).chunks],
                pa.int64(),
            )
            self._known = rows_by_id(self._head, wanted, ()).column(0).combine_chunks()

    def rows_of(self, pending: Pending) -> pa.Table:
        """What the statement writes into rows that are there; raises where it must not."""
        rows = pending.rows.table()
        if pending.operation is Operation.INSERT:
            return rows.append_column(OPERATION, code_column(Operation.INSERT, rows.num_rows))
        rows = last_of_each(rows)
        self._conflicts.check(self._head, pending.context, rows.column(ROWID_FIELD).to_pylist())
        is_known = pc.is_in(rows.column(ROWID_FIELD), self._known)
        if pending.options.strict:
            _refuse_unknown(rows.column(ROWID_FIELD).filter(pc.invert(is_known)))
        rows = rows.filter(is_known)
        return rows.append_column(OPERATION, code_column(pending.operation, rows.num_rows))


def _refuse_unknown(row_ids: pa.ChunkedArray) -> None:
    if len(row_ids):
        raise NotFoundError(f"row_id {row_ids[0]} not found in table")


def _judge_keys(head: LogSnapshot, tables: dict[Pending, pa.Table], change: ChangeSet) -> None:
    order = list(tables)
    changes = [
        KeyChange(place, pending.operation, tables[pending], pending.plan.names) for place, pending in enumerate(order)
    ]
    for place, verdict in judge_keys(head, changes).items():
        del tables[order[place]]
        if verdict is not Verdict.LATER:
            assert isinstance(verdict, GatewayError)
            change.settled[order[place]] = verdict


def _assemble(head: LogSnapshot, tables: dict[Pending, pa.Table], change: ChangeSet) -> None:
    """Give ids to new rows and put all rows into one change set."""
    highest = -1 if head.schema.rowid is None else highest_row_id(head)
    next_id = highest + 1
    named: list[Range] = []
    parts = []
    for pending, rows in tables.items():
        if pending.operation is not Operation.INSERT:
            ids = IdSet.of(rows.column(ROWID_FIELD).to_pylist())
            named.extend(ids.ranges)
            parts.append(rows)
        elif head.schema.rowid is None:
            ids = IdSet()
            parts.append(rows)
        else:
            ids = _new_ids(head, next_id, rows.num_rows)
            parts.append(rows.append_column(ROWID_FIELD, pa.arange(next_id, next_id + rows.num_rows)))
            next_id += rows.num_rows
        change.members[pending] = Committed(rows.num_rows, None, ids)
    operations = frozenset(pending.operation for pending in tables)
    whole = together(parts, head.schema)
    change.rows = whole.drop_columns(OPERATION) if len(operations) == 1 else whole
    change.operations = operations
    change.inserted = _columns(tables, Operation.INSERT)
    change.updated = _columns(tables, Operation.UPDATE)
    change.named = joined(named)
    change.first_new = highest + 1 if next_id > highest + 1 else None
    change.mark = mark_of(head, highest, next_id - 1)


def _columns(group: dict[Pending, pa.Table], operation: Operation) -> tuple[str, ...]:
    """All statements of one kind in a group set the same columns."""
    return next((pending.plan.names for pending in group if pending.operation is operation), ())


def _new_ids(head: LogSnapshot, first: int, count: int) -> IdSet:
    if first + count > _MOST_ROW_IDS:
        raise PreconditionError(f"table '{head.table}' has no row ids left: one of its rows has the highest")
    return IdSet.span(first, count)


def mark_of(head: LogSnapshot, highest: int, given: int) -> int | None:
    """What the log has to remember; a `txn` action that does not grow would make Delta skip the MERGE.

    A row that goes may hold the highest id, and then only the log remembers that it was given.
    """
    mark = max(highest, given)
    return mark if head.schema.rowid is not None and mark > head.rowid_mark else None


def _prepare_spooled(head: LogSnapshot, pending: Pending, conflicts: Conflicts) -> ChangeSet:
    change = ChangeSet()
    with change.blaming(pending):
        _check_schema(head, pending)
        if pending.operation is Operation.INSERT:
            _prepare_spooled_insert(head, pending, change)
        else:
            _prepare_spooled_change(head, pending, conflicts, change)
    return change


def _prepare_spooled_insert(head: LogSnapshot, pending: Pending, change: ChangeSet) -> None:
    rows, first, ids = pending.rows, None, IdSet()
    highest = -1
    if head.schema.rowid is not None:
        highest = highest_row_id(head)
        first = highest + 1
        ids = _new_ids(head, first, rows.rows)
    change.members[pending] = Committed(rows.rows, None, ids)
    change.rows = rows
    change.operations = frozenset([Operation.INSERT])
    change.inserted = pending.plan.names
    change.first_new = first
    change.mark = mark_of(head, highest, highest + rows.rows)


def _prepare_spooled_change(head: LogSnapshot, pending: Pending, conflicts: Conflicts, change: ChangeSet) -> None:
    ranges: list[Range] = []
    affected = largest = 0
    for piece in pending.rows.pieces([ROWID_FIELD]):
        row_ids = piece.column(ROWID_FIELD)
        conflicts.check(head, pending.context, distinct(row_ids).to_pylist())
        known = distinct(rows_by_id(head, row_ids, ()).column(0))
        unknown = row_ids.filter(pc.invert(pc.is_in(row_ids, known)))
        if pending.options.strict:
            _refuse_unknown(unknown)
        affected += len(known)
        largest = max(largest, len(known))
        if len(known):
            ranges.append((known[0].as_py(), known[-1].as_py()))
    if not affected:
        change.settled[pending] = Committed(0, None)
        return
    # Ids that come in two pieces are counted twice here; the MERGE counts them once. Pieces of ranges apart share none.
    overlap = any(low <= before for (_, before), (low, _) in itertools.pairwise(sorted(ranges)))
    change.fewest_rows = largest if overlap else None
    change.members[pending] = Committed(affected, None, IdSet(tuple(joined(ranges)), is_exact=False))
    highest = highest_row_id(head)
    change.rows = pending.rows
    change.operations = frozenset([pending.operation])
    change.updated = pending.plan.names
    change.named = joined(ranges)
    change.mark = mark_of(head, highest, highest)


def _check_schema(head: LogSnapshot, pending: Pending) -> None:
    """The table may have changed since the upload was planned; its rows are of the old columns.

    The stored type alone does not tell: a BIGINT and a UINTEGER are stored alike, and mean different values.
    """
    for _, column in pending.plan.columns:
        if not column.means_the_same_as(head.schema.column(column.name)):
            raise RequestError(f"column '{column.name}' changed during the upload: the schema changed, attach again")
    if pending.operation is Operation.INSERT:
        for column in head.schema.columns:
            if column.name in pending.plan.names or column.computed is not None:
                continue
            if not column.nullable or _is_keyed(head, column):
                raise RequestError(f"column '{column.name}' is new and needs a value: the schema changed, attach again")


def _is_keyed(head: LogSnapshot, column: Column) -> bool:
    return any(column.name in key.names for key in keys_of(head))
