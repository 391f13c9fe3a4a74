"""Uploads: each waits for its client, but not for ever.

What waits for a client, to send or to take its answer, cannot be interrupted, so
a watch checks the uploads. One that stalled loses what it staged, holds up no
drain, and is refused when its client goes on. A client that stays silent for as
long again loses its connection, unless other calls of it run there: only that
ends the read itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import structlog
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.changes import Statement
from gateway.errors import CancelledError, RequestError, UnavailableError
from gateway.settings import LimitSettings

log = structlog.get_logger(__name__)

_MAX_CHECK_SECONDS = 5.0
# A frame with nothing in it looks to pyarrow like the end of the upload, and rows may follow. After the true end every
# further read ends at once.
_BLANK_FRAMES = 64
_FOR_A_BATCH, _FOR_A_READER = "no batch came", "no answer was taken"


class Upload:
    """One upload's reader, for one thread; `_lock` keeps the watch away from a statement that is being filled."""

    def __init__(self, call: Call, reader: Any, limits: LimitSettings) -> None:
        self._call = call
        self._reader = reader
        self._limits = limits
        self._lock = threading.Lock()
        self._statement: Statement | None = None
        self._waits_since: float | None = None
        self._waits_for = ""
        self._is_written = False
        self._end_reason = ""

    def schema(self) -> pa.Schema:
        try:
            with self._waiting(_FOR_A_BATCH):
                schema = self._reader.schema
            schema.names  # noqa: B018  a name that is no text fails here
        except (pa.ArrowException, flight.FlightError, OSError, UnicodeDecodeError) as error:
            self._check_still_there()
            raise RequestError("the upload has no schema that can be read") from error
        return schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What is uploaded. The stream of a caller who went away just ends, as a finished one does."""
        ends = 0
        while ends < _BLANK_FRAMES:
            try:
                with self._waiting(_FOR_A_BATCH):
                    batch = self._reader.read_chunk().data
                ends = 0
            except StopIteration:
                ends += 1
                continue
            except (pa.ArrowException, flight.FlightError, OSError) as error:
                self._check_still_there()
                raise RequestError("the upload cannot be read") from error
            if batch is not None:
                yield batch

    def _check_still_there(self) -> None:
        if self._call.is_cancelled():
            raise CancelledError("the caller went away; nothing was written")

    def bind(self, statement: Statement) -> None:
        """From now on a stalled upload aborts this statement."""
        self._statement = statement

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around an answer: a client may stop reading it, too, or have disconnected."""
        with self._waiting(_FOR_A_READER):
            try:
                yield
            except (pa.ArrowException, flight.FlightError, OSError) as error:
                change = "the change is made" if self._is_written else "nothing was written"
                raise CancelledError(f"the caller went away before its answer; {change}") from error

    def mark_written(self) -> None:
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
            if self._end_reason and not self._is_written:
                raise UnavailableError(self._end_reason)

    @property
    def peer(self) -> str:
        return self._call.peer

    @property
    def has_stalled(self) -> bool:
        return bool(self._end_reason)

    def check(self, scans: RunningScans) -> float:
        """End the upload if its client is silent for too long; for how many seconds it has been."""
        now = time.monotonic()
        with self._lock:
            if self._waits_since is None:
                return 0
            if not self._end_reason and scans.is_scanning(self._call.transaction):
                self._waits_since = now  # its rows come from a scan that still runs, or waits for its turn
            silent = now - self._waits_since
            if silent > self._limits.idle_upload_seconds and not self._end_reason:
                self._end()
            return silent

    def _end(self) -> None:
        idle = f"{self._waits_for} for {self._limits.idle_upload_seconds:g} s"
        self._end_reason = f"{idle}, so the upload was ended; nothing was written"
        if self._statement is not None and not self._is_written:
            self._statement.abort()
        transaction = self._call.transaction
        log.warning("upload_stalled", peer=self.peer, transaction=transaction, is_written=self._is_written)


class RunningScans(Protocol):
    def is_scanning(self, transaction: str | None) -> bool:
        """Whether a transaction has a scan that runs or waits for its turn."""


class Connections(Protocol):
    def disconnect_if_alone(self, peer: str) -> None:
        """End a peer's connection where one call runs on it."""


class UploadWatch:
    """Watches the running uploads. Thread-safe: `_lock` guards the set of them."""

    def __init__(self, limits: LimitSettings, scans: RunningScans) -> None:
        self._limits = limits
        self._scans = scans
        self._lock = threading.Lock()
        self._running: set[Upload] = set()
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None

    def start(self, connections: Connections) -> None:
        """Start the watch."""
        self._watch = threading.Thread(target=self._watch_uploads, args=[connections], name="upload-watch", daemon=True)
        self._watch.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()

    @contextlib.contextmanager
    def watched(self, call: Call, reader: Any) -> Iterator[Upload]:
        upload = Upload(call, reader, self._limits)
        with self._lock:
            self._running.add(upload)
        try:
            yield upload
        finally:
            with self._lock:
                self._running.discard(upload)

    def stalled_count(self) -> int:
        """How many uploads were ended and still wait for their client to notice."""
        with self._lock:
            return sum(upload.has_stalled for upload in self._running)

    def _watch_uploads(self, connections: Connections) -> None:
        while not self._stop.wait(min(_MAX_CHECK_SECONDS, self._limits.idle_upload_seconds / 4)):
            with self._lock:
                running = list(self._running)
            for upload in running:
                if upload.check(self._scans) > 2 * self._limits.idle_upload_seconds:
                    connections.disconnect_if_alone(upload.peer)
