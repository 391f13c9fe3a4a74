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
from gateway.errors import CancelledError, UnavailableError
from gateway.lake.writing.pending import Committed, Outcome, Pending, Work
from gateway.settings import StagingSettings, WriteSettings

# Writes a group and tells of each statement what became of it; those it does not mention go on waiting.
CommitGroup = Callable[[Sequence[Work]], Mapping[Work, Outcome]]

_LOOK_SECONDS = 1  # how often a waiting statement looks whether its caller is still there


@dataclass
class _Group:
    """Statements that fit together: the same columns per operation, no row twice, and not too much at once."""

    limits: StagingSettings
    most: int
    members: list[Work] = field(default_factory=list)
    _columns: dict[Operation, tuple[str, ...]] = field(default_factory=dict)
    _rows: int = 0
    _bytes: int = 0

    def take(self, work: Work) -> bool:
        if self.members and not self._fits(work):
            return False
        self.members.append(work)
        if isinstance(work, Pending):
            self._columns[work.operation] = work.plan.names
            self._rows += work.rows.rows
            self._bytes += work.rows.bytes
        return True

    def _fits(self, work: Work) -> bool:
        return (
            isinstance(work, Pending)
            and not work.stands_alone
            and not self.members[0].stands_alone
            and len(self.members) < self.most
            and self._rows + work.rows.rows <= self.limits.memory_rows
            and self._bytes + work.rows.bytes <= self.limits.memory_bytes
            and self._columns.get(work.operation, work.plan.names) == work.plan.names
            and not any(member.named_ids.overlaps(work.named_ids) for member in self.members)
        )


class CommitQueue:
    """The queue of one table. Thread-safe: `_changed` guards the queue, the leader and the outcomes."""

    def __init__(
        self, table: str, commit_group: CommitGroup, settings: WriteSettings, staging: StagingSettings
    ) -> None:
        self._table = table
        self._commit_group = commit_group
        self._settings = settings
        self._staging = staging
        self._changed = threading.Condition()
        self._queue: list[Work] = []
        self._is_writing = False

    def commit(self, work: Work) -> Committed:
        """Wait for its turn, write it, and say what became of it."""
        self._enqueue(work)
        while work.outcome is None:
            if group := self._wait_to_lead(work):
                self._lead(group)
        if isinstance(work.outcome, BaseException):
            raise work.outcome
        return work.outcome

    def _enqueue(self, work: Work) -> None:
        with self._changed:
            if len(self._queue) >= self._settings.queue_statements:
                raise UnavailableError(f"table '{self._table}': too many statements wait to be written; try again")
            self._queue.append(work)

    def _wait_to_lead(self, work: Work) -> list[Work]:
        """The group to write, once it is this statement's turn; empty when another's group took it along."""
        deadline = time.monotonic() + self._settings.wait_seconds
        with self._changed:
            while work.outcome is None and (self._is_writing or self._queue[0] is not work):
                self._changed.wait(_LOOK_SECONDS)
                if work.outcome is None and work in self._queue:
                    self._leave_if(work, deadline)
            if work.outcome is not None:
                return []
            self._is_writing = True
            return self._next_group()

    def _leave_if(self, work: Work, deadline: float) -> None:
        """Leave the queue when nobody wants the answer any more, or when it takes too long."""
        if work.context.is_cancelled():
            self._queue.remove(work)
            work.outcome = CancelledError("the statement was cancelled; nothing was written")
        elif time.monotonic() > deadline:
            self._queue.remove(work)
            waited = f"{self._settings.wait_seconds:g} s"
            work.outcome = UnavailableError(f"table '{self._table}' was being written for {waited}; try again")

    def _next_group(self) -> list[Work]:
        group = _Group(self._staging, self._settings.group_statements)
        self._queue = [work for work in self._queue if not group.take(work)]
        return group.members

    def _lead(self, group: list[Work]) -> None:
        outcomes: Mapping[Work, Outcome | BaseException]
        try:
            outcomes = self._commit_group(group)
        except BaseException as error:  # nobody may wait forever
            outcomes = dict.fromkeys(group, error)
        with self._changed:
            for work in group:
                work.outcome = outcomes.get(work)
            self._queue[:0] = [work for work in group if work.outcome is None]
            self._is_writing = False
            self._changed.notify_all()
