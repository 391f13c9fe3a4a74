"""Keys of rows that are not in memory, of large uploads and of undos: Spark joins them with the table at the head."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions

from gateway.catalog.changes import Operation
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.internal_names import COUNT, OPERATION, ROWID_FIELD
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.writing.change_sets import CODES, ChangeSet
from gateway.lake.writing.keys import Key, keys_of, null_in, values_of, violation
from gateway.lake.writing.merge import source_of


def check_keys_with_spark(session: Any, snapshot: LogSnapshot, change: ChangeSet) -> None:
    """Raise a ConstraintError where a key would be there twice after the change."""
    if change.operations == {Operation.DELETE}:
        return
    for key in keys_of(snapshot):
        if set(key.names) & set(change.inserted or change.updated):
            _check_with_spark(session, snapshot, key, change)


def _check_with_spark(session: Any, snapshot: LogSnapshot, key: Key, change: ChangeSet) -> None:
    table = session.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.uri)
    new = source_of(session, table, snapshot, change)
    rowid = functions.lit(None) if snapshot.schema.rowid is None else functions.col(quoted(snapshot.schema.rowid.name))
    table = table.select(*(functions.col(quoted(name)) for name in key.names), rowid.cast("long").alias(ROWID_FIELD))
    if change.named:
        set_here = [functions.col(quoted(name)) for name in key.names if name in change.updated]
        others = [functions.col(quoted(name)) for name in key.names if name not in change.updated]
        changed = new.select(ROWID_FIELD)
        if Operation.DELETE in change.operations:
            new = new.where(functions.col(OPERATION) != functions.lit(CODES[Operation.DELETE]))
        if change.operations == {Operation.UPDATE}:  # ids that are not there write nothing
            new = new.select(*set_here, ROWID_FIELD).join(table.select(*others, ROWID_FIELD), ROWID_FIELD)
        table = table.join(changed, ROWID_FIELD, "left_anti")
    columns = [functions.col(quoted(name)) for name in key.names]
    new = new.select(*columns)
    for column, value in zip(key.columns, columns, strict=True):
        if key.is_primary and column.nullable and new.where(value.isNull()).take(1):
            raise null_in(column)
        new = new.where(value.isNotNull())  # a key with a NULL in it is like no other
    counted = new.groupBy(*columns).agg(functions.count(functions.lit(1)).alias(COUNT))
    twice = counted.where(functions.col(COUNT) > 1)
    for duplicates in (twice.select(*columns), _join(new, table, key)):
        # Through Arrow: a row of pyspark's own has its times in the time zone of this machine.
        if (found := duplicates.limit(1).toArrow()).num_rows:
            raise violation(key, values_of(found))


def _join(new: Any, table: Any, key: Key) -> Any:
    new, table = new.alias("new"), table.alias("stored")
    condition = functions.lit(True)
    for name in key.names:
        condition &= functions.col(f"new.{quoted(name)}") == functions.col(f"stored.{quoted(name)}")
    return new.join(table, condition, "left_semi")
