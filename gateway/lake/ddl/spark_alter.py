"""Alters a Delta table within Delta's own transaction, so that one commit holds the whole change.

Delta's ALTER commands change one thing each; a column that is renamed takes keys
and checks along, and a crash in between must not leave one without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import functions

from gateway.errors import ConstraintError, PreconditionError
from gateway.lake.commits.delta_log import commit_by_hand, read_files, replace_files, seq, start_transaction
from gateway.lake.ddl.alterations import AlterationPlan, EveryRow, NoDuplicates, NoNulls
from gateway.lake.ddl.definitions import Definition
from gateway.lake.ddl.rewriting import naming, new_values
from gateway.lake.sql.quoting import quoted

_TABLE_FEATURES_VERSION = 7
_CLUSTERING = "clustering"
_APPEND_ONLY = "delta.appendOnly"


def forget_log(session: Any, uri: str) -> None:
    """Delta keeps what it knows of a path; another table may be there now."""
    path = session._jvm.org.apache.hadoop.fs.Path(uri)
    session._jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(session._jsparkSession, path)


def run_alteration(
    session: Any,
    uri: str,
    table: str,
    rowid_column: str,
    apply: Callable[[Definition], AlterationPlan],
    check_writer: Callable[[], object],
) -> int | None:
    """Look, edit, prove and commit as one: the version that was made; None, and no commit, where nothing changes.

    `check_writer` raises where this process must not write; it is asked right before the commit.
    """
    jvm, transaction = session._jvm, start_transaction(session, uri)
    old = transaction.metadata()
    definition = _read_definition(jvm, old, table, rowid_column)
    plan = apply(definition)
    if not plan.is_needed:
        return None
    features = _missing_features(jvm, transaction.protocol(), definition, plan)
    files = list(transaction.snapshot().allFiles().collectAsList()) if plan.proofs or plan.rewrite else []
    rewrite = plan.rewrite if files else None
    if rewrite and definition.properties.get(_APPEND_ONLY, "false").lower() == "true":
        raise PreconditionError(f"column '{rewrite.column}' cannot change: table '{table}' is append-only")
    if plan.proofs:
        transaction.readWholeTable()  # rows that come meanwhile are not proven
    if files:
        _prove(session, uri, transaction.snapshot().version(), plan, table)
    actions: list[Any] = []
    if rewrite is not None:
        transaction.readWholeTable()
        rows = read_files(session, uri, transaction, files).withColumn(rewrite.column, new_values(rewrite))
    transaction.updateMetadata(_new_metadata(jvm, old, definition, features), False)
    if rewrite is not None:
        with naming(rewrite.column):
            actions = replace_files(jvm, transaction, files, rows)
    check_writer()
    return commit_by_hand(session, transaction, actions)


def _read_definition(jvm: Any, metadata: Any, table: str, rowid_column: str) -> Definition:
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return Definition(
        table=table,
        rowid_column=rowid_column,
        fields=json.loads(metadata.schemaString())["fields"],
        properties=dict(as_java(metadata.configuration())),
        partition_columns=list(as_java(metadata.partitionColumns())),
    )


def _new_metadata(jvm: Any, old: Any, definition: Definition, features: Sequence[str]) -> Any:
    properties = jvm.java.util.HashMap()
    for key, value in definition.properties.items():
        properties.put(key, value)
    for feature in features:
        properties.put(f"delta.feature.{feature}", "supported")
    return jvm.org.apache.spark.sql.delta.actions.Metadata(
        old.id(),
        old.name(),
        old.description(),
        old.format(),
        json.dumps({"type": "struct", "fields": definition.fields}),
        seq(jvm, definition.partition_columns),
        jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(properties),
        old.createdTime(),
    )


def _missing_features(jvm: Any, protocol: Any, definition: Definition, plan: AlterationPlan) -> list[str]:
    """What has to be added to the table's protocol. Tables of the older kind are left as they are.

    Whoever made such a table may not be able to use it after a change of its protocol.
    """
    names = set(jvm.scala.jdk.javaapi.CollectionConverters.asJava(protocol.writerFeatureNames()))
    if plan.drops_column and _CLUSTERING in names:
        raise PreconditionError(f"table '{definition.table}' is clustered: its columns cannot be dropped here")
    missing = definition.needed_features() - names
    if protocol.minWriterVersion() >= _TABLE_FEATURES_VERSION:
        return sorted(missing)
    beyond = missing - {"invariants", "checkConstraints"}  # these two it has, or Delta adds them in its own way
    if beyond:
        raise PreconditionError(
            f"table '{definition.table}' is of an older kind, made by others: set delta.feature.{min(beyond)}"
            " to supported first"
        )
    return []


def _prove(session: Any, uri: str, version: int, plan: AlterationPlan, table: str) -> None:
    rows = session.read.format("delta").option("versionAsOf", version).load(uri)
    for proof in plan.proofs:
        match proof:
            case NoNulls(column):
                if not rows.where(functions.col(quoted(column)).isNull()).limit(1).isEmpty():
                    raise ConstraintError(f"column '{column}' of table '{table}' has NULLs")
            case NoDuplicates(columns, kind):
                # By place: a column may be called `count`, or have a dot in its name.
                keys = rows.select(*(functions.col(quoted(name)).alias(f"k{at}") for at, name in enumerate(columns)))
                for name in keys.columns:
                    keys = keys.where(functions.col(name).isNotNull())
                counted = keys.groupBy(*keys.columns).agg(functions.count(functions.lit(1)).alias("rows"))
                if not counted.where("rows > 1").limit(1).isEmpty():
                    shown = ", ".join(columns)
                    raise ConstraintError(f"table '{table}' has rows with the same ({shown}): no {kind} constraint")
            case EveryRow(condition, original):
                if not rows.where(f"NOT ({condition})").limit(1).isEmpty():
                    raise ConstraintError(f"table '{table}' has rows that break CHECK '{original[:80]}'")
