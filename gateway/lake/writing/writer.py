"""The writer of one table: statements in, durable commits out.

One MERGE runs at a time per table, for as many statements as fit together, so
the gateway's own writers never conflict. A commit that meets foreign writers is
run again where that is safe, bounded by time; one that failed in an unclear way
is settled by looking for its id in the log before anything else happens.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from gateway.catalog.changes import Operation
from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    GatewayError,
    InternalError,
    OutcomeUnknownError,
    UnavailableError,
)
from gateway.lake.commits.failures import Explained, Failure, explain
from gateway.lake.commits.notes import CommitNote, StatementNote, affected_in, find_commit
from gateway.lake.commits.reverting import revert_commit
from gateway.lake.commits.writer_lock import UNGUARDED, WriteGuard
from gateway.lake.reading.lookups import ranges_condition
from gateway.lake.reading.pruning import files_for
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.tables.id_sets import IdSet, joined
from gateway.lake.tables.snapshots import LogSnapshot, Snapshots
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.change_sets import ChangeSet
from gateway.lake.writing.committer import Committer
from gateway.lake.writing.conflicts import Conflicts
from gateway.lake.writing.merge import run_append, run_merge
from gateway.lake.writing.pending import Committed, Outcome, Pending, Undoing, Work
from gateway.lake.writing.preparation import Prepared, prepare
from gateway.lake.writing.spark_keys import check_keys_with_spark
from gateway.lake.writing.turns import Turns
from gateway.lake.writing.undo import prepare_undo
from gateway.lake.writing.violations import find_violations
from gateway.settings import StagingSettings, WriteSettings
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)


# Any commit by others between the look at the head and the MERGE's own commit makes the MERGE fail. After so many
# tries, new rows are appended instead: Delta's append reads nothing, so that others who add rows do not matter.
_MERGE_TRIES = 2
# However long one takes: a MERGE that takes longer than `write.retry_seconds` is tried again all the same.
_FEWEST_TRIES = 4


class _NotLandedError(Exception):
    """The commit surely did not land, and trying it again may help."""


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A commit of which nobody knows whether it landed, and the JVM that may still be at it."""

    note: CommitNote
    after_version: int
    jvm: object


class TableWriter:
    """Thread-safe: the committer lets one group run at a time."""

    def __init__(
        self,
        table: str,
        snapshots: Snapshots,
        log_folder: Folder,
        spark: Spark,
        settings: WriteSettings,
        staging: StagingSettings,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        self._turns = Turns(table)
        self._table = table
        self._snapshots = snapshots
        self._log = log_folder
        self._spark = spark
        self._settings = settings
        self._guard = guard
        self._conflicts = Conflicts(table, snapshots, log_folder)
        self._unsettled: _Unsettled | None = None
        self._committer = Committer(table, self._commit_group, settings, staging)

    def commit(self, work: Work) -> Committed:
        with self.beside_others(work.context.is_cancelled):
            return self._committer.commit(work)

    def beside_others(self, is_cancelled: Callable[[], bool] = lambda: False) -> AbstractContextManager[None]:
        """For what writes rows: never beside a change of the table's definition or place."""
        return self._turns.with_others(self._settings.wait_seconds, is_cancelled)

    @contextmanager
    def paused(self, wait_seconds: float) -> Iterator[None]:
        """Alone with the table, and sure that no earlier commit may still land."""
        with self._turns.alone(wait_seconds):
            self._settle_earlier()
            yield

    def _commit_group(self, group: Sequence[Work], tries: int = 0) -> Mapping[Work, Outcome]:
        """Write a group until it lands or has failed for good; it may have been tried before."""
        outcomes: dict[Work, Outcome] = {}
        started = time.monotonic()
        while group := [work for work in group if not _is_cancelled(work, outcomes)]:
            if tries == _MERGE_TRIES and len(parts := _inserts_apart(group)) > 1:
                return outcomes | self._commit_each(parts, tries)
            try:
                tries += 1
                prepared = self._attempt(group, may_append=tries > _MERGE_TRIES)
            except _NotLandedError:
                seconds = time.monotonic() - started
                if tries >= _FEWEST_TRIES and seconds > self._settings.retry_seconds:
                    return outcomes | dict.fromkeys(group, self._too_often(tries, seconds))
                time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - jitter
            except (OutcomeUnknownError, UnavailableError) as error:
                return outcomes | dict.fromkeys(group, error)  # nobody's fault in particular
            except GatewayError as error:
                return outcomes | self._blame(group, error)
            else:
                return outcomes | prepared.settled | prepared.members
        return outcomes

    def _too_often(self, tries: int, seconds: float) -> ConflictError:
        return ConflictError(
            f"table '{self._table}': others committed to it during each of {tries} tries in {seconds:.0f} s, and rows"
            " can only be changed while nobody else commits; try again, or let the other writers pause"
        )

    def _commit_each(self, groups: Iterable[Sequence[Work]], tries: int = 0) -> dict[Work, Outcome]:
        return {work: outcome for group in groups for work, outcome in self._commit_group(group, tries).items()}

    def _blame(self, group: Sequence[Work], error: GatewayError) -> dict[Work, Outcome]:
        """One or more of the statements are at fault: they are told, and the others are written without them."""
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
        head = self._snapshots.current()
        prepared = self._prepare(head, group)
        if prepared.change is None:
            return {}
        members = list(prepared.members)
        counts = [prepared.members[work].affected for work in members]
        try:
            with self._spark.session(Profile.LATENCY) as session:
                found = find_violations(session, head, prepared.change, counts)
        except GatewayError:
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            log.warning("constraints_not_evaluated", table=self._table, error=type(error).__name__)
            return {}
        return {members[place]: ConstraintError(text) for place, text in found.items()}

    def _attempt(self, group: Sequence[Work], *, may_append: bool) -> Prepared:
        """One try; what it prepared, with the versions filled in."""
        self._settle_earlier()
        head = self._snapshots.current()
        prepared = self._prepare(head, group)
        if prepared.change is None:
            return prepared
        is_shared = len(prepared.members) > 1
        note = CommitNote(tuple(work.note(done, is_shared=is_shared) for work, done in prepared.members.items()))
        started, jvm = time.monotonic(), self._spark.jvm
        appends = may_append and prepared.change.operations == {Operation.INSERT}
        affected: int | None
        try:
            version, affected = self._write(head, prepared.change, note, appends=appends)
        except (GatewayError, _NotLandedError):
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            version, affected = self._settle(head, note, error, jvm)
        if affected is not None and not prepared.expects(affected):
            raise self._reverted(head, version, affected)
        _fill_in(prepared, version, affected)
        touched = [part for done in prepared.members.values() for part in done.row_ids.ranges]
        is_exact = all(done.row_ids.is_exact for done in prepared.members.values())
        self._conflicts.remember(head, version, IdSet(tuple(joined(touched)), is_exact))
        self._report(prepared, version, time.monotonic() - started)
        return prepared

    def _reverted(self, head: LogSnapshot, version: int, affected: int) -> GatewayError:
        """A commit that holds other rows than it should is never told as a success: it is taken back."""
        log.error("commit_miscounted", table=self._table, version=version, affected=affected)
        note = CommitNote((StatementNote("revert", "deltaport", affected, reverts=version),))
        try:
            with self._spark.session(Profile.THROUGHPUT) as session:
                revert_commit(session, head.uri, version, note)
        except Exception as error:  # py4j, Spark and Delta each raise their own
            log.error("commit_not_reverted", table=self._table, version=version, error=type(error).__name__)
            return OutcomeUnknownError(
                f"table '{self._table}': version {version} holds other rows than the statement had; look at it"
            )
        return InternalError(f"table '{self._table}': Spark wrote other rows than it was given; that was taken back")

    def _prepare(self, head: LogSnapshot, group: Sequence[Work]) -> Prepared:
        try:
            return self._prepared(head, group)
        except GatewayError:
            raise
        except Exception as error:  # of one statement, perhaps: whoever asked looks for it
            log.exception("group_not_prepared", table=self._table, statements=len(group))
            raise InternalError(f"table '{self._table}': the statement could not be prepared") from error

    def _prepared(self, head: LogSnapshot, group: Sequence[Work]) -> Prepared:
        if isinstance(group[0], Undoing):
            with self._spark.session(Profile.THROUGHPUT) as session:
                return prepare_undo(
                    session, head, self._log, group[0], lambda version: self._snapshots.at(version).schema
                )
        return prepare(head, [work for work in group if isinstance(work, Pending)], self._conflicts)

    def _write(
        self, head: LogSnapshot, change: ChangeSet, note: CommitNote, *, appends: bool
    ) -> tuple[int, int | None]:
        """The version it made and how many rows it changed, where that is known."""
        affected = None
        with self._spark.session(self._profile(head, change)) as session:
            self._guard.check()
            if not isinstance(change.rows, pa.Table):
                check_keys_with_spark(session, head, change)
            if appends:
                run_append(session, head, change, note.encode())
            else:
                affected = run_merge(session, head, change, note.encode())
        version = find_commit(self._log, head.version, note.id) if affected or appends else None
        if version is not None:
            return version, affected_in(self._log, version) if affected is None else affected
        if affected:
            raise InternalError(f"table '{self._table}': the commit of the statement is not in the log")
        # Others gave ids meanwhile, so the `txn` action was not above the last one, or they took the rows away,
        # all of them, so that Spark had nothing to do and did not even meet the fence.
        raise _NotLandedError

    def _profile(self, head: LogSnapshot, change: ChangeSet) -> Profile:
        if not isinstance(change.rows, pa.Table):
            return Profile.THROUGHPUT
        if not change.named or head.schema.rowid is None:
            return Profile.LATENCY
        sizes = head.files.column("size_bytes").to_pylist()
        touched = sum(sizes[index] for index in files_for(head, ranges_condition(head.schema.rowid, change.named)))
        return Profile.LATENCY if touched <= self._settings.small_bytes else Profile.THROUGHPUT

    def _settle(self, head: LogSnapshot, note: CommitNote, error: Exception, jvm: object) -> tuple[int, int | None]:
        """The log decides what an error left open."""
        explained = explain(error)
        # A JVM that does not answer may still be writing: the log is final once the JVM is gone.
        is_final = explained.failure is not Failure.SPARK_GONE or self._spark.has_ended(jvm)
        version = find_commit(self._log, head.version, note.id)
        if version is not None:
            log.warning(
                "merge_landed_in_spite_of_error", table=self._table, version=version, failure=explained.failure.value
            )
            return version, affected_in(self._log, version)
        if explained.failure is Failure.CONFLICT:
            raise _NotLandedError
        if explained.failure is Failure.OTHER and self._snapshots.current().schema != head.schema:
            raise _NotLandedError  # a column it meant was changed meanwhile; the next look will say so
        if not is_final:
            log.error("merge_outcome_unknown", table=self._table, commit=note.id)
            self._unsettled = _Unsettled(note, head.version, jvm)
            raise OutcomeUnknownError(
                f"table '{self._table}': it is not known whether the statement was written"
            ) from error
        raise self._surely_not(explained, error) from error

    def _settle_earlier(self) -> None:
        """Nothing is written while a commit before it may still land."""
        earlier = self._unsettled
        if earlier is None:
            return
        is_over = self._spark.has_ended(earlier.jvm, 0)
        if not is_over and find_commit(self._log, earlier.after_version, earlier.note.id) is None:
            raise UnavailableError(f"table '{self._table}': Spark may still be writing an earlier statement; try again")
        self._unsettled = None

    def _surely_not(self, explained: Explained, error: Exception) -> GatewayError:
        if explained.failure is Failure.CONSTRAINT:
            return ConstraintError(explained.detail)
        log.error("merge_failed", table=self._table, error=type(error).__name__, detail=explained.detail)
        if explained.failure is Failure.SPARK_GONE:
            return UnavailableError("Spark stopped during the statement; nothing was written, try again")
        return InternalError(f"table '{self._table}': Spark could not write; nothing was changed")

    def _report(self, prepared: Prepared, version: int, seconds: float) -> None:
        rows: Counter[str] = Counter()
        for work, done in prepared.members.items():
            rows[work.kind] += done.affected
        for kind, count in rows.items():
            metrics.WRITE_ROWS.labels(kind).inc(count)
        metrics.MERGE_SECONDS.observe(seconds)
        metrics.MERGE_STATEMENTS.observe(len(prepared.members))
        log.info(
            "merge_committed",
            table=self._table,
            version=version,
            statements=len(prepared.members),
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


def _fill_in(prepared: Prepared, version: int, affected: int | None) -> None:
    """A statement alone is counted by the MERGE; in a group each counted its rows at the head, which still held."""
    alone = len(prepared.members) == 1
    for work, done in prepared.members.items():
        counted = affected if alone and affected is not None else done.affected
        prepared.members[work] = replace(done, affected=counted, version=version)
