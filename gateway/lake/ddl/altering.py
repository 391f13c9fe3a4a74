"""Runs one ALTER on one table until it has landed or surely has not.

Whoever alters a table is alone with it: statements of this gateway wait. Others
who commit at the same time make Delta refuse, and the change is planned anew.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass

import structlog

from gateway.errors import (
    ConflictError,
    ConstraintError,
    GatewayError,
    InternalError,
    OutcomeUnknownError,
    RequestError,
    UnavailableError,
)
from gateway.lake.casts.casting import DOES_NOT_FIT
from gateway.lake.commits.failures import Failure, explain
from gateway.lake.commits.notes import CommitNote, StatementNote, find_commit
from gateway.lake.commits.writer_lock import UNGUARDED, WriteGuard
from gateway.lake.ddl.alterations import apply
from gateway.lake.ddl.spark_alter import run_alteration
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.tables.snapshots import Snapshots
from gateway.lake.tables.storage import Folder
from gateway.wire.ddl_messages import Alteration, ChangeColumnType

log = structlog.get_logger(__name__)

_SMALL_BYTES = 32 << 20  # up to here planning and compiling take longer than the rows do
MISFIT = re.compile(
    r"CAST_OVERFLOW|CAST_INVALID_INPUT|NUMERIC_VALUE_OUT_OF_RANGE|ARITHMETIC_OVERFLOW|DATETIME_OVERFLOW"
    r"|DUPLICATED_MAP_KEY|" + DOES_NOT_FIT
)


@dataclass(frozen=True, slots=True)
class _Landed:
    version: int | None  # None where there was nothing to change


@dataclass(frozen=True, slots=True)
class TableAlterer:
    """For one table; the caller sees to it that nobody else of this gateway writes to it meanwhile."""

    table: str
    rowid_column: str
    snapshots: Snapshots
    log_folder: Folder
    spark: Spark
    retry_seconds: float
    guard: WriteGuard = UNGUARDED

    def alter(self, change: Alteration, caller: str) -> int | None:
        """The version that it made; None where there was nothing to change."""
        deadline = time.monotonic() + self.retry_seconds
        while (landed := self._attempt(change, caller)) is None:
            if time.monotonic() > deadline:
                waited = f"{self.retry_seconds:g} s"
                raise ConflictError(f"table '{self.table}': other writers were faster for {waited}; try again")
            time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - jitter
        return landed.version

    def _attempt(self, change: Alteration, caller: str) -> _Landed | None:
        """One try; None when it surely did not land and may be tried again."""
        head = self.snapshots.current()
        operation = type(change).__name__
        note = CommitNote((StatementNote(operation, caller, 0),))
        profile = Profile.LATENCY if head.size.bytes <= _SMALL_BYTES else Profile.THROUGHPUT
        started, jvm = time.monotonic(), self.spark.jvm
        try:
            with self.spark.session(profile) as session:
                version = run_alteration(
                    session,
                    head.uri,
                    self.table,
                    self.rowid_column,
                    lambda definition: apply(definition, change),
                    note.encode(),
                    self.guard.check,
                )
        except GatewayError:
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            return self._settle(head.version, change, note, error, jvm)
        seconds = round(time.monotonic() - started, 3)
        log.info("table_altered", table=self.table, operation=operation, seconds=seconds)
        return _Landed(version)

    def _settle(self, base: int, change: Alteration, note: CommitNote, error: Exception, jvm: object) -> _Landed | None:
        """The log decides what an error left open."""
        explained = explain(error)
        # A JVM that does not answer may still be writing: the log is final once the JVM is gone.
        is_final = explained.failure is not Failure.SPARK_GONE or self.spark.has_ended(jvm)
        if (found := find_commit(self.log_folder, base, note.id)) is not None:
            return _Landed(found)
        if not is_final:
            raise OutcomeUnknownError(f"table '{self.table}': it is not known whether it was altered") from error
        if explained.failure is Failure.CONFLICT:
            return None
        if isinstance(change, ChangeColumnType) and MISFIT.search(str(error)):
            name = change.column.name
            raise RequestError(f"column '{name}' has a value that does not fit; nothing was changed") from error
        if explained.failure is Failure.CONSTRAINT:
            raise ConstraintError(explained.detail) from error
        log.error("alter_failed", table=self.table, error=type(error).__name__, detail=str(error)[:1000])
        if explained.failure is Failure.SPARK_GONE:
            raise UnavailableError("Spark stopped during the statement; nothing was changed, try again") from error
        raise InternalError(f"table '{self.table}': Spark could not alter it; nothing was changed") from error
