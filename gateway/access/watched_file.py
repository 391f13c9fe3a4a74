"""A file that is read again when it changes. What is wrong with a new one is logged, and the old contents stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from gateway.errors import GatewayError, RequestError
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)
T = TypeVar("T")
_LOOK_SECONDS = 1.0
_Stamp = tuple[int, int, int]


class WatchedFile(Generic[T]):
    """Thread-safe: one caller at a time looks, the others go on with what is there."""

    def __init__(
        self, path: Path, parse: Callable[[str], T], clock: Callable[[], float] = time.monotonic, what: str = "file"
    ) -> None:
        """A file that cannot be used is a RequestError here, and only here."""
        self._path = path
        self._parse = parse
        self._clock = clock
        self._what = what
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = self._read()
        self._looked = clock()
        self.revision = 0

    def get(self) -> T:
        """The contents as of a second ago at most."""
        if self._clock() - self._looked >= _LOOK_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._lock.release()
        return self._value

    def _refresh(self) -> None:
        self._looked = self._clock()
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return
            value = self._read()
        except GatewayError as error:
            metrics.ACCESS_FILES_REJECTED.labels(self._what).set(1)
            log.error("access_file_rejected", file=self._what, reason=error.message, in_force="the one before")
            return
        self._stamp, self._value = stamp, value
        self.revision += 1
        metrics.ACCESS_FILES_REJECTED.labels(self._what).set(0)
        log.info("access_file_reloaded", file=self._what)

    def _look(self) -> _Stamp:
        try:
            found = self._path.stat()
        except OSError as error:
            raise RequestError(f"{self._what}: cannot read {self._path}: {error.strerror}") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        try:
            return self._parse(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RequestError(f"{self._what}: cannot read {self._path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RequestError(f"{self._what}: {self._path} is not UTF-8 text") from error
