"""Group commit: who writes next into a table, and together with whom.

While a commit runs, statements queue up; when it ends, the first of them leads
the next one and takes along what fits. No timer and no thread: a lone statement
never waits, and whoever waits is one of the callers. The head of the queue is
in every group, so nobody is passed over for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.catalog.changes import Operation
from gateway.errors import CancelledError, GatewayError, UnavailableError
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.internal_names import ROWID_FIELD
from gateway.lake.writing.pending import Committed, Pending, Work
from gateway.settings import StagingSettings, WriteSettings

Outcome = Committed | GatewayError
# Writes a group and tells of each statement what became of it; those it does not mention go on waiting.
CommitGroup = Callable[[Sequence[Work]], Mapping[Work, Outcome]]

_LOOK_SECONDS = 1  # how often a waiting statement looks whether its caller is still there


@dataclass(eq=False)
class _Waiting:
    work: Work
    row_ids: IdSet
    outcome: Outcome | BaseException | None = None

    @classmethod
    def of(cls, work: Work) -> _Waiting:
        if isinstance(work, Pending) and work.operation is not Operation.INSERT and not work.stands_alone:
            return cls(work, IdSet.of(work.rows.table().column(ROWID_FIELD).to_pylist()))
        return cls(work, IdSet())


@dataclass
class _Group:
    """Statements that fit together: the same columns per operation, no row twice, and not too much at once."""

    limits: StagingSettings
    most: int
    members: list[_Waiting] = field(default_factory=list)
    _columns: dict[Operation, tuple[str, ...]] = field(default_factory=dict)
    _rows: int = 0
    _bytes: int = 0

    def take(self, waiting: _Waiting) -> bool:
        if self.members and not self._fits(waiting):
            return False
        self.members.append(waiting)
        if isinstance(work := waiting.work, Pending):
            self._columns[work.operation] = work.plan.names
            self._rows += work.rows.rows
            self._bytes += work.rows.bytes
        return True

    def _fits(self, waiting: _Waiting) -> bool:
        work = waiting.work
        return (
            isinstance(work, Pending)
            and not work.stands_alone
            and not self.members[0].work.stands_alone
            and len(self.members) < self.most
            and self._rows + work.rows.rows <= self.limits.memory_rows
            and self._bytes + work.rows.bytes <= self.limits.memory_bytes
            and self._columns.get(work.operation, work.plan.names) == work.plan.names
            and not any(member.row_ids.overlaps(waiting.row_ids) for member in self.members)
        )


class Committer:
    """The queue of one table. Thread-safe: `_changed` guards the queue, the leader and the outcomes."""

    def __init__(
        self, table: str, commit_group: CommitGroup, settings: WriteSettings, staging: StagingSettings
    ) -> None:
        self._table = table
        self._commit_group = commit_group
        self._settings = settings
        self._staging = staging
        self._changed = threading.Condition()
        self._queue: list[_Waiting] = []
        self._is_writing = False

    def commit(self, work: Work) -> Committed:
        """Wait for its turn, write it, and say what became of it."""
        waiting = _Waiting.of(work)
        self._enqueue(waiting)
        while waiting.outcome is None:
            if group := self._wait_to_lead(waiting):
                self._lead(group)
        if isinstance(waiting.outcome, BaseException):
            raise waiting.outcome
        return waiting.outcome

    def _enqueue(self, waiting: _Waiting) -> None:
        with self._changed:
            if len(self._queue) >= self._settings.queue_statements:
                raise UnavailableError(f"table '{self._table}': too many statements wait to be written; try again")
            self._queue.append(waiting)

    def _wait_to_lead(self, waiting: _Waiting) -> list[_Waiting]:
        """The group to write, once it is this statement's turn; empty when another's group took it along."""
        deadline = time.monotonic() + self._settings.wait_seconds
        with self._changed:
            while waiting.outcome is None and (self._is_writing or self._queue[0] is not waiting):
                self._changed.wait(_LOOK_SECONDS)
                if waiting.outcome is None and waiting in self._queue:
                    self._leave_if(waiting, deadline)
            if waiting.outcome is not None:
                return []
            self._is_writing = True
            return self._next_group()

    def _leave_if(self, waiting: _Waiting, deadline: float) -> None:
        """Leave the queue when nobody wants the answer any more, or when it takes too long."""
        if waiting.work.context.is_cancelled():
            self._queue.remove(waiting)
            waiting.outcome = CancelledError("the statement was cancelled; nothing was written")
        elif time.monotonic() > deadline:
            self._queue.remove(waiting)
            waited = f"{self._settings.wait_seconds:g} s"
            waiting.outcome = UnavailableError(f"table '{self._table}' was being written for {waited}; try again")

    def _next_group(self) -> list[_Waiting]:
        group = _Group(self._staging, self._settings.group_statements)
        self._queue = [waiting for waiting in self._queue if not group.take(waiting)]
        return group.members

    def _lead(self, group: list[_Waiting]) -> None:
        outcomes: Mapping[Work, Outcome | BaseException]
        try:
            outcomes = self._commit_group([waiting.work for waiting in group])
        except BaseException as error:  # nobody may wait forever
            outcomes = {waiting.work: error for waiting in group}
        with self._changed:
            for waiting in group:
                waiting.outcome = outcomes.get(waiting.work)
            self._queue[:0] = [waiting for waiting in group if waiting.outcome is None]
            self._is_writing = False
            self._changed.notify_all()
