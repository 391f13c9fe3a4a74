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

from gateway.catalog.changes import Operation
from gateway.lake.schemas import TableSchema
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
    """What one MERGE does: an operation, the columns it sets, its rows, and for new rows their first id."""

    operation: Operation
    columns: tuple[str, ...]
    rows: StagedRows
    row_ids: Sequence[int] | None = None  # of UPDATE and DELETE in memory: what the pruning names
    first_id: int | None = None  # of INSERT into a table with row ids
    mark: int | None = None  # the highest id ever given, where the log does not say so yet


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
        source = _source(session, target, change)
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


def _source(session: Any, target: Any, change: Change) -> Any:
    """The staged rows as Spark sees them, with exactly the stored types."""
    from pyspark.sql import functions
    from pyspark.sql.types import LongType, StructField, StructType

    stored = {field.name: field for field in target.toDF().schema.fields}
    if change.rows.is_spooled:
        frame = session.read.parquet(change.rows.folder)
        frame = frame.select(
            *(functions.col(quoted(name)).cast(stored[name].dataType).alias(name) for name in change.columns),
            *(functions.col(name) for name in frame.columns if name in (ROWID_FIELD, POSITION)),
        )
    else:
        table = change.rows.table()
        own = [StructField(name, LongType()) for name in (ROWID_FIELD, POSITION) if name in table.column_names]
        kinds = [StructField(name, stored[name].dataType) for name in change.columns]
        frame = session.createDataFrame(table, schema=StructType([*kinds, *own]))
    if change.operation is Operation.INSERT:
        if change.first_id is None:
            return frame
        return frame.withColumn(ROWID_FIELD, functions.col(POSITION) + functions.lit(change.first_id))
    return _last_of_each(frame) if change.rows.is_spooled else frame


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
    last = table.group_by(ROWID_FIELD).aggregate([(POSITION, "max")]).column(f"{POSITION}_max")
    return table if len(last) == table.num_rows else table.take(last.combine_chunks().sort())


def _condition(schema: TableSchema, change: Change) -> Any:
    from pyspark.sql import functions

    if schema.rowid is None:
        return functions.lit(False)
    stored = functions.col(f"t.{quoted(schema.rowid.name)}")
    equal = stored == functions.col(f"s.{ROWID_FIELD}")
    if change.operation is Operation.INSERT:
        # New ids are above every other, so statistics rule out every file and it costs an append.
        return equal & (stored >= functions.lit(change.first_id))
    return equal if change.row_ids is None else equal & _pruning(stored, change.row_ids)


def _pruning(stored: Any, row_ids: Sequence[int]) -> Any:
    from pyspark.sql import functions

    if len(row_ids) <= _LISTED_IDS:
        return stored.isin(list(row_ids))
    condition = None
    for low, high in ranges_of(sorted(row_ids), _RANGES):
        part = (stored >= functions.lit(low)) & (stored <= functions.lit(high))
        condition = part if condition is None else condition | part
    return condition


def ranges_of(ordered: Sequence[int], at_most: int) -> list[tuple[int, int]]:
    """Ranges that hold all the numbers, split where the gaps are widest."""
    gaps = sorted(range(1, len(ordered)), key=lambda index: ordered[index - 1] - ordered[index])[: at_most - 1]
    edges = [0, *sorted(gaps), len(ordered)]
    return [(ordered[start], ordered[end - 1]) for start, end in itertools.pairwise(edges)]


def _clauses(builder: Any, schema: TableSchema, change: Change) -> Any:
    from pyspark.sql import functions

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
    taken = {rowid: functions.raise_error(functions.lit("row id taken")).cast("long")}
    return builder.whenMatchedUpdate(set=taken).whenNotMatchedInsert(
        values={**values, rowid: functions.col(f"s.{ROWID_FIELD}")}
    )
