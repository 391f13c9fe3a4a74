"""PRIMARY KEY and UNIQUE, which Delta does not enforce: kept in table properties, checked by the committer.

A key holds on the state after the whole statement (`SET id = id + 1` is legal):
inside the statement's own rows, among the statements of one commit, and against
the table's other rows at the head that the commit builds on. Rows in memory are checked here; spooled
ones in `spark_keys`. Keys hold among the gateway's writers; a
foreign writer can break them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.changes import Operation
from gateway.errors import ConstraintError, InternalError
from gateway.lake.pushdown.conditions import ALWAYS, AllOf, Compare, Condition, Target
from gateway.lake.reading.lookups import rows_by_id, select
from gateway.lake.tables.internal_names import ROWID_FIELD
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.values.codec import decode
from gateway.lake.values.leaves import wide_integer
from gateway.lake.writing.change_sets import beside
from gateway.wire.filter_tree import Operator

PRIMARY_KEY = "deltaport.primaryKey"
UNIQUE = "deltaport.unique"


@dataclass(frozen=True, slots=True)
class Key:
    columns: tuple[Column, ...]
    is_primary: bool

    @property
    def kind(self) -> str:
        return "primary key" if self.is_primary else "unique"

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def keys_of(snapshot: LogSnapshot) -> list[Key]:
    """The keys written in the table's properties, as lists of column names."""
    primary = _property(snapshot, PRIMARY_KEY)
    unique = _property(snapshot, UNIQUE)
    keys = [Key(_columns(snapshot, primary), True)] if primary else []
    return keys + [Key(_columns(snapshot, names), False) for names in unique]


def _property(snapshot: LogSnapshot, name: str) -> list[object]:
    text = snapshot.configuration.get(name)
    try:
        found = [] if text is None else json.loads(text)
    except ValueError as error:
        raise InternalError(f"table '{snapshot.table}': its property {name} is not a JSON list") from error
    if not isinstance(found, list):
        raise InternalError(f"table '{snapshot.table}': its property {name} is not a JSON list")
    return found


def _columns(snapshot: LogSnapshot, names: object) -> tuple[Column, ...]:
    columns = [snapshot.schema.column(str(name)) for name in names] if isinstance(names, list) and names else [None]
    known = tuple(column for column in columns if column is not None)
    if len(known) < len(columns):
        raise InternalError(f"table '{snapshot.table}': a key names a column that does not exist")
    return known


class Verdict(Enum):
    """What keys say of a statement that may not go into this commit, where its own error does not say it."""

    LATER = "later"  # it depends on another statement of the group: decide once that one is written


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Rows as a statement will write them: no row id twice, none that the table lacks."""

    statement: int  # its place in the group
    operation: Operation
    rows: pa.Table
    columns: tuple[str, ...]  # those it sets

    def touches(self, key: Key) -> bool:
        return self.operation is Operation.DELETE or bool(set(key.names) & set(self.columns))


def judge_keys(snapshot: LogSnapshot, changes: Sequence[KeyChange]) -> dict[int, ConstraintError | Verdict]:
    """The statements that cannot be written together with the others.

    A statement fails where a key would be there twice after it; where that depends on
    one before it in the group, it waits until that one is written.
    """
    judged: dict[int, ConstraintError | Verdict] = {}
    for key in keys_of(snapshot):
        if any(change.operation is not Operation.DELETE and change.touches(key) for change in changes):
            judged = _judge(snapshot, key, changes) | judged
    return judged


def _judge(snapshot: LogSnapshot, key: Key, changes: Sequence[KeyChange]) -> dict[int, ConstraintError | Verdict]:
    judged: dict[int, ConstraintError | Verdict] = {}
    new: list[pa.Table] = []
    owners: list[int] = []
    for change in changes:
        if change.operation is Operation.DELETE or not change.touches(key):
            continue
        rows = _whole_keys(snapshot, key, change.rows)
        missing = next(
            (column for column in key.columns if key.is_primary and rows.column(column.name).null_count), None
        )
        if missing is not None:
            judged[change.statement] = null_in(missing)
            continue
        for column in key.columns:  # a key with a NULL in it is like no other
            rows = rows.filter(pc.is_valid(rows.column(column.name)))
        new.append(rows)
        owners.extend([change.statement] * rows.num_rows)
    if not owners:
        return judged
    whole = pa.concat_tables(new)
    stored = _stored_keys(snapshot, key, whole)
    for statement, row in _clashes(key, whole, owners, stored, _changers(key, changes)):
        judged.setdefault(statement, Verdict.LATER if row is None else violation(key, values_of(whole.slice(row, 1))))
    return judged


def _whole_keys(snapshot: LogSnapshot, key: Key, rows: pa.Table) -> pa.Table:
    """The keys of the rows as they will be: what a statement does not set, the table has."""
    others = [column for column in key.columns if column.name not in rows.column_names]
    if others:
        stored = beside(rows, rows_by_id(snapshot, rows.column(ROWID_FIELD), others))
        for column in others:
            rows = rows.append_column(pa.field(column.name, column.type), stored.column(column.name))
    return pa.table([_comparable(rows.column(name)) for name in key.names], names=key.names)


def _comparable(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Zero is one key, whatever its sign: DuckDB and Spark say so, and Arrow goes by the bits."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def _changers(key: Key, changes: Sequence[KeyChange]) -> dict[int, int]:
    """Which statement gives each row another key, or takes it away."""
    return {
        row_id: change.statement
        for change in changes
        if change.operation is not Operation.INSERT and change.touches(key)
        for row_id in change.rows.column(ROWID_FIELD).to_pylist()
    }


def _clashes(
    key: Key, new: pa.Table, owners: Sequence[int], stored: pa.Table, changers: dict[int, int]
) -> Iterator[tuple[int, int | None]]:
    """Statements and the row in which each fails; no row where it only has to wait."""
    numbers = _numbered(pa.concat_tables([new.select(key.names), stored.select(key.names)])).to_pylist()
    held: dict[int, list[int | None]] = {}
    for number, row_id in zip(numbers[len(owners) :], stored.column(ROWID_FIELD).to_pylist(), strict=True):
        held.setdefault(number, []).append(row_id)
    taken: dict[int, int] = {}
    for row, (number, owner) in enumerate(zip(numbers, owners, strict=False)):
        if number in taken:
            yield owner, row if taken[number] == owner else None
        taken.setdefault(number, owner)
        for row_id in held.get(number, ()):
            changer = None if row_id is None else changers.get(row_id)
            if changer is None or changer > owner:
                yield owner, row
            elif changer < owner:
                yield owner, None


def _numbered(keys: pa.Table) -> pa.Array:
    """A number per row, the same for the same key. Joins of Arrow would warn of the alignment of Flight's buffers."""
    numbers = pa.repeat(pa.scalar(0, pa.int64()), keys.num_rows)
    for column in keys.columns:
        # Numbers stay below the count of rows, so a product of two fits 64 bits.
        codes = column.combine_chunks().dictionary_encode()
        combined = pc.add(pc.multiply(numbers, len(codes.dictionary)), codes.indices.cast(pa.int64()))
        numbers = combined.dictionary_encode().indices.cast(pa.int64())
    return numbers


def _stored_keys(snapshot: LogSnapshot, key: Key, new: pa.Table) -> pa.Table:
    """The table's keys among which a clash could be: those whose first column has one of the new values."""
    rowid = snapshot.schema.rowid
    names = [*key.names, ROWID_FIELD]
    wanted = pa.schema([*((column.name, column.type) for column in key.columns), (ROWID_FIELD, pa.int64())])
    columns = key.columns if rowid is None else (*key.columns, rowid)
    first = key.columns[0]
    values = pc.unique(new.column(first.name))
    found: list[pa.RecordBatch] = []
    for batch in select(snapshot, columns, _narrowed(first, values)):
        kept = batch.filter(pc.is_in(_comparable(batch.column(0)), values))
        ids = pa.nulls(kept.num_rows, pa.int64()) if rowid is None else kept.column(len(key.columns))
        keys = [_comparable(column) for column in kept.columns[: len(key.columns)]]
        found.append(pa.RecordBatch.from_arrays([*keys, ids], names))
    return pa.Table.from_batches(found, wanted)


def _narrowed(column: Column, values: pa.Array) -> Condition:
    """A range for statistics to prune with, where the type has one order for everybody."""
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return ALWAYS
    bounds, target = pc.min_max(values), Target(column.name, column.type)
    return AllOf(
        (
            Compare(target, Operator.GREATER_EQUAL, bounds["min"].as_py()),
            Compare(target, Operator.LESS_EQUAL, bounds["max"].as_py()),
        )
    )


def null_in(column: Column) -> ConstraintError:
    return ConstraintError(f"NOT NULL constraint failed: column '{column.name}'")


def values_of(row: pa.Table) -> dict[str, Any]:
    """The values of a table's one row; as text where Python has no value, as for times after the year 9999."""
    return {name: _value(row.column(name)[0]) for name in row.column_names}


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(scalar.cast(pa.string()))


def violation(key: Key, row: dict[str, Any]) -> ConstraintError:
    shown = ", ".join(f"{column.name}: {_shown(column, row[column.name])[:40]}" for column in key.columns)
    return ConstraintError(f'Duplicate key "{shown}" violates {key.kind} constraint.')


def _shown(column: Column, stored: Any) -> str:
    """A value as clients write it, not as it is stored."""
    form, declared = column.form, column.form.declared.type
    if form.meaning in ("hugeint", "uhugeint"):
        return str(wide_integer(bytes(stored), form.meaning))
    if form.is_plain or not (pa.types.is_time(declared) or pa.types.is_timestamp(declared)):
        return str(stored)
    return str(decode(pa.array([stored], column.type), form, declared).cast(pa.string())[0])
