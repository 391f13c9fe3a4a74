"""Adoption: gives row ids to tables that others made, so that their rows can be changed and deleted.

Files whose rows lack ids, or have ids that other rows have too, are rewritten in
groups, one commit per group; every commit is a valid table that holds the same
rows, so a run that ended early is simply run again. Ids follow a row's place in
its file, which keeps each file's ids together and lets statistics find them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.catalog.names import fold
from gateway.errors import ConflictError, GatewayError, PreconditionError
from gateway.lake.adopting.numbering import (
    Unnumbered,
    UnnumberedFile,
    find_unnumbered,
    leaves_before,
    rewrite_with_ids,
)
from gateway.lake.commits.failures import explain
from gateway.lake.commits.landing import NUMBERED, Landed, Landing
from gateway.lake.commits.notes import CommitNote, StatementNote
from gateway.lake.spark.engine import Profile
from gateway.lake.sql.quoting import quoted, table_at, text_literal
from gateway.lake.tables.internal_names import check_writable
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot

log = structlog.get_logger(__name__)


_CALLER = "deltaport adopt"
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
    """How much one commit rewrites, but at least a file."""

    commit_bytes: int = 256 << 20
    commit_files: int = 1_000


class Adoption:
    """One run over one table, by one thread. Others may write to the table meanwhile."""

    def __init__(self, landing: Landing, column: str, limits: Limits | None = None) -> None:
        self._landing = landing
        self._table = landing.table
        self._snapshots = landing.snapshots
        self._column = column
        self._limits = limits or Limits()

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
        with self._landing.spark.session(Profile.LATENCY) as session:
            before = leaves_before(session, head.uri, rowid.name)
        return self._alter(f"ALTER COLUMN {quoted(rowid.name)} FIRST") if 0 < count <= before else 0

    def _set(self, key: str, value: str) -> int:
        return self._alter(f"SET TBLPROPERTIES ({text_literal(key)} = {text_literal(value)})")

    def _alter(self, change: str) -> int:
        def alter(session: Any, head: LogSnapshot, _tries: int) -> None:
            session.sql(f"ALTER TABLE {table_at(head.uri)} {change}")

        return int(self._commit("alter", 0, Profile.LATENCY, alter) is not None)

    def _find(self) -> Unnumbered:
        head = self._snapshots.current()
        try:
            with self._landing.spark.session(_profile(head.size.bytes)) as session:
                return find_unnumbered(session, head.uri, _rowid(head).name)
        except GatewayError:
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            raise self._landing.failure(NUMBERED, explain(error), error) from error

    def _number(self, found: Unnumbered, group: Sequence[UnnumberedFile]) -> int:
        """Number a group's rows; 0 when others rewrote its files meanwhile, and the next look finds those."""
        rows = sum(file.rows for file in group)

        def number(session: Any, head: LogSnapshot, tries: int) -> int:
            headroom = 0 if tries == 1 else _HEADROOM
            return rewrite_with_ids(session, head.uri, _rowid(head).name, found, group, headroom)

        landed = self._commit("adopt", rows, _profile(sum(file.bytes for file in group)), number)
        return 0 if landed is None else landed.made or rows

    def _commit(
        self, operation: str, rows: int, profile: Profile, make: Callable[[Any, LogSnapshot, int], int | None]
    ) -> Landed[int | None] | None:
        """Run a commit until it lands; None where there was nothing to do."""

        def attempt(head: LogSnapshot, tries: int) -> Landed[int | None] | None:
            started = time.monotonic()
            note = CommitNote((StatementNote(operation, _CALLER, rows),))
            landed = self._landing.commit(NUMBERED, head, note, profile, lambda session: make(session, head, tries))
            if landed is not None:
                seconds = round(time.monotonic() - started, 3)
                log.info("adoption_committed", table=self._table, operation=operation, seconds=seconds, rows=rows)
            return landed

        return self._landing.run(NUMBERED, attempt)


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
