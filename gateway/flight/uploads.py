"""Uploads: each waits for its client, but not for ever.

What waits for a client, to send or to take its answer, cannot be interrupted, so
a watch looks at the uploads. One that stalled loses what it staged, holds up no
drain, and is refused when its client wakes. A client that stays silent for as
long again loses its connection, unless other calls of it run there: only that
ends the read itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import structlog
from pyarrow import flight

from gateway.catalog.changes import Statement
from gateway.errors import CancelledError, RequestError, UnavailableError
from gateway.settings import LimitSettings

log = structlog.get_logger(__name__)

_LONGEST_LOOK_SECONDS = 5.0
_FOR_A_BATCH, _FOR_A_READER = "no batch came", "no answer was taken"


class Upload:
    """One upload's reader, for one thread; `_lock` keeps the watch away from a statement that is being filled."""

    def __init__(self, reader: Any, peer: str, transaction: str | None, limits: LimitSettings) -> None:
        self.peer = peer
        self.transaction = transaction
        self._reader = reader
        self._limits = limits
        self._lock = threading.Lock()
        self._statement: Statement | None = None
        self._waits_since: float | None = None
        self._waits_for = ""
        self._is_written = False
        self._ended_for = ""

    @property
    def schema(self) -> pa.Schema:
        with self._waiting(_FOR_A_BATCH):
            return self._reader.schema

    def read_chunk(self) -> Any:
        with self._waiting(_FOR_A_BATCH):
            return self._reader.read_chunk()

    def fills(self, statement: Statement) -> None:
        """From now on this statement is what a stalled upload lets go of."""
        self._statement = statement

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # Of buffers that nobody has validated yet, only the sizes are looked at.
        if batch.get_total_buffer_size() > self._limits.batch_bytes:
            raise RequestError(f"one batch is larger than {self._limits.batch_bytes} bytes (limits.batch_bytes)")
        return batch

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around an answer: a client may stop reading, too, or be gone."""
        with self._waiting(_FOR_A_READER):
            try:
                yield
            except (pa.ArrowException, flight.FlightError, OSError) as error:
                change = "the change is made" if self._is_written else "nothing was written"
                raise CancelledError(f"the caller went away before its answer; {change}") from error

    def was_written(self) -> None:
        """The change is made, whether its client reads the answer or not."""
        with self._lock:
            self._is_written = True

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Around whatever waits for the client."""
        with self._lock:
            self._waits_since, self._waits_for = time.monotonic(), what
        try:
            yield
        finally:
            with self._lock:
                self._waits_since = None
            if self._ended_for and not self._is_written:
                raise UnavailableError(self._ended_for)

    @property
    def has_stalled(self) -> bool:
        return bool(self._ended_for)

    def look(self, is_scanning: Callable[[str | None], bool]) -> float:
        """End the upload if its client is silent for too long; for how many seconds it has been."""
        now = time.monotonic()
        with self._lock:
            if self._waits_since is None:
                return 0
            if not self._ended_for and is_scanning(self.transaction):
                self._waits_since = now  # its rows come from a scan that still runs, or waits for its turn
            silent = now - self._waits_since
            if silent > self._limits.idle_upload_seconds and not self._ended_for:
                self._end()
            return silent

    def _end(self) -> None:
        idle = f"{self._waits_for} for {self._limits.idle_upload_seconds:g} s"
        self._ended_for = f"{idle}, so the upload was ended; nothing was written"
        if self._statement is not None and not self._is_written:
            self._statement.abort()
        log.warning("upload_stalled", peer=self.peer, transaction=self.transaction, is_written=self._is_written)


class Uploads:
    """Watches the running uploads. Thread-safe: `_lock` guards the set of them.

    `is_scanning` tells whether a transaction has a scan that runs or waits for its turn.
    """

    def __init__(
        self,
        limits: LimitSettings | None = None,
        is_scanning: Callable[[str | None], bool] = lambda _transaction: False,
    ) -> None:
        self._limits = limits or LimitSettings()
        self._is_scanning = is_scanning
        self._lock = threading.Lock()
        self._running: set[Upload] = set()
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None

    def start(self, cut: Callable[[str], None]) -> None:
        """Start the watch; `cut` ends a peer's connection where nothing else runs on it."""
        self._watch = threading.Thread(target=self._watch_uploads, args=[cut], name="upload-watch", daemon=True)
        self._watch.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()

    @contextlib.contextmanager
    def watched(self, reader: Any, peer: str, transaction: str | None) -> Iterator[Upload]:
        upload = Upload(reader, peer, transaction, self._limits)
        with self._lock:
            self._running.add(upload)
        try:
            yield upload
        finally:
            with self._lock:
                self._running.discard(upload)

    def stalled(self) -> int:
        """How many uploads were ended and still wait for their client to notice."""
        with self._lock:
            return sum(upload.has_stalled for upload in self._running)

    def _watch_uploads(self, cut: Callable[[str], None]) -> None:
        while not self._stop.wait(min(_LONGEST_LOOK_SECONDS, self._limits.idle_upload_seconds / 4)):
            with self._lock:
                running = list(self._running)
            for upload in running:
                if upload.look(self._is_scanning) > 2 * self._limits.idle_upload_seconds:
                    cut(upload.peer)
