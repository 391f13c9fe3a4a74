"""The one writer: every change of data is one Delta MERGE on the row id.

The source holds rows with an operation, a row id and values. The pruning
condition on the target's row id lets statistics rule out the files that hold
none of the rows; without it MERGE reads the whole table.

Any commit by others makes a running MERGE fail, even one that only adds rows. New
rows that met that too often go in by Delta's own append, which reads nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import functions
from pyspark.sql.types import ByteType, LongType, StructField, StructType

from gateway.catalog.changes import Operation
from gateway.errors import InternalError
from gateway.lake.commits.fence import fenced
from gateway.lake.spark.columns import lies_in
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.id_sets import few_ranges
from gateway.lake.tables.internal_names import OPERATION, POSITION, ROWID_FIELD
from gateway.lake.tables.schemas import TableSchema
from gateway.lake.tables.snapshots import MARK_APPLICATION, LogSnapshot
from gateway.lake.writing.change_sets import CODES, ChangeSet
from gateway.lake.writing.staging import StagedRows
from gateway.lake.writing.undo import undo_source

_LISTED_RANGES = 2_000  # of ids are named in the pruning condition as they are; more of them by few wider ones
_RANGES = 64
_APPLICATION = "spark.databricks.delta.write.txnAppId"
_MARK = "spark.databricks.delta.write.txnVersion"


def run_merge(session: Any, head: LogSnapshot, change: ChangeSet) -> int | None:
    """Run the MERGE and say how many rows it changed; None when Spark says that it did nothing, not even look."""
    schema = head.schema
    target = DeltaTable.forPath(session, head.uri)
    with _marked(session, change):
        source = _guarded(session, source_of(session, target.toDF(), head, change), head, change)
        builder = target.alias("t").merge(source.alias("s"), _condition(schema, change))
        found = _clauses(builder, schema, change).execute().collect()
    return int(found[0]["num_affected_rows"]) if found else None


def run_append(session: Any, head: LogSnapshot, change: ChangeSet) -> None:
    """Add new rows without a look at the table. Spark says nothing of what became of it: the log does.

    Ids stay unique: the mark in the log makes this fail, or do nothing, if another gateway gave ids meanwhile. Only a
    foreign job that writes ids of its own, in that very moment, could write one of these.
    """
    assert change.operations == {Operation.INSERT}
    columns = [functions.col(quoted(name)) for name in change.inserted]
    if head.schema.rowid is not None:
        columns.append(functions.col(ROWID_FIELD).alias(head.schema.rowid.name))
    with _marked(session, change):
        source = source_of(session, DeltaTable.forPath(session, head.uri).toDF(), head, change)
        source.select(*columns).write.format("delta").mode("append").save(head.uri)


@contextlib.contextmanager
def _marked(session: Any, change: ChangeSet) -> Iterator[None]:
    """What is committed inside carries the mark of row ids where that grows."""
    if change.mark is not None:
        session.conf.set(_APPLICATION, MARK_APPLICATION)
        session.conf.set(_MARK, str(change.mark))
    try:
        yield
    finally:
        session.conf.unset(_APPLICATION)
        session.conf.unset(_MARK)


def _guarded(session: Any, source: Any, head: LogSnapshot, change: ChangeSet) -> Any:
    if head.schema.rowid is None:
        return source
    source = fenced(session, source, head)
    # Spark cannot know how little the fence holds, and would sort the table to join it.
    return functions.broadcast(source) if change.named and isinstance(change.rows, pa.Table) else source


def source_of(session: Any, table: Any, head: LogSnapshot, change: ChangeSet) -> Any:
    """The staged rows as Spark sees them, with exactly the stored types; of spooled rows with one id the last."""
    stored = stored_types(table)
    if isinstance(change.rows, pa.Table):
        return rows_in_memory(session, change.rows, stored)
    if not isinstance(change.rows, StagedRows):
        return undo_source(session, head, change.rows)
    frame = _spooled(session, change, change.rows, stored)
    if change.operations == {Operation.INSERT}:
        if change.first_new is None:
            return frame
        return frame.withColumn(ROWID_FIELD, functions.col(POSITION) + functions.lit(change.first_new))
    return _last_of_each(frame)


def stored_types(table: Any) -> dict[str, Any]:
    """The table's columns as Spark types, beside those that a source adds."""
    stored = {field.name: field.dataType for field in table.schema.fields}
    return stored | {ROWID_FIELD: LongType(), POSITION: LongType(), OPERATION: ByteType()}


def rows_in_memory(session: Any, rows: pa.Table, stored: Mapping[str, Any]) -> Any:
    """Every row, or an error before anything is written."""
    fields = [StructField(name, stored[name]) for name in rows.column_names]
    # pyspark stops at an empty chunk, and leaves out whatever follows it.
    frame = session.createDataFrame(rows.combine_chunks(), schema=StructType(fields))
    _check_complete(frame, rows.num_rows)
    return frame


def _check_complete(frame: Any, rows: int) -> None:
    """Before anything is written: does Spark have every row? Up to 48 MB, a local relation knows its size."""
    known = frame._jdf.queryExecution().analyzed().maxRows()
    if known.isDefined() and int(known.get()) != rows:
        raise InternalError(f"Spark was given {known.get()} of {rows} rows; nothing was written")


def _spooled(session: Any, change: ChangeSet, rows: StagedRows, stored: dict[str, Any]) -> Any:
    frame = session.read.parquet(rows.folder)
    return frame.select(
        *(functions.col(quoted(name)).cast(stored[name]).alias(name) for name in change.inserted or change.updated),
        *(functions.col(name) for name in frame.columns if name in (ROWID_FIELD, POSITION)),
    )


def _last_of_each(frame: Any) -> Any:
    """Of several rows with one id the last one counts."""
    values = [functions.col(quoted(name)) for name in frame.columns if name not in (ROWID_FIELD, POSITION)]
    packed = functions.struct(*values, functions.col(POSITION))
    last = frame.groupBy(ROWID_FIELD).agg(functions.max_by(packed, functions.col(POSITION)).alias("last"))
    return last.select(ROWID_FIELD, "last.*")


def _condition(schema: TableSchema, change: ChangeSet) -> Any:
    if schema.rowid is None:
        return functions.lit(False)
    stored = f"t.{quoted(schema.rowid.name)}"
    return (functions.col(stored) == functions.col(f"s.{ROWID_FIELD}")) & _pruning(stored, change)


def _pruning(stored: str, change: ChangeSet) -> Any:
    """Which stored ids can matter, in literals, so that statistics rule out files."""
    # New ids are above every other, so for them statistics rule out every file and the MERGE costs an append.
    condition = None if change.first_new is None else functions.col(stored) >= functions.lit(change.first_new)
    if not change.named:
        return condition
    is_short = len(change.named) <= _LISTED_RANGES
    named = lies_in(stored, change.named if is_short else few_ranges(change.named, _RANGES))
    return named if condition is None else condition | named


def _clauses(builder: Any, schema: TableSchema, change: ChangeSet) -> Any:
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
    if len(change.operations) == 1:
        return None
    return functions.col(f"s.{OPERATION}") == functions.lit(CODES[operation]).cast("byte")
