"""The gate every call passes: open until the gateway drains, and it knows who is inside."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from gateway.errors import UnavailableError


class Gate:
    """Lets calls in until the gateway drains, and counts those inside. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def close(self) -> None:
        with self._changed:
            self._closed = True

    def wait_empty(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._inside == 0, timeout_seconds)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise UnavailableError("the gateway is shutting down; try again later")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()
