"""Who may work on a table: any number of statements, or one change of the table itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from gateway.errors import CancelledError, UnavailableError

_LOOK_SECONDS = 1  # how often a waiting statement looks whether its caller is still there


class TableLock:
    """Thread-safe. Whoever wants to be alone goes before statements that come later."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._changed = threading.Condition()
        self._statements = 0
        self._is_taken = False
        self._wanting = 0

    @property
    def is_wanted_exclusively(self) -> bool:
        return self._wanting > 0

    @contextlib.contextmanager
    def shared(self, wait_seconds: float, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """For a statement's commit, beside those of others; waits for a change of the table to end, but not for ever.

        UnavailableError when that takes too long, CancelledError when nobody wants the answer any more.
        """
        deadline = time.monotonic() + wait_seconds
        with self._changed:
            while self._is_taken or self._wanting:
                self._changed.wait(_LOOK_SECONDS)
                if not self._is_taken and not self._wanting:
                    break
                if is_cancelled():
                    raise CancelledError("the statement was cancelled; nothing was written")
                if time.monotonic() > deadline:
                    raise UnavailableError(f"table '{self._table}' was being altered for {wait_seconds:g} s; try again")
            self._statements += 1
        try:
            yield
        finally:
            with self._changed:
                self._statements -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self, wait_seconds: float) -> Iterator[None]:
        """For a change of the table; UnavailableError when statements do not end in time."""
        deadline = time.monotonic() + wait_seconds
        with self._changed:
            self._wanting += 1
            try:
                is_free = self._changed.wait_for(
                    lambda: not self._is_taken and self._statements == 0, max(0.0, deadline - time.monotonic())
                )
            finally:
                self._wanting -= 1
                self._changed.notify_all()
            if not is_free:
                raise UnavailableError(f"table '{self._table}' is being written; try again")
            self._is_taken = True
        try:
            yield
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()
