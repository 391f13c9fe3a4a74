"""The writer of one table: statements in, durable commits out.

One MERGE runs at a time per table, for as many statements as fit together, so
the gateway's own writers never conflict. What becomes of each MERGE is the
business of the table's landing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
import structlog

from gateway.catalog.changes import Operation
from gateway.errors import (
    CancelledError,
    ConstraintError,
    GatewayError,
    InternalError,
    OutcomeUnknownError,
    UnavailableError,
)
from gateway.lake.commits.landing import WRITTEN, Landed, Landing, NotLandedError, OvertakenError
from gateway.lake.commits.notes import CommitNote, StatementNote, affected_in
from gateway.lake.commits.reverting import revert_commit
from gateway.lake.reading.lookups import ranges_condition
from gateway.lake.reading.pruning import files_for
from gateway.lake.spark.engine import Profile
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.writing.change_sets import ChangeSet
from gateway.lake.writing.commit_queue import CommitQueue
from gateway.lake.writing.conflicts import Conflicts
from gateway.lake.writing.merge import run_append, run_merge
from gateway.lake.writing.pending import Committed, Outcome, Pending, Undoing, Work
from gateway.lake.writing.preparation import prepare
from gateway.lake.writing.spark_keys import check_keys_with_spark
from gateway.lake.writing.table_lock import TableLock
from gateway.lake.writing.undo import prepare_undo
from gateway.lake.writing.violations import find_violations
from gateway.settings import StagingSettings, WriteSettings
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)


# Any commit by others between the look at the head and the MERGE's own commit makes the MERGE fail. After so many
# tries, new rows are appended instead: Delta's append reads nothing, so that others who add rows do not matter.
_MERGE_TRIES = 2


class TableWriter:
    """Thread-safe: the queue lets one group run at a time."""

    def __init__(self, landing: Landing, settings: WriteSettings, staging: StagingSettings) -> None:
        self._landing = landing
        self._table = landing.table
        self._lock = TableLock(landing.table)
        self._settings = settings
        self._conflicts = Conflicts(landing.table, landing.snapshots, landing.log_folder)
        self._queue = CommitQueue(landing.table, self._commit_group, settings, staging)

    def commit(self, work: Work) -> Committed:
        with self.shared(work.context.is_cancelled):
            return self._queue.commit(work)

    def shared(self, is_cancelled: Callable[[], bool] = lambda: False) -> AbstractContextManager[None]:
        """For what writes rows: never beside a change of the table's definition or place."""
        return self._lock.shared(self._settings.wait_seconds, is_cancelled)

    @contextmanager
    def exclusive(self, wait_seconds: float) -> Iterator[None]:
        """Alone with the table, and sure that no earlier commit may still land."""
        with self._lock.exclusive(wait_seconds):
            self._landing.settle_earlier()
            yield

    def _commit_group(self, group: Sequence[Work], tried: int = 0) -> Mapping[Work, Outcome]:
        """Write a group until it lands or has failed for good; it may have been tried before."""
        outcomes: dict[Work, Outcome] = {}

        def attempt(head: LogSnapshot, tries: int) -> dict[Work, Outcome]:
            nonlocal group
            group = [work for work in group if not _is_cancelled(work, outcomes)]
            if not group:
                return {}
            if tries > _MERGE_TRIES and len(parts := _inserts_apart(group)) > 1:
                return self._commit_each(parts, tries - 1)
            change = self._attempt(head, group, may_append=tries > _MERGE_TRIES)
            return change.settled | change.members

        try:
            return outcomes | self._landing.run(WRITTEN, attempt, tried)
        except (OutcomeUnknownError, UnavailableError, OvertakenError) as error:
            return outcomes | dict.fromkeys(group, error)  # nobody's fault in particular
        except GatewayError as error:
            failure = error
        # Not in the handler: to an error met here, this one would seem to be a cause.
        return outcomes | self._blame(group, failure)

    def _commit_each(self, groups: Iterable[Sequence[Work]], tried: int = 0) -> dict[Work, Outcome]:
        return {work: outcome for group in groups for work, outcome in self._commit_group(group, tried).items()}

    def _blame(self, group: Sequence[Work], error: GatewayError) -> dict[Work, Outcome]:
        """One or more of the statements are at fault: they get the error, and the others are written without them."""
        if len(group) == 1:
            return {group[0]: error}
        guilty = self._find_guilty(group) if isinstance(error, ConstraintError) else {}
        if guilty:
            others = [work for work in group if work not in guilty]
            return guilty | self._commit_each([others])
        middle = len(group) // 2
        return self._commit_each([group[:middle], group[middle:]])

    def _find_guilty(self, group: Sequence[Work]) -> dict[Work, Outcome]:
        """The statements that break a constraint; none where that cannot be found out."""
        head = self._landing.snapshots.current()
        change = self._prepare(head, group)
        if change.is_empty:
            return {}
        members = list(change.members)
        counts = [change.members[work].affected for work in members]
        try:
            with self._landing.spark.session(Profile.LATENCY) as session:
                found = find_violations(session, head, change, counts)
        except GatewayError:
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            log.warning("constraints_not_evaluated", table=self._table, error=type(error).__name__)
            return {}
        return {members[place]: ConstraintError(text) for place, text in found.items()}

    def _attempt(self, head: LogSnapshot, group: Sequence[Work], *, may_append: bool) -> ChangeSet:
        """One try; what it wrote, with the versions filled in."""
        change = self._prepare(head, group)
        if change.is_empty:
            return change
        is_shared = len(change.members) > 1
        note = CommitNote(tuple(work.note(done, is_shared=is_shared) for work, done in change.members.items()))
        started = time.monotonic()
        landed = self._write(head, change, note, may_append=may_append)
        version = landed.version
        affected = affected_in(self._landing.log_folder, version) if landed.made is None else landed.made
        if affected is not None and not change.expects(affected):
            raise self._reverted(head, version, affected)
        change.landed(version, affected)
        self._conflicts.remember(head, version, change.row_ids)
        self._report(change, version, time.monotonic() - started)
        return change

    def _reverted(self, head: LogSnapshot, version: int, affected: int) -> GatewayError:
        """A commit that holds other rows than it should is never reported as a success: it is taken back."""
        log.error("commit_miscounted", table=self._table, version=version, affected=affected)
        note = CommitNote((StatementNote("revert", "deltaport", affected, reverts=version),))
        try:
            self._landing.commit(
                WRITTEN, head, note, Profile.THROUGHPUT, lambda session: revert_commit(session, head.uri, version)
            )
        except (GatewayError, NotLandedError) as error:
            log.error("commit_not_reverted", table=self._table, version=version, error=type(error).__name__)
            return OutcomeUnknownError(
                f"table '{self._table}': version {version} holds other rows than the statement had; look at it"
            )
        return InternalError(f"table '{self._table}': Spark wrote other rows than it was given; that was taken back")

    def _prepare(self, head: LogSnapshot, group: Sequence[Work]) -> ChangeSet:
        try:
            return self._prepared(head, group)
        except GatewayError:
            raise
        except Exception as error:  # of one statement, perhaps: whoever asked looks for it
            log.exception("group_not_prepared", table=self._table, statements=len(group))
            raise InternalError(f"table '{self._table}': the statement could not be prepared") from error

    def _prepared(self, head: LogSnapshot, group: Sequence[Work]) -> ChangeSet:
        if isinstance(group[0], Undoing):
            commits, schema_at = self._landing.log_folder, lambda version: self._landing.snapshots.at(version).schema
            with self._landing.spark.session(Profile.THROUGHPUT) as session:
                return prepare_undo(session, head, commits, group[0], schema_at)
        return prepare(head, [work for work in group if isinstance(work, Pending)], self._conflicts)

    def _write(self, head: LogSnapshot, change: ChangeSet, note: CommitNote, *, may_append: bool) -> Landed[int | None]:
        """How many rows it changed, where Spark says so."""

        def make(session: Any) -> int | None:
            if not isinstance(change.rows, pa.Table):
                check_keys_with_spark(session, head, change)
            if may_append and change.operations == {Operation.INSERT}:
                run_append(session, head, change)
                return None
            return run_merge(session, head, change)

        landed = self._landing.commit(WRITTEN, head, note, self._profile(head, change), make)
        if landed is None:
            # Others gave ids meanwhile, so the `txn` action was not above the last one, or they took the rows away,
            # all of them, so that Spark had nothing to do and did not even meet the fence.
            raise NotLandedError
        return landed

    def _profile(self, head: LogSnapshot, change: ChangeSet) -> Profile:
        if not isinstance(change.rows, pa.Table):
            return Profile.THROUGHPUT
        if not change.named or head.schema.rowid is None:
            return Profile.LATENCY
        sizes = head.files.column("size_bytes").to_pylist()
        touched = sum(sizes[index] for index in files_for(head, ranges_condition(head.schema.rowid, change.named)))
        return Profile.LATENCY if touched <= self._settings.small_bytes else Profile.THROUGHPUT

    def _report(self, change: ChangeSet, version: int, seconds: float) -> None:
        rows: Counter[str] = Counter()
        for work, done in change.members.items():
            rows[work.kind] += done.affected
        for kind, count in rows.items():
            metrics.WRITE_ROWS.labels(kind).inc(count)
        metrics.MERGE_SECONDS.observe(seconds)
        metrics.MERGE_STATEMENTS.observe(len(change.members))
        log.info(
            "merge_committed",
            table=self._table,
            version=version,
            statements=len(change.members),
            seconds=round(seconds, 3),
            **rows,
        )


def _inserts_apart(group: Sequence[Work]) -> list[list[Work]]:
    """New rows can be appended whatever others do; they do not wait for those that cannot."""
    is_insert = [isinstance(work, Pending) and work.operation is Operation.INSERT for work in group]
    parts = [[work for work, own in zip(group, is_insert, strict=True) if own is wanted] for wanted in (True, False)]
    return [part for part in parts if part]


def _is_cancelled(pending: Work, outcomes: dict[Work, Outcome]) -> bool:
    if not pending.context.is_cancelled():
        return False
    outcomes[pending] = CancelledError("the statement was cancelled; nothing was written")
    return True
