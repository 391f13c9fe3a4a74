"""Back-off for peers whose credentials fail again and again: a wait that doubles, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_FREE_FAILURES = 5
_FIRST_SECONDS = 1.0
_MOST_SECONDS = 30.0
_FORGET_SECONDS = 600.0
_MOST_PEERS = 10_000


@dataclass(slots=True)
class _Record:
    failures: int = 0
    until: float = 0.0
    last: float = 0.0


class Backoff:
    """Thread-safe: one lock, and nothing slow under it. Keeps the peers that failed last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_peers: int = _MOST_PEERS) -> None:
        self._clock = clock
        self._most_peers = most_peers
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def wait_seconds(self, peer: str) -> float:
        """How long this peer has to wait before its next try; 0 where it need not."""
        with self._lock:
            record = self._records.get(peer)
            return 0.0 if record is None else max(0.0, record.until - self._clock())

    def failed(self, peer: str) -> None:
        now = self._clock()
        with self._lock:
            record = self._records.setdefault(peer, _Record())
            if now - record.last > _FORGET_SECONDS:
                record.failures = 0
            record.failures += 1
            record.last = now
            if (excess := record.failures - _FREE_FAILURES) > 0:
                record.until = now + min(_MOST_SECONDS, _FIRST_SECONDS * 2 ** min(excess - 1, 10))
            self._records.move_to_end(peer)
            while len(self._records) > self._most_peers:
                self._records.popitem(last=False)

    def __len__(self) -> int:
        with self._lock:
            return len(self._records)
