"""Takes a whole commit back at once: only for one that turned out to hold other rows than it should.

Unlike an undo, which takes back what a transaction wrote, this puts back the very
files that the commit replaced, and only while nobody has committed since.
"""

from __future__ import annotations

import time
from typing import Any

from gateway.lake.commits.notes import CommitNote

_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_SNAPSHOT_DEFAULTS = range(2, 5)  # of `getSnapshotAt`, which Java sees as methods with numbers


def revert_commit(session: Any, uri: str, version: int, note: CommitNote) -> None:
    """Make the table again what it was before a version. Raises where that is not the newest, or on any conflict."""
    jvm = session._jvm
    # Delta's transaction takes its settings from the thread's session.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, uri)
    transaction = log.startTransaction()
    if transaction.readVersion() != version:
        raise RuntimeError("others committed since")
    transaction.readWholeTable()
    defaults = [getattr(log, f"getSnapshotAt$default${place}")() for place in _SNAPSHOT_DEFAULTS]
    before, after = _files(log.getSnapshotAt(version - 1, *defaults)), _files(transaction.snapshot())
    now = int(time.time() * 1000)
    actions = [file.removeWithTimestamp(now, True) for key, file in after.items() if key not in before]
    actions += [file for key, file in before.items() if key not in after]
    operation = getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    session.conf.set(_NOTE, note.encode())
    try:
        transaction.commit(jvm.org.apache.spark.api.python.PythonUtils.toSeq(actions), operation)
    finally:
        session.conf.unset(_NOTE)


def _files(snapshot: Any) -> dict[tuple[str, str], Any]:
    """A file is another one with another deletion vector."""
    return {(file.path(), str(file.getDeletionVectorUniqueId())): file for file in snapshot.allFiles().collectAsList()}
