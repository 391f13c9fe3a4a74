"""Delta's own transactions, which pyspark has no words for: whole files in, whole files out, one commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame


def delta_log(session: Any, uri: str) -> Any:
    return session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, uri)


def start_transaction(session: Any, uri: str) -> Any:
    # Delta's transaction takes its settings from the thread's session.
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    return delta_log(session, uri).startTransaction()


def read_files(session: Any, uri: str, transaction: Any, files: Sequence[Any]) -> Any:
    """The rows of some files as the transaction sees them, with what Delta tracks of each row."""
    jvm, snapshot = session._jvm, transaction.snapshot()
    read = delta_log(session, uri).createDataFrame(snapshot, seq(jvm, files), False, jvm.scala.Option.apply(None))
    return DataFrame(jvm.org.apache.spark.sql.delta.RowTracking.preserveRowTrackingColumns(read, snapshot), session)


def replace_files(jvm: Any, transaction: Any, files: Sequence[Any], rows: Any) -> list[Any]:
    """Write rows in the place of files: the actions to commit."""
    written = jvm.scala.jdk.javaapi.CollectionConverters.asJava(transaction.writeFiles(rows._jdf))
    return [*removed(files), *written]


def removed(files: Sequence[Any]) -> list[Any]:
    now = int(time.time() * 1000)
    return [file.removeWithTimestamp(now, True) for file in files]


def commit_by_hand(session: Any, transaction: Any, actions: Sequence[Any]) -> int:
    """The version that it made."""
    operation = getattr(getattr(session._jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    return int(transaction.commit(seq(session._jvm, actions), operation))


def seq(jvm: Any, items: Sequence[Any]) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(items))
