"""PRIMARY KEY and UNIQUE, which Delta does not enforce: kept in table properties, checked by the committer.

A key holds on the state after the whole statement (`SET id = id + 1` is legal):
inside the statement's own rows, and against the table's other rows at the head
that the commit builds on. Keys hold among the gateway's writers; a foreign
writer can break them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.changes import Operation
from gateway.errors import ConstraintError, InternalError, UnsupportedError
from gateway.lake.merge import last_of_each
from gateway.lake.pushdown_datafusion import quote_identifier, render_literal
from gateway.lake.schemas import Column
from gateway.lake.snapshots import BATCH_ROWS, TABLE, LogSnapshot
from gateway.lake.staging import StagedRows
from gateway.lake.uploads import ROWID_FIELD

PRIMARY_KEY = "deltaport.primaryKey"
UNIQUE = "deltaport.unique"


@dataclass(frozen=True, slots=True)
class Key:
    kind: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def keys_of(snapshot: LogSnapshot) -> list[Key]:
    """The keys written in the table's properties, as lists of column names."""
    primary = _property(snapshot, PRIMARY_KEY)
    unique = _property(snapshot, UNIQUE)
    keys = [Key("primary key", _columns(snapshot, primary))] if primary else []
    return keys + [Key("unique", _columns(snapshot, names)) for names in unique]


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
    columns = [snapshot.schema.column(str(name)) for name in names] if isinstance(names, list) else [None]
    known = tuple(column for column in columns if column is not None)
    if len(known) < len(columns):
        raise InternalError(f"table '{snapshot.table}': a key names a column that does not exist")
    return known


def check_keys(snapshot: LogSnapshot, operation: Operation, rows: StagedRows, row_ids: Sequence[int]) -> None:
    """Raise a ConstraintError that names the constraint and the first key that would be there twice."""
    for key in keys_of(snapshot):
        if operation is Operation.UPDATE and not set(key.names) & set(rows.schema.names):
            continue
        if rows.is_spooled:
            raise UnsupportedError(
                f"table '{snapshot.table}' has a {key.kind}; upload fewer rows in one statement (staging.memory_rows)"
            )
        _check(snapshot, key, _keys_after(key, rows.table()), set(row_ids))


def _keys_after(key: Key, rows: pa.Table) -> pa.Table:
    missing = [name for name in key.names if name not in rows.column_names]
    if missing:
        raise UnsupportedError(f"the statement must set all columns of the {key.kind} or none; it lacks '{missing[0]}'")
    if ROWID_FIELD in rows.column_names:
        rows = last_of_each(rows)
    return rows.select(key.names)


def _check(snapshot: LogSnapshot, key: Key, new: pa.Table, changing: set[int]) -> None:
    for column in key.columns:  # a key with a NULL in it is like no other
        new = new.filter(pc.is_valid(new.column(column.name)))
    counted = new.group_by(key.names).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted.column("count_all"), 1))
    if twice.num_rows:
        raise _violation(key, twice)
    if new.num_rows == 0 or snapshot.files.num_rows == 0:
        return
    stored = _stored_keys(snapshot, key, new)
    if snapshot.schema.rowid is not None and changing:
        kept = pc.invert(pc.is_in(stored.column(ROWID_FIELD), pa.array(sorted(changing), pa.int64())))
        stored = stored.filter(kept)
    clash = new.join(stored.select(key.names), key.names, join_type="inner")
    if clash.num_rows:
        raise _violation(key, clash)


def _stored_keys(snapshot: LogSnapshot, key: Key, new: pa.Table) -> pa.Table:
    """The table's keys among which a clash could be: those whose first column has one of the new values."""
    rowid = snapshot.schema.rowid
    identity = "NULL" if rowid is None else quote_identifier(rowid.name)
    names = ", ".join(quote_identifier(name) for name in key.names)
    sql = f"SELECT {names}, {identity} AS {quote_identifier(ROWID_FIELD)} FROM {TABLE}"  # noqa: S608 - quoted names
    first = key.columns[0]
    values = pc.unique(new.column(first.name))
    found: list[pa.RecordBatch] = []
    reader = snapshot.query(sql + _narrowed(first, values), BATCH_ROWS[0])
    for batch in reader:
        column = batch.column(0).cast(first.type)
        found.append(batch.filter(pc.is_in(column, values.cast(first.type))))
    table = pa.Table.from_batches(found, reader.schema)
    kinds = [pa.field(column.name, column.type) for column in key.columns]
    return table.cast(pa.schema([*kinds, pa.field(ROWID_FIELD, pa.int64())]))


def _narrowed(column: Column, values: pa.Array) -> str:
    """A range for statistics to prune with, where the type has one order for everybody."""
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return ""
    bounds = pc.min_max(values)
    low, high = (render_literal(bounds[end].as_py(), column.type) for end in ("min", "max"))
    name = quote_identifier(column.name)
    return f" WHERE {name} >= {low} AND {name} <= {high}"


def _violation(key: Key, clash: pa.Table) -> ConstraintError:
    row = clash.slice(0, 1).to_pylist()[0]
    shown = ", ".join(f"{name}: {str(row[name])[:40]}" for name in key.names)
    return ConstraintError(f'Duplicate key "{shown}" violates {key.kind} constraint.')
