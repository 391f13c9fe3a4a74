"""The gate every call passes: open until the gateway drains, and it knows who is inside."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from gateway.errors import UnavailableError


class Gate:
    """Lets calls in until the gateway drains, and counts those inside, by the peer they come from. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[str] = Counter()
        self._closed = False

    def close(self) -> None:
        with self._changed:
            self._closed = True

    def wait_empty(self, timeout_seconds: float, besides: int = 0) -> bool:
        """Wait until no more calls are inside than those nobody waits for."""
        with self._changed:
            return self._changed.wait_for(lambda: self._inside.total() <= besides, timeout_seconds)

    def calls_of(self, peer: str) -> int:
        with self._changed:
            return self._inside[peer]

    def peers(self) -> list[str]:
        """Who has calls inside."""
        with self._changed:
            return list(self._inside)

    @contextlib.contextmanager
    def inside(self, peer: str = "") -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise UnavailableError("the gateway is shutting down; try again later")
            self._inside[peer] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[peer] -= 1
                if not self._inside[peer]:
                    del self._inside[peer]
                self._changed.notify_all()
