"""Runs one ALTER on one table until it has landed or surely has not.

Whoever alters a table is alone with it: statements of this gateway wait. After a
commit by others the change is planned anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.lake.commits.landing import ALTERED, Landing
from gateway.lake.commits.notes import CommitNote, StatementNote
from gateway.lake.ddl.alterations import apply
from gateway.lake.ddl.spark_alter import run_alteration
from gateway.lake.spark.engine import Profile
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.wire.ddl_messages import Alteration

log = structlog.get_logger(__name__)

_SMALL_BYTES = 32 << 20  # up to here planning and compiling take longer than the rows do


@dataclass(frozen=True, slots=True)
class TableAlterer:
    """For one table; the caller sees to it that nobody else of this gateway writes to it meanwhile."""

    landing: Landing
    rowid_column: str

    def alter(self, change: Alteration, caller: str) -> int | None:
        """The version that it made; None where there was nothing to change."""
        return self.landing.run(ALTERED, lambda head, _tries: self._attempt(head, change, caller))

    def _attempt(self, head: LogSnapshot, change: Alteration, caller: str) -> int | None:
        operation, table = type(change).__name__, self.landing.table
        profile = Profile.LATENCY if head.size.bytes <= _SMALL_BYTES else Profile.THROUGHPUT
        started = time.monotonic()

        def make(session: Any) -> int | None:
            return run_alteration(
                session,
                head.uri,
                table,
                self.rowid_column,
                lambda definition: apply(definition, change),
                self.landing.guard.check,
            )

        landed = self.landing.commit(ALTERED, head, CommitNote((StatementNote(operation, caller, 0),)), profile, make)
        if landed is None:
            return None
        log.info("table_altered", table=table, operation=operation, seconds=round(time.monotonic() - started, 3))
        return landed.version
