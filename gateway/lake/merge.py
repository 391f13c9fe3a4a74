"""The one writer: every change of data is one Delta MERGE on the row id.

The source holds rows with an operation code, a row id and values. The pruning
condition on the target's row id lets statistics rule out the files that hold
none of the rows; without it MERGE reads the whole table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gateway.catalog.changes import Operation
from gateway.lake.commits import ROW_CHANGED, ROW_ID_TAKEN
from gateway.lake.schemas import Column, TableSchema
from gateway.lake.snapshots import MARK_APPLICATION
from gateway.lake.spark import quoted
from gateway.lake.staging import POSITION, StagedRows
from gateway.lake.uploads import ROWID_FIELD

_LISTED_IDS = 1_000  # named one by one in the pruning condition; more of them as ranges
_RANGES = 64
_SESSION_KEYS = (
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.commitInfo.userMetadata",
)


@dataclass(frozen=True, slots=True)
class Change:
    """What one MERGE does: an operation, the columns it sets, its rows, and for new rows their first id.

    A change with `unchanged_since` was computed from rows as they were at that version, and
    fails where the MERGE meets another row: rows in memory bring the old values with them
    (`with_old_values`), for spooled ones Spark reads them.
    """

    operation: Operation
    columns: tuple[str, ...]
    rows: StagedRows
    row_ids: Sequence[int] = ()  # of UPDATE and DELETE in memory: what the pruning names
    ranges: Sequence[tuple[int, int]] = ()  # the same of spooled rows
    first_id: int | None = None  # of INSERT into a table with row ids
    mark: int | None = None  # the highest id ever given, where the log does not say so yet
    unchanged_since: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    inserted: int
    updated: int
    deleted: int


def run_merge(session: Any, uri: str, schema: TableSchema, change: Change, note: str) -> Counts | None:
    """Run the MERGE; None when Spark says that it did nothing at all, not even look."""
    from delta.tables import DeltaTable

    target = DeltaTable.forPath(session, uri)
    _prepare(session, change, note)
    try:
        source = source_of(session, target.toDF(), uri, schema, change)
        builder = target.alias("t").merge(source.alias("s"), _condition(schema, change))
        found = _clauses(builder, schema, change).execute().collect()
    finally:
        for key in _SESSION_KEYS:
            session.conf.unset(key)
    if not found:
        return None
    return Counts(found[0]["num_inserted_rows"], found[0]["num_updated_rows"], found[0]["num_deleted_rows"])


def _prepare(session: Any, change: Change, note: str) -> None:
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", note)
    if change.mark is not None:
        session.conf.set("spark.databricks.delta.write.txnAppId", MARK_APPLICATION)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(change.mark))


def source_of(session: Any, table: Any, uri: str, schema: TableSchema, change: Change) -> Any:
    """The staged rows as Spark sees them, with exactly the stored types; of rows with one id the last."""
    from pyspark.sql import functions

    stored = {field.name: field.dataType for field in table.schema.fields}
    frame = _spooled(session, change, stored) if change.rows.is_spooled else _in_memory(session, schema, change, stored)
    if change.operation is Operation.INSERT:
        if change.first_id is None:
            return frame
        return frame.withColumn(ROWID_FIELD, functions.col(POSITION) + functions.lit(change.first_id))
    if not change.rows.is_spooled:
        return frame
    frame = _last_of_each(frame)
    if change.unchanged_since is None:
        return frame
    return frame.join(_old_rows(session, uri, schema, change), ROWID_FIELD)


def _spooled(session: Any, change: Change, stored: dict[str, Any]) -> Any:
    from pyspark.sql import functions

    frame = session.read.parquet(change.rows.folder)
    return frame.select(
        *(functions.col(quoted(name)).cast(stored[name]).alias(name) for name in change.columns),
        *(functions.col(name) for name in frame.columns if name in (ROWID_FIELD, POSITION)),
    )


def _in_memory(session: Any, schema: TableSchema, change: Change, stored: dict[str, Any]) -> Any:
    from pyspark.sql.types import LongType, StructField, StructType

    table = change.rows.table()
    kinds = {name: stored[name] for name in change.columns}
    kinds |= {name: LongType() for name in (ROWID_FIELD, POSITION)}
    kinds |= {_old(index): stored[column.name] for index, column in enumerate(compared_columns(schema))}
    fields = [StructField(name, kinds[name]) for name in table.column_names]
    return session.createDataFrame(table, schema=StructType(fields))


def _old_rows(session: Any, uri: str, schema: TableSchema, change: Change) -> Any:
    from pyspark.sql import functions

    assert schema.rowid is not None
    table = session.read.format("delta").option("versionAsOf", change.unchanged_since).load(uri)
    rowid = functions.col(quoted(schema.rowid.name))
    return table.where(_pruning(rowid, change)).select(
        rowid.alias(ROWID_FIELD),
        *(
            functions.col(quoted(column.name)).alias(_old(index))
            for index, column in enumerate(compared_columns(schema))
        ),
    )


def compared_columns(schema: TableSchema) -> list[Column]:
    """The columns that tell whether a row changed: all but variants, which Spark cannot compare."""
    return [column for column in schema.columns if not _holds_variant(column.type)]


def _holds_variant(kind: pa.DataType) -> bool:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind) and [field.name for field in fields] == ["metadata", "value"]:
        return all(field.type == pa.binary() and not field.nullable for field in fields)
    return any(_holds_variant(field.type) for field in fields)


def _old(index: int) -> str:
    return f"_deltaport_old_{index}"


def with_old_values(rows: pa.Table, found: pa.Table) -> pa.Table:
    """Rows and, beside each, what the table has under its id; `found` is a look-up of the compared columns."""
    beside = found.take(pc.index_in(rows.column(ROWID_FIELD), found.column(0).combine_chunks()))
    for index, name in enumerate(found.column_names[1:]):
        rows = rows.append_column(pa.field(_old(index), found.schema.field(name).type), beside.column(index + 1))
    return rows


def _last_of_each(frame: Any) -> Any:
    """Of several rows with one id the last one counts."""
    from pyspark.sql import functions

    values = [functions.col(quoted(name)) for name in frame.columns if name not in (ROWID_FIELD, POSITION)]
    packed = functions.struct(*values, functions.col(POSITION))
    last = frame.groupBy(ROWID_FIELD).agg(functions.max_by(packed, functions.col(POSITION)).alias("last"))
    return last.select(ROWID_FIELD, "last.*")


def last_of_each(table: pa.Table) -> pa.Table:
    """The same for rows in memory; row ids are unique afterwards."""
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


def _condition(schema: TableSchema, change: Change) -> Any:
    from pyspark.sql import functions

    if schema.rowid is None:
        return functions.lit(False)
    stored = functions.col(f"t.{quoted(schema.rowid.name)}")
    equal = stored == functions.col(f"s.{ROWID_FIELD}")
    if change.operation is Operation.INSERT:
        # New ids are above every other, so statistics rule out every file and it costs an append.
        return equal & (stored >= functions.lit(change.first_id))
    return equal & _pruning(stored, change)


def _pruning(stored: Any, change: Change) -> Any:
    from pyspark.sql import functions

    if change.row_ids and len(change.row_ids) <= _LISTED_IDS:
        return stored.isin(list(change.row_ids))
    condition = None
    for low, high in change.ranges or ranges_of(sorted(change.row_ids), _RANGES):
        part = (stored >= functions.lit(low)) & (stored <= functions.lit(high))
        condition = part if condition is None else condition | part
    return condition


def ranges_of(ordered: Sequence[int], at_most: int) -> list[tuple[int, int]]:
    """Ranges that hold all the numbers, split where the gaps are widest."""
    gaps = sorted(range(1, len(ordered)), key=lambda index: ordered[index - 1] - ordered[index])[: at_most - 1]
    edges = [0, *sorted(gaps), len(ordered)]
    return [(ordered[start], ordered[end - 1]) for start, end in itertools.pairwise(edges)]


def few_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most as many ranges as a condition should name, that hold all the given ones."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined if len(joined) <= _RANGES else [(joined[0][0], joined[-1][1])]


def _clauses(builder: Any, schema: TableSchema, change: Change) -> Any:
    from pyspark.sql import functions

    if change.unchanged_since is not None:
        assert schema.rowid is not None
        # The MERGE reads a snapshot of its own, in which others may have changed what was compared before.
        raised = functions.raise_error(functions.lit(ROW_CHANGED)).cast("long")
        builder = builder.whenMatchedUpdate(_has_changed(schema), set={quoted(schema.rowid.name): raised})
    values = {quoted(name): functions.col(f"s.{quoted(name)}") for name in change.columns}
    match change.operation:
        case Operation.UPDATE:
            return builder.whenMatchedUpdate(set=values)
        case Operation.DELETE:
            return builder.whenMatchedDelete()
    if schema.rowid is None:
        return builder.whenNotMatchedInsert(values=values)
    rowid = quoted(schema.rowid.name)
    # An id that is already in the snapshot MERGE reads is no conflict for Delta: without this branch the
    # new row would silently be left out.
    taken = {rowid: functions.raise_error(functions.lit(ROW_ID_TAKEN)).cast("long")}
    return builder.whenMatchedUpdate(set=taken).whenNotMatchedInsert(
        values={**values, rowid: functions.col(f"s.{ROWID_FIELD}")}
    )


def _has_changed(schema: TableSchema) -> Any:
    from pyspark.sql import functions

    same = functions.lit(True)
    for index, column in enumerate(compared_columns(schema)):
        same &= _is_same(f"t.{quoted(column.name)}", f"s.{_old(index)}", column.type)
    return ~same


def _is_same(now: str, then: str, kind: pa.DataType) -> Any:
    from pyspark.sql import functions

    if _holds_map(kind):  # which Spark cannot compare
        return functions.col(now).cast("string").eqNullSafe(functions.col(then).cast("string"))
    return functions.col(now).eqNullSafe(functions.col(then))


def _holds_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_map(kind.field(index).type) for index in range(kind.num_fields))
