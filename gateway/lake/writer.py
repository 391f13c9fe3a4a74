"""The committer of one table: a change in, a durable commit out.

One MERGE runs at a time per table, so the gateway's own writers never conflict.
A commit that meets foreign writers is run again where that is safe, bounded by
time; one that failed in an unclear way is settled by looking for its id in the
log before anything else happens.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

import pyarrow.compute as pc
import structlog

from gateway.catalog.changes import Operation, WriteContext, WriteOptions
from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    GatewayError,
    InternalError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    RequestError,
    UnavailableError,
)
from gateway.lake.commits import CommitNote, Explained, Failure, counts_of, explain, find_commit
from gateway.lake.keys import check_keys
from gateway.lake.lookups import RowIds, distinct, ids_condition, rows_by_id, same_rows
from gateway.lake.merge import Change, Counts, compared_columns, few_ranges, last_of_each, run_merge, with_old_values
from gateway.lake.pruning import files_for
from gateway.lake.rowids import highest_row_id
from gateway.lake.snapshots import LogSnapshot, Snapshots
from gateway.lake.spark import Profile, Spark
from gateway.lake.spark_keys import check_spooled_keys
from gateway.lake.staging import StagedRows
from gateway.lake.storage import Folder
from gateway.lake.uploads import ROWID_FIELD, UploadPlan
from gateway.settings import WriteSettings
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)

_MOST_ROW_IDS = 1 << 63


@dataclass(frozen=True, slots=True)
class Pending:
    """A statement that is complete and waits for its commit."""

    operation: Operation
    plan: UploadPlan
    rows: StagedRows
    options: WriteOptions
    context: WriteContext


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a statement; `version` is None when there was nothing to change."""

    affected: int
    version: int | None


class TableWriter:
    """Thread-safe: `_turn` lets one commit run at a time."""

    def __init__(
        self, table: str, snapshots: Snapshots, log_folder: Folder, spark: Spark, settings: WriteSettings
    ) -> None:
        self._table = table
        self._snapshots = snapshots
        self._log = log_folder
        self._spark = spark
        self._settings = settings
        self._turn = threading.Lock()

    def commit(self, pending: Pending) -> Committed:
        with self._turn:
            deadline = time.monotonic() + self._settings.retry_seconds
            while True:
                if pending.context.is_cancelled():
                    raise CancelledError("the statement was cancelled; nothing was written")
                done = self._attempt(pending)
                if done is not None:
                    return done
                if time.monotonic() > deadline:
                    waited = f"{self._settings.retry_seconds:g} s"
                    raise ConflictError(f"table '{self._table}': other writers were faster for {waited}; try again")
                time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - jitter

    def _attempt(self, pending: Pending) -> Committed | None:
        """One try; None when it surely did not land and may be tried again."""
        head = self._snapshots.current()
        _check_schema(head, pending)
        change = self._prepare(head, pending)
        if change is None:
            return Committed(0, None)
        note = CommitNote(
            pending.context.transaction,
            pending.context.caller,
            ({"operation": pending.operation.value, "rows": change.rows.rows},),
        )
        started, jvm = time.monotonic(), self._spark.jvm
        try:
            with self._spark.session(self._profile(head, change)) as session:
                if change.rows.is_spooled:
                    check_spooled_keys(session, head, change)
                counts = run_merge(session, head.uri, head.schema, change, note.encode())
        except GatewayError:
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            return self._settle(head, change, note, error, jvm)
        if counts is None:
            return None  # a `txn` action was not above the last one: others gave ids meanwhile
        version = find_commit(self._log, head.version, note.id)
        metrics.WRITE_ROWS.labels(pending.operation.value).inc(_affected(change, counts))
        metrics.MERGE_SECONDS.labels(pending.operation.value).observe(time.monotonic() - started)
        log.info(
            "merge_committed",
            table=self._table,
            version=version,
            operation=pending.operation.value,
            rows=_affected(change, counts),
            seconds=round(time.monotonic() - started, 3),
        )
        return Committed(_affected(change, counts), version)

    def _prepare(self, head: LogSnapshot, pending: Pending) -> Change | None:
        """The change as of this head; None when it changes nothing."""
        operation, rows = pending.operation, pending.rows
        if operation is Operation.INSERT:
            if not rows.is_spooled:
                check_keys(head, rows.table())
            if head.schema.rowid is None:
                return Change(operation, pending.plan.names, rows)
            first = highest_row_id(head) + 1
            if first + rows.rows > _MOST_ROW_IDS:
                raise PreconditionError(f"table '{self._table}' has no row ids left: one of its rows has the highest")
            return Change(operation, pending.plan.names, rows, first_id=first, mark=first + rows.rows - 1)
        ranges = self._find_rows(head, pending)
        if not ranges:
            return None
        # A row that goes may hold the highest id, and then only the log remembers that it was given.
        highest = highest_row_id(head)
        mark = highest if highest > head.rowid_mark else None
        since = None if pending.context.read_version is None else head.version
        if rows.is_spooled:
            return Change(
                operation, pending.plan.names, rows, ranges=few_ranges(ranges), mark=mark, unchanged_since=since
            )
        kept = last_of_each(rows.table())
        found = rows_by_id(head, kept.column(ROWID_FIELD), () if since is None else compared_columns(head.schema))
        kept = kept.filter(pc.is_in(kept.column(ROWID_FIELD), found.column(0).combine_chunks()))
        if operation is Operation.UPDATE:
            check_keys(head, kept)
        row_ids = sorted(found.column(0).to_pylist())
        kept_rows = rows.replaced_by(kept if since is None else with_old_values(kept, found))
        return Change(operation, pending.plan.names, kept_rows, row_ids, mark=mark, unchanged_since=since)

    def _find_rows(self, head: LogSnapshot, pending: Pending) -> list[tuple[int, int]]:
        """In which ranges of ids the statement's rows are; refuses rows that changed and, if strict, unknown ones."""
        ranges = []
        missing = None
        for piece in pending.rows.pieces([ROWID_FIELD]):
            row_ids = piece.column(ROWID_FIELD)
            self._check_base(head, pending.context.read_version, row_ids)
            known = distinct(rows_by_id(head, row_ids, ()).column(0))
            unknown = row_ids.filter(pc.invert(pc.is_in(row_ids, known)))
            if len(unknown) and missing is None:
                missing = unknown[0].as_py()
            if len(known):
                ranges.append((known[0].as_py(), known[-1].as_py()))
        if missing is not None and pending.options.strict:
            raise NotFoundError(f"row_id {missing} not found in table")
        return ranges

    def _check_base(self, head: LogSnapshot, base: int | None, row_ids: RowIds) -> None:
        """First committer wins: a row that is not what it was when the caller read it cannot be changed by it."""
        if base is None or base == head.version:
            return
        before = self._snapshots.at(base)
        if before.schema != head.schema:
            raise ConflictError(self._conflict(base, head.version))
        then = rows_by_id(before, row_ids, before.schema.columns)
        now = rows_by_id(head, row_ids, head.schema.columns)
        if not same_rows(then, now):
            raise ConflictError(self._conflict(base, head.version))

    def _conflict(self, base: int, head: int) -> str:
        return f"conflict: rows of table '{self._table}' changed between version {base} and {head}; try again"

    def _profile(self, head: LogSnapshot, change: Change) -> Profile:
        if change.rows.is_spooled:
            return Profile.THROUGHPUT
        if change.operation is Operation.INSERT or head.schema.rowid is None:
            return Profile.LATENCY
        sizes = head.files.column("size_bytes").to_pylist()
        touched = sum(sizes[index] for index in files_for(head, ids_condition(head.schema.rowid, change.row_ids)))
        return Profile.LATENCY if touched <= self._settings.small_bytes else Profile.THROUGHPUT

    def _settle(
        self, head: LogSnapshot, change: Change, note: CommitNote, error: Exception, jvm: object
    ) -> Committed | None:
        """The log decides what an error left open."""
        explained = explain(error)
        # A JVM that does not answer may still be writing: the log is final once the JVM is gone.
        is_final = explained.failure is not Failure.SPARK_GONE or self._spark.has_ended(jvm)
        version = find_commit(self._log, head.version, note.id)
        if version is not None:
            log.warning(
                "merge_landed_in_spite_of_error", table=self._table, version=version, failure=explained.failure.value
            )
            counted = counts_of(self._log, version)
            counts = Counts(
                *(counted.get(f"numTargetRows{what}", change.rows.rows) for what in ("Inserted", "Updated", "Deleted"))
            )
            return Committed(_affected(change, counts), version)
        if explained.failure in (Failure.ROW_ID_TAKEN, Failure.CONFLICT):
            return None
        if not is_final:
            log.error("merge_outcome_unknown", table=self._table, commit=note.id)
            raise OutcomeUnknownError(
                f"table '{self._table}': it is not known whether the statement was written"
            ) from error
        raise self._surely_not(explained, error) from error

    def _surely_not(self, explained: Explained, error: Exception) -> GatewayError:
        if explained.failure is Failure.CONSTRAINT:
            return ConstraintError(explained.detail)
        log.error("merge_failed", table=self._table, error=type(error).__name__, detail=explained.detail)
        if explained.failure is Failure.SPARK_GONE:
            return UnavailableError("Spark stopped during the statement; nothing was written, try again")
        return InternalError(f"table '{self._table}': Spark could not write; nothing was changed")


def _check_schema(head: LogSnapshot, pending: Pending) -> None:
    """The table may have changed since the upload was planned; its rows are of the old types."""
    for _, column in pending.plan.columns:
        now = head.schema.column(column.name)
        if now is None or now.type != column.type:
            raise RequestError(f"column '{column.name}' changed during the upload: the schema changed, attach again")
    if pending.operation is Operation.INSERT and len(pending.plan.columns) != len(head.schema.columns):
        raise RequestError("the schema changed during the upload, attach again")


def _affected(change: Change, counts: Counts) -> int:
    match change.operation:
        case Operation.INSERT:
            return counts.inserted
        case Operation.UPDATE:
            return counts.updated
    return counts.deleted
