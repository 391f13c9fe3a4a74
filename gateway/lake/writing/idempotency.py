"""Statements that bring an idempotency key are written once, however often they are sent.

A key belongs to a caller and a table. Whoever sends it again within the window
gets the answer of the first time: from memory, or after a restart from the notes
in the log. The same key with other rows is an error; while the first is on its
way, the second waits for it. What was rolled back was not written: its key is free
again. Where the log does not reach back as far as the window, a key that is not
known may have been used all the same, so it is refused.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from gateway.catalog.changes import Operation, WriteContext
from gateway.errors import CancelledError, PreconditionError, RequestError
from gateway.lake.commits.notes import Noted, noted_in
from gateway.lake.tables.history import commit_times
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.internal_names import POSITION
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.pending import Committed
from gateway.lake.writing.staging import StagedRows

_WINDOW_ROWS = 8_192
_LOOK_SECONDS = 1
# The clock of a mounted disk may differ from ours: so much more of the log is read.
_CLOCKS_DIFFER_SECONDS = 3_600


class Head(Protocol):
    """The newest version of a table, and what tells it from another one under its name."""

    @property
    def version(self) -> int: ...

    @property
    def table_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Answer:
    digest: str
    committed: Committed
    written_at: float  # seconds since the epoch
    transaction: str | None = None


@dataclass
class _Attempt:
    """The first sending of a key, on its way."""

    digest: str
    ended: threading.Event = field(default_factory=threading.Event)


_Identity = tuple[str, str]  # caller and key


class Answers:
    """The keys of one table. Thread-safe: one lock guards what is known and what is on its way."""

    def __init__(
        self,
        table: str,
        log: Folder,
        head: Callable[[], Head],
        window_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._log = log
        self._head = head
        self._window_seconds = window_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[_Identity, Answer] = OrderedDict()  # oldest first
        self._table_id: str | None = None
        self._read_until = -1  # what is known of the log: another gateway may have written before this one took over
        self._known_since = math.inf  # the moment from which on every key is known
        self._running: dict[_Identity, _Attempt] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    def drop_old(self) -> None:
        """Forget the keys that are older than the window."""
        since = self._clock() - self._window_seconds
        with self._lock:
            while self._known and next(iter(self._known.values())).written_at < since:
                self._known.popitem(last=False)

    def find(self, context: WriteContext) -> Committed | None:
        """The answer that was given before; raises already where the statement can only be refused."""
        if context.idempotency_key is None:
            return None
        identity = context.caller, context.idempotency_key
        self.drop_old()
        with self._lock:
            answer = self._look_up(identity, context)
            if answer is None and identity not in self._running:
                self._check_may_write(context)
        return None if answer is None else answer.committed

    def once(self, context: WriteContext, digest: str, write: Callable[[], Committed]) -> Committed:
        """Write, unless that was done before; then only say so again."""
        assert context.idempotency_key is not None
        identity = context.caller, context.idempotency_key
        attempt = _Attempt(digest)
        while True:
            with self._lock:
                if (answer := self._look_up(identity, context)) is not None:
                    _check_same(answer.digest, digest, context.idempotency_key)
                    return replace(answer.committed, is_repeat=True)
                if (first := self._running.get(identity)) is None:
                    self._check_may_write(context)
                    first = self._running[identity] = attempt
            if first is attempt:
                return self._write(identity, context, attempt, write)
            _check_same(first.digest, digest, context.idempotency_key)
            while not first.ended.wait(_LOOK_SECONDS):
                if context.is_cancelled():
                    raise CancelledError("the statement was cancelled")

    def _write(
        self, identity: _Identity, context: WriteContext, attempt: _Attempt, write: Callable[[], Committed]
    ) -> Committed:
        try:
            committed = write()
            with self._lock:
                self._remember(identity, Answer(attempt.digest, committed, self._clock(), context.transaction))
            return committed
        finally:
            with self._lock:
                del self._running[identity]
            attempt.ended.set()

    def _remember(self, identity: _Identity, answer: Answer) -> None:
        self._known[identity] = answer
        self._known.move_to_end(identity)

    def _look_up(self, identity: _Identity, context: WriteContext) -> Answer | None:
        """What failed in an unclear way may have been written after all, so the log is always asked first."""
        since = self._clock() - self._window_seconds
        self._catch_up(since)
        answer = self._known.get(identity)
        if answer is None or answer.written_at < since:
            return None
        if answer.transaction != context.transaction and (refusal := context.refusal()) is not None:
            raise refusal  # a statement of another transaction is not sent again here
        return answer

    def _check_may_write(self, context: WriteContext) -> None:
        if (refusal := context.refusal()) is not None:
            raise refusal
        if self._known_since > self._clock() - self._window_seconds:
            raise PreconditionError(
                f"table '{self._table}': its log does not reach back as far as idempotency keys are remembered, so"
                f" '{(context.idempotency_key or '')[:60]}' may have been used before; nothing was written"
            )

    def _catch_up(self, since: float) -> None:
        """Read what was committed since the last look."""
        head = self._head()
        unread: Sequence[int] = range(self._read_until + 1, head.version + 1)
        if head.table_id != self._table_id or head.version < self._read_until:  # the first look, or another table
            self._known.clear()
            self._table_id, unread = head.table_id, self._begin(since)
        for version in unread:
            if version > head.version:
                break
            noted = noted_in(self._log, version)
            if noted is None:  # gone before it was read
                self._known_since = self._clock()
            else:
                self._learn(noted)
        self._read_until = head.version

    def _begin(self, since: float) -> list[int]:
        """The versions to read at first, and from when on that is all.

        By the times of the files, each for itself: a commit of others may bear any date.
        """
        times = commit_times(self._log)
        oldest = min(times, default=0)
        self._known_since = -math.inf if oldest == 0 else times[oldest] / 1000
        from_ms = (since - _CLOCKS_DIFFER_SECONDS) * 1000
        return [version for version, when in times.items() if when >= from_ms]

    def _learn(self, noted: Noted) -> None:
        for note in noted.statements:
            if note.undoes is not None:
                self._free([known for known, each in self._known.items() if each.transaction == note.undoes])
            elif note.reverts is not None:
                self._free([known for known, each in self._known.items() if each.committed.version == note.reverts])
            elif note.key is not None and note.digest is not None:
                committed = Committed(note.rows, noted.version, IdSet.decode(note.ids or ""))
                answer = Answer(note.digest, committed, noted.written_at, note.transaction)
                self._remember((note.caller, note.key), answer)

    def _free(self, taken_back: Iterable[_Identity]) -> None:
        for identity in taken_back:
            del self._known[identity]


def _check_same(one: str, other: str, key: str) -> None:
    if one != other:
        raise RequestError(f"idempotency key '{key[:60]}' was used with another statement")


def digest_of(operation: Operation, columns: tuple[str, ...], rows: StagedRows) -> str:
    """What a statement is, whatever batches it came in."""
    digest = hashlib.sha256(repr((operation.value, columns)).encode())
    names = [name for name in rows.schema.names if name != POSITION]
    for window in _windows(rows.pieces(names)):
        # Taken anew, the same rows have the same bytes, whatever slices they were.
        anew = window.take(pa.arange(0, window.num_rows)).combine_chunks()
        digest.update(anew.to_batches()[0].serialize())
    return digest.hexdigest()[:32]


def _windows(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, the same number at a time but for the last."""
    rest: pa.Table | None = None
    for piece in pieces:
        whole = piece if rest is None else pa.concat_tables([rest, piece])
        full = whole.num_rows - whole.num_rows % _WINDOW_ROWS
        for start in range(0, full, _WINDOW_ROWS):
            yield whole.slice(start, _WINDOW_ROWS)
        rest = whole.slice(full)
    if rest is not None and rest.num_rows:
        yield rest
