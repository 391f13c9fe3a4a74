"""The one writer: every change of data is one Delta MERGE on the row id.

The source holds rows with an operation, a row id and values. The pruning
condition on the target's row id lets statistics rule out the files that hold
none of the rows; without it MERGE reads the whole table.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gateway.catalog.changes import Operation
from gateway.lake.spark.columns import lies_in
from gateway.lake.spark.engine import quoted
from gateway.lake.tables.id_sets import few_ranges
from gateway.lake.tables.schemas import TableSchema
from gateway.lake.tables.snapshots import MARK_APPLICATION, LogSnapshot
from gateway.lake.writing.change_sets import CODES, OPERATION, ChangeSet
from gateway.lake.writing.fence import fenced
from gateway.lake.writing.staging import POSITION, StagedRows
from gateway.lake.writing.undo import undo_source
from gateway.lake.writing.uploads import ROWID_FIELD

_LISTED_RANGES = 2_000  # of ids are named in the pruning condition as they are; more of them by few wider ones
_RANGES = 64
_SESSION_KEYS = (
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.commitInfo.userMetadata",
)


def run_merge(session: Any, head: LogSnapshot, change: ChangeSet, note: str) -> int | None:
    """Run the MERGE and say how many rows it changed; None when Spark says that it did nothing, not even look."""
    from delta.tables import DeltaTable

    schema = head.schema
    target = DeltaTable.forPath(session, head.uri)
    _prepare(session, change, note)
    try:
        source = _guarded(session, source_of(session, target.toDF(), head, change), head, change)
        builder = target.alias("t").merge(source.alias("s"), _condition(schema, change))
        found = _clauses(builder, schema, change).execute().collect()
    finally:
        for key in _SESSION_KEYS:
            session.conf.unset(key)
    return int(found[0]["num_affected_rows"]) if found else None


def _prepare(session: Any, change: ChangeSet, note: str) -> None:
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", note)
    if change.mark is not None:
        session.conf.set("spark.databricks.delta.write.txnAppId", MARK_APPLICATION)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(change.mark))


def _guarded(session: Any, source: Any, head: LogSnapshot, change: ChangeSet) -> Any:
    from pyspark.sql import functions

    if head.schema.rowid is None or change.is_blind:
        return source
    source = fenced(session, source, head)
    # Spark cannot know how little the fence holds, and would sort the table to join it.
    return functions.broadcast(source) if change.named and isinstance(change.rows, pa.Table) else source


def source_of(session: Any, table: Any, head: LogSnapshot, change: ChangeSet) -> Any:
    """The staged rows as Spark sees them, with exactly the stored types; of spooled rows with one id the last."""
    from pyspark.sql import functions

    stored = {field.name: field.dataType for field in table.schema.fields}
    if isinstance(change.rows, pa.Table):
        return _in_memory(session, change.rows, stored)
    if not isinstance(change.rows, StagedRows):
        return undo_source(session, head, change.rows)
    frame = _spooled(session, change, change.rows, stored)
    if change.operations == {Operation.INSERT}:
        if change.first_new is None:
            return frame
        return frame.withColumn(ROWID_FIELD, functions.col(POSITION) + functions.lit(change.first_new))
    return _last_of_each(frame)


def _in_memory(session: Any, rows: pa.Table, stored: dict[str, Any]) -> Any:
    from pyspark.sql.types import ByteType, LongType, StructField, StructType

    kinds = {ROWID_FIELD: LongType(), POSITION: LongType(), OPERATION: ByteType()}
    rows = rows.combine_chunks()  # pyspark 4.2.0 stops reading at an empty chunk
    fields = [StructField(name, kinds.get(name) or stored[name]) for name in rows.column_names]
    return session.createDataFrame(rows, schema=StructType(fields))


def _spooled(session: Any, change: ChangeSet, rows: StagedRows, stored: dict[str, Any]) -> Any:
    from pyspark.sql import functions

    frame = session.read.parquet(rows.folder)
    return frame.select(
        *(functions.col(quoted(name)).cast(stored[name]).alias(name) for name in change.inserted or change.updated),
        *(functions.col(name) for name in frame.columns if name in (ROWID_FIELD, POSITION)),
    )


def _last_of_each(frame: Any) -> Any:
    """Of several rows with one id the last one counts."""
    from pyspark.sql import functions

    values = [functions.col(quoted(name)) for name in frame.columns if name not in (ROWID_FIELD, POSITION)]
    packed = functions.struct(*values, functions.col(POSITION))
    last = frame.groupBy(ROWID_FIELD).agg(functions.max_by(packed, functions.col(POSITION)).alias("last"))
    return last.select(ROWID_FIELD, "last.*")


def _condition(schema: TableSchema, change: ChangeSet) -> Any:
    from pyspark.sql import functions

    if schema.rowid is None or change.is_blind:
        return functions.lit(False)
    stored = f"t.{quoted(schema.rowid.name)}"
    return (functions.col(stored) == functions.col(f"s.{ROWID_FIELD}")) & _pruning(stored, change)


def _pruning(stored: str, change: ChangeSet) -> Any:
    """Which stored ids can matter, in literals, so that statistics rule out files."""
    from pyspark.sql import functions

    # New ids are above every other, so for them statistics rule out every file and the MERGE costs an append.
    condition = None if change.first_new is None else functions.col(stored) >= functions.lit(change.first_new)
    if not change.named:
        return condition
    is_short = len(change.named) <= _LISTED_RANGES
    named = lies_in(stored, change.named if is_short else few_ranges(change.named, _RANGES))
    return named if condition is None else condition | named


def _clauses(builder: Any, schema: TableSchema, change: ChangeSet) -> Any:
    from pyspark.sql import functions

    values = {quoted(name): functions.col(f"s.{quoted(name)}") for name in change.inserted}
    if schema.rowid is None:
        return builder.whenNotMatchedInsert(values=values)
    rowid = quoted(schema.rowid.name)
    if Operation.DELETE in change.operations:
        builder = builder.whenMatchedDelete(_is(change, Operation.DELETE))
    if Operation.UPDATE in change.operations:
        sets = {quoted(name): functions.col(f"s.{quoted(name)}") for name in change.updated}
        builder = builder.whenMatchedUpdate(_is(change, Operation.UPDATE), set=sets)
    if Operation.INSERT in change.operations:
        values[rowid] = functions.col(f"s.{ROWID_FIELD}")
        builder = builder.whenNotMatchedInsert(_is(change, Operation.INSERT), values=values)
    return builder


def _is(change: ChangeSet, operation: Operation) -> Any:
    """A condition on the source's rows; None where they are all of one kind."""
    from pyspark.sql import functions

    if len(change.operations) == 1:
        return None
    return functions.col(f"s.{OPERATION}") == functions.lit(CODES[operation]).cast("byte")
