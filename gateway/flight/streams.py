"""Streams of scans: bounded in number, recorded once, released in every outcome.

A client that disconnects closes the generator, one that stops reading leaves it
suspended, and one that is cancelled may leave it blocked in a read. A watch
closes the scans of the last two, so that nothing waits for a client for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import structlog

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import BatchStream, Readable, ScanReport, ScanRequest
from gateway.errors import CancelledError, NotFoundError, UnavailableError
from gateway.flight.boundary import outcome_of
from gateway.settings import ScanSettings
from gateway.telemetry import metrics
from gateway.wire.bodies import Compression
from gateway.wire.packing import pack
from gateway.wire.tickets import ScanTicket

log = structlog.get_logger(__name__)

_WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scan:
    """A stream that a call asks for, by its ticket."""

    call: Call
    table: Readable
    ticket: ScanTicket
    request: ScanRequest

    def open(self) -> BatchStream:
        ticket = self.ticket
        snapshot = self.table.at(ticket.version)
        if snapshot.identity != ticket.identity:
            raise NotFoundError(f"table '{self.table.name}' was replaced by another one; run the statement again")
        return snapshot.open(self.request)

    @property
    def log_fields(self) -> dict[str, object]:
        """What the log says of it."""
        headers = self.call.headers
        facts = {"table": str(self.table.name), "version": self.ticket.version}
        return {**facts, "trace": headers.trace, "transaction": headers.transaction}


@dataclass(eq=False, slots=True)
class _Running:
    stream: BatchStream
    is_cancelled: Callable[[], bool]
    handed_over: float | None = None  # since when the client has a batch and has not asked for the next
    end_reason: str = ""


class ScanStreams:
    """Runs scans for the server. Thread-safe: `_lock` guards the running scans and whose they are.

    Every scan needs the lock to begin and to end, so no stream is closed under it: a stream that
    takes its time to close would hold up all the others.
    """

    def __init__(self, settings: ScanSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._slots = threading.BoundedSemaphore(settings.concurrent)
        self._lock = threading.Lock()
        self._running: set[_Running] = set()
        self._transactions: Counter[str | None] = Counter()  # with scans that run or wait for a slot
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._watch_scans, name="scan-watch", daemon=True)

    @property
    def compression(self) -> Compression:
        """How the bodies of batches are compressed."""
        return self._settings.compression

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watch.is_alive():
            self._watch.join()

    def close_all(self, reason: str) -> None:
        with self._lock:
            ended = list(self._running)
            for scan in ended:
                scan.end_reason = reason
        _close(ended)

    def __len__(self) -> int:
        with self._lock:
            return len(self._running)

    def is_scanning(self, transaction: str | None) -> bool:
        """Whether a transaction has a scan that runs or waits for a slot."""
        with self._lock:
            return transaction is not None and self._transactions[transaction] > 0

    def stream(self, scan: Scan) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Read a scan batch by batch and record, once, how it ended."""
        # The scan is opened here and not before: a generator that is never started never reaches `finally`.
        started, rows, size = self._clock(), 0, 0
        report, failure = ScanReport(), None
        try:
            with (
                self._counted(scan.call.transaction),
                self._slot(scan.call),
                self._open(scan) as running,
            ):
                report = running.stream.report
                for chunk in running.stream:
                    rows += chunk.batch.num_rows
                    size += chunk.batch.nbytes
                    running.handed_over = self._clock()
                    yield chunk.batch, pack({"progress": chunk.progress})
                    running.handed_over = None
                    if running.end_reason:
                        raise CancelledError(running.end_reason)
        except BaseException as error:
            failure = error
            raise
        finally:
            _record(report, outcome_of(failure), rows, size, self._clock() - started, scan.log_fields)

    @contextlib.contextmanager
    def _counted(self, transaction: str | None) -> Iterator[None]:
        with self._lock:
            self._transactions[transaction] += 1
        try:
            yield
        finally:
            with self._lock:
                self._transactions[transaction] -= 1
                if not self._transactions[transaction]:
                    del self._transactions[transaction]

    @contextlib.contextmanager
    def _slot(self, call: Call) -> Iterator[None]:
        """Wait for a slot; a client that gives up meanwhile must not keep its place in the queue."""
        deadline = self._clock() + self._settings.wait_seconds
        if not self._slots.acquire(blocking=False):
            with metrics.SCANS_WAITING.track_inprogress():
                while not self._slots.acquire(timeout=_WATCH_SECONDS):
                    if call.is_cancelled():
                        raise CancelledError("the scan was cancelled while it waited for a slot")
                    if self._clock() > deadline:
                        raise UnavailableError(f"all {self._settings.concurrent} scans are taken; try again later")
        try:
            with metrics.SCANS_RUNNING.track_inprogress():
                yield
        finally:
            self._slots.release()

    @contextlib.contextmanager
    def _open(self, scan: Scan) -> Iterator[_Running]:
        stream = scan.open()
        running = _Running(stream, scan.call.is_cancelled)
        with self._lock:
            self._running.add(running)
        try:
            yield running
        finally:
            # Under the lock: once it is out of the set, the watch no longer asks a context that ends with its call.
            with self._lock:
                self._running.discard(running)
            stream.close()

    def _watch_scans(self) -> None:
        while not self._stop.wait(_WATCH_SECONDS):
            with self._lock:
                ended = [scan for scan in self._running if self._ends_now(scan)]
            _close(ended)

    def _ends_now(self, scan: _Running) -> bool:
        """Whether the scan has to end, which was not known before."""
        if scan.end_reason:
            return False
        handed_over = scan.handed_over
        if scan.is_cancelled():
            scan.end_reason = "the scan was cancelled"
        elif handed_over is not None and self._clock() - handed_over > self._settings.idle_reader_seconds:
            idle = f"{self._settings.idle_reader_seconds:g} s"
            scan.end_reason = f"no batch was taken for {idle}, so the scan was ended"
        return bool(scan.end_reason)


def _close(scans: Iterable[_Running]) -> None:
    for scan in scans:
        scan.stream.close()


def _record(report: ScanReport, outcome: str, rows: int, size: int, seconds: float, facts: dict[str, object]) -> None:
    metrics.SCANS.labels(report.route, report.route_reason, outcome).inc()
    metrics.SCAN_ROWS.inc(rows)
    metrics.SCAN_BYTES.inc(size)
    metrics.FILES_TOTAL.inc(report.files_total)
    metrics.FILES_PRUNED.inc(report.files_pruned)
    metrics.FILTERS.labels("pushed").inc(report.filters_pushed)
    metrics.FILTERS.labels("dropped").inc(report.filters_dropped)
    metrics.CALLS.labels("do_get", "", outcome).inc()
    metrics.CALL_SECONDS.labels("do_get", "").observe(seconds)
    log.info(
        "scan_ended",
        outcome=outcome,
        rows=rows,
        bytes=size,
        seconds=round(seconds, 4),
        route=report.route,
        reason=report.route_reason,
        files=report.files_total,
        files_pruned=report.files_pruned,
        filters_pushed=report.filters_pushed,
        filters_dropped=report.filters_dropped,
        **facts,
    )
