"""Statements that bring an idempotency key are written once, however often they are sent.

A key belongs to a caller and a table. Whoever sends it again within the window
gets the answer of the first time: from memory, or after a restart from the notes
in the log. The same key with other rows is an error; while the first is on its
way, the second waits for it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from gateway.catalog.changes import Operation, WriteContext
from gateway.errors import CancelledError, RequestError
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.commits import noted_commits
from gateway.lake.writing.pending import Committed
from gateway.lake.writing.staging import POSITION, StagedRows

_WINDOW_ROWS = 8_192
_LOOK_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Answer:
    digest: str
    committed: Committed
    told_at: float  # seconds since the epoch


@dataclass
class _Attempt:
    """The first sending of a key, on its way."""

    digest: str
    ended: threading.Event = field(default_factory=threading.Event)


class Answers:
    """The keys of one table. Thread-safe: one lock guards what is known and what is on its way."""

    def __init__(
        self, log: Folder, newest: Callable[[], int], window_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._log = log
        self._newest = newest
        self._window_seconds = window_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Answer] = {}
        self._read_until = -1  # what is known of the log: another gateway may have written before this one took over
        self._running: dict[tuple[str, str], _Attempt] = {}

    def find(self, context: WriteContext) -> Committed | None:
        """The answer that was given before."""
        if context.idempotency_key is None:
            return None
        with self._lock:
            answer = self._look_up((context.caller, context.idempotency_key))
        return None if answer is None else answer.committed

    def once(self, context: WriteContext, digest: str, write: Callable[[], Committed]) -> Committed:
        """Write, unless that was done before; then only say so again."""
        assert context.idempotency_key is not None
        identity = context.caller, context.idempotency_key
        attempt = _Attempt(digest)
        while True:
            with self._lock:
                if (answer := self._look_up(identity)) is not None:
                    _check_same(answer.digest, digest, context.idempotency_key)
                    return answer.committed
                first = self._running.setdefault(identity, attempt)
            if first is attempt:
                return self._write(identity, attempt, write)
            _check_same(first.digest, digest, context.idempotency_key)
            while not first.ended.wait(_LOOK_SECONDS):
                if context.is_cancelled():
                    raise CancelledError("the statement was cancelled")

    def _write(self, identity: tuple[str, str], attempt: _Attempt, write: Callable[[], Committed]) -> Committed:
        try:
            committed = write()
            with self._lock:
                self._known[identity] = Answer(attempt.digest, committed, self._clock())
            return committed
        finally:
            with self._lock:
                del self._running[identity]
            attempt.ended.set()

    def _look_up(self, identity: tuple[str, str]) -> Answer | None:
        """What failed in an unclear way may have been written after all, so the log is always asked first."""
        since = self._clock() - self._window_seconds
        self._catch_up(since)
        answer = self._known.get(identity)
        if answer is not None and answer.told_at < since:
            self._known = {known: each for known, each in self._known.items() if each.told_at >= since}
            return None
        return answer

    def _catch_up(self, since: float) -> None:
        newest = self._newest()
        if newest < self._read_until:  # another table is in its place
            self._known, self._read_until = {}, -1
        found: dict[tuple[str, str], Answer] = {}
        for version, written_at, notes in noted_commits(self._log, newest):
            if version <= self._read_until or written_at < since:
                break
            for note in notes:
                if note.key is not None and note.digest is not None:
                    ids = IdSet.decode(note.ids or "")
                    answer = Answer(note.digest, Committed(note.rows, version, ids), written_at)
                    found.setdefault((note.caller, note.key), answer)
        self._known.update(found)
        self._read_until = newest


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
