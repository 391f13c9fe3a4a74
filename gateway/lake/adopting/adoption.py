"""Adoption: gives row ids to tables that others made, so that their rows can be changed and deleted.

Files whose rows lack ids, or have ids that other rows have too, are rewritten in
groups, one commit per group; every commit is a valid table that holds the same
rows, so a run that ended early is simply run again. Ids follow a row's place in
its file, which keeps each file's ids together and lets statistics find them.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from gateway.catalog.names import fold
from gateway.errors import (
    ConflictError,
    ConstraintError,
    GatewayError,
    InternalError,
    PreconditionError,
    UnavailableError,
)
from gateway.lake.adopting.numbering import (
    Unnumbered,
    UnnumberedFile,
    find_unnumbered,
    leaves_before,
    rewrite_with_ids,
)
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.sql.quoting import quoted, table_at, text_literal
from gateway.lake.tables.internal_names import check_writable
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LOG, LogSnapshot, Snapshots
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.commits import CommitNote, Failure, StatementNote, explain, find_commit
from gateway.lake.writing.writer_lock import UNGUARDED, WriteGuard

log = structlog.get_logger(__name__)


_CALLER = "deltaport adopt"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_APPEND_ONLY = "delta.appendOnly"
_STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
_STATISTICS_COUNT = "delta.dataSkippingNumIndexedCols"
_COUNT_DEFAULT = "32"
# Left free below the ids of a second attempt: others who give ids meanwhile stay below them and are no conflict.
_HEADROOM = 1 << 32
_SMALL_BYTES = 32 << 20  # up to here planning and compiling take longer than the rows do
_ROUNDS = 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Adopted:
    """How many rows got an id, in how many commits, and the version the table has now."""

    rows: int
    commits: int
    version: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one commit rewrites, but at least a file, and how long others may get in its way."""

    commit_bytes: int = 256 << 20
    commit_files: int = 1_000
    retry_seconds: float = 60


class Adoption:
    """One run over one table, by one thread. Others may write to the table meanwhile."""

    def __init__(
        self,
        table: str,
        uri: str,
        spark: Spark,
        column: str,
        limits: Limits | None = None,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        folder = Folder.open(uri)
        self._table = table
        self._snapshots = Snapshots(table, folder, column)
        self._log = folder.child(LOG)
        self._spark = spark
        self._column = column
        self._limits = limits or Limits()
        self._guard = guard

    def check(self) -> None:
        """Refuse a table that cannot have row ids; needs no Spark."""
        head = self._snapshots.current()
        if head.configuration.get(_APPEND_ONLY, "false").lower() == "true":
            raise PreconditionError(f"table '{self._table}' is append-only: its rows cannot be changed")
        check_writable(column.name for column in head.schema.columns)
        for column in head.schema.columns:
            if fold(column.name) == fold(self._column):
                raise PreconditionError(
                    f"table '{self._table}' has a column '{column.name}' that is no BIGINT:"
                    " name another one in rowids.column"
                )
        if head.schema.rowid is not None and head.schema.rowid.name in head.partition_columns:
            raise PreconditionError(f"table '{self._table}' is partitioned by its row id column")

    def run(self, progress: Progress = lambda _done, _total: None) -> Adopted:
        """Give every row an id of its own; `progress` hears of rows done and rows in all, after each commit."""
        self.check()
        commits = self._make_column() + self._keep_statistics()
        given = 0
        for _ in range(_ROUNDS):
            found = self._find()
            try:
                if not found.files:
                    return Adopted(given, commits, self._snapshots.current().version)
                done, total = given, given + found.rows
                progress(done, total)
                for group in _groups(found.files, self._limits):
                    rows = self._number(found, group)
                    commits += rows > 0
                    given += rows
                    done += sum(file.rows for file in group)
                    progress(done, total)
            finally:
                found.release()
        raise ConflictError(f"table '{self._table}': others add rows faster than these get ids; run it again")

    def _make_column(self) -> int:
        if self._snapshots.current().schema.rowid is not None:
            return 0
        # First, because Delta keeps statistics of a table's first columns only.
        return self._alter(f"ADD COLUMNS ({quoted(self._column)} BIGINT FIRST)")

    def _keep_statistics(self) -> int:
        """Without statistics of the row id, every change of a row would read the whole table."""
        head = self._snapshots.current()
        rowid = _rowid(head)
        named = head.configuration.get(_STATISTICS_COLUMNS)
        if named is not None:
            names = [name.strip() for name in named.split(",") if name.strip()]
            if any(fold(name.strip("`")) == fold(rowid.name) for name in names):
                return 0
            own = rowid.name if rowid.name.isidentifier() else quoted(rowid.name)
            return self._set(_STATISTICS_COLUMNS, ",".join([own, *names]))
        count = int(head.configuration.get(_STATISTICS_COUNT, _COUNT_DEFAULT))
        if count == 0:
            return self._set(_STATISTICS_COUNT, "1")
        with self._spark.session(Profile.LATENCY) as session:
            before = leaves_before(session, head.uri, rowid.name)
        return self._alter(f"ALTER COLUMN {quoted(rowid.name)} FIRST") if 0 < count <= before else 0

    def _set(self, key: str, value: str) -> int:
        return self._alter(f"SET TBLPROPERTIES ({text_literal(key)} = {text_literal(value)})")

    def _alter(self, change: str) -> int:
        def alter(head: LogSnapshot, note: CommitNote, _attempt: int) -> int:
            with self._spark.session(Profile.LATENCY) as session:
                self._guard.check()
                session.conf.set(_NOTE, note.encode())
                try:
                    session.sql(f"ALTER TABLE {table_at(head.uri)} {change}")
                finally:
                    session.conf.unset(_NOTE)
            return 1

        return self._commit("alter", alter, landed=1)

    def _find(self) -> Unnumbered:
        head = self._snapshots.current()
        try:
            with self._spark.session(_profile(head.size.bytes)) as session:
                return find_unnumbered(session, head.uri, _rowid(head).name)
        except GatewayError:
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            raise self._failure(error) from error

    def _number(self, found: Unnumbered, group: Sequence[UnnumberedFile]) -> int:
        """Number a group's rows; 0 when others rewrote its files meanwhile, and the next look finds those."""
        rows = sum(file.rows for file in group)

        def number(head: LogSnapshot, note: CommitNote, attempt: int) -> int:
            headroom = 0 if attempt == 0 else _HEADROOM
            with self._spark.session(_profile(sum(file.bytes for file in group))) as session:
                self._guard.check()
                return rewrite_with_ids(session, head.uri, _rowid(head).name, found, group, note.encode(), headroom)

        return self._commit("adopt", number, landed=rows, rows=rows)

    def _commit(
        self,
        operation: str,
        attempt: Callable[[LogSnapshot, CommitNote, int], int],
        landed: int,
        rows: int = 0,
    ) -> int:
        """Run a commit until it lands; what it answers, or `landed` where it landed in spite of an error."""
        deadline = time.monotonic() + self._limits.retry_seconds
        for number in itertools.count():
            head = self._snapshots.current()
            note = CommitNote((StatementNote(operation, _CALLER, rows),))
            started = time.monotonic()
            try:
                done = attempt(head, note, number)
            except GatewayError:
                raise
            except Exception as error:  # py4j, Spark and Delta each raise their own
                if find_commit(self._log, head.version, note.id) is not None:
                    return landed
                if explain(error).failure is not Failure.CONFLICT:
                    raise self._failure(error) from error
                if time.monotonic() > deadline:
                    waited = f"{self._limits.retry_seconds:g} s"
                    raise ConflictError(
                        f"table '{self._table}': other writers were faster for {waited}; run it again"
                    ) from error
                time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - jitter
                continue
            seconds = round(time.monotonic() - started, 3)
            log.info("adoption_committed", table=self._table, operation=operation, seconds=seconds, rows=rows)
            return done
        raise AssertionError

    def _failure(self, error: Exception) -> GatewayError:
        explained = explain(error)
        if explained.failure is Failure.CONSTRAINT:
            return ConstraintError(explained.detail)
        log.error("adoption_failed", table=self._table, error=type(error).__name__, detail=explained.detail)
        if explained.failure is Failure.SPARK_GONE:
            # Whether the last commit was written or not, the next run looks again and does what is missing.
            return UnavailableError("Spark stopped; what was committed before stays, run it again")
        return InternalError(f"table '{self._table}': Spark could not give ids; what was committed before stays")


def _rowid(head: LogSnapshot) -> Column:
    if head.schema.rowid is None:
        raise ConflictError(f"table '{head.table}': somebody else took the row id column away; run it again")
    return head.schema.rowid


def _profile(size: int) -> Profile:
    return Profile.LATENCY if size <= _SMALL_BYTES else Profile.THROUGHPUT


def _groups(files: Sequence[UnnumberedFile], limits: Limits) -> Iterator[list[UnnumberedFile]]:
    """Files of one commit each, oldest first, so that older rows have lower ids."""
    group: list[UnnumberedFile] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.modified_ms, file.path)):
        if group and (size + file.bytes > limits.commit_bytes or len(group) >= limits.commit_files):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group
