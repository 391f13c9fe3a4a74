"""One writer per warehouse: an operating system's file lock, held by the JVM that writes.

The JVM takes the lock and keeps it until it ends: a stopped JVM still holds it,
a dead one does not, and nobody guesses by a clock. The process around it may be
killed before its JVM is gone, which is why the lock is the JVM's and not ours.
Whoever does not get it only reads, and goes on trying.

Only local and mounted folders can be locked. A table mapped to another place is
guarded by the lock of the catalog that maps it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import structlog

from gateway.errors import UnavailableError
from gateway.lake.spark.engine import Spark, SparkState
from gateway.lake.tables.storage import Folder

log = structlog.get_logger(__name__)

# Hidden from catalogs: no schema's name starts with an underscore.
LOCK_FILE = Path("_deltaport") / "writer.lock"
TAKEN = "another gateway writes this warehouse"
_NOT_LOCKABLE = "the writer's lock file of this warehouse cannot be used"
_TRY_SECONDS = 1


class WriteGuard(Protocol):
    """Whether this process may write to a warehouse."""

    @property
    def is_held(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Why it may not; empty when it may, and when that is not known yet."""

    def check(self) -> object:
        """Called with a Spark session in hand, right before it commits; UnavailableError when it must not.

        What is returned is another object each time the right to write was taken anew: somebody else may have
        written in between.
        """

    def refuse_early(self) -> None:
        """Called when a statement opens; a Spark that is not there yet may be, and may write, by its end."""


class Unguarded:
    """For places that cannot be locked: everybody may write."""

    is_held = True
    reason = ""

    def check(self) -> object:
        """Nothing to check."""
        return self

    def refuse_early(self) -> None:
        """Nothing to refuse."""


UNGUARDED = Unguarded()


class WriterLock:
    """The lock of one local warehouse. Thread-safe: Spark keeps what is held, for each JVM anew."""

    def __init__(self, spark: Spark, root: Path) -> None:
        self._spark = spark
        self._path = root / LOCK_FILE
        self._reason = ""

    @property
    def is_held(self) -> bool:
        return self._spark.kept(str(self._path)) is not None

    @property
    def holding(self) -> object | None:
        """Another object each time the lock was taken; None when it is not held."""
        held: _Held | None = self._spark.kept(str(self._path))
        return None if held is None else held.holding

    @property
    def reason(self) -> str:
        return "" if self.is_held else self._reason

    def check(self) -> object:
        held: _Held | None = self._spark.kept(str(self._path))
        if held is not None and not held.is_still_the_file(self._path):
            # Somebody removed the file: others can lock the next one, so this lock guards nothing.
            log.error("writer_lock_lost", file=str(self._path))
            self._spark.discard(str(self._path), held)
            held = None
        if held is None:
            held = self._spark.keep(str(self._path), self._take)
        if held is None:
            raise UnavailableError(f"{self._reason}; only reads work until the writer's lock is had, try again later")
        return held.holding

    def refuse_early(self) -> None:
        if self._spark.state is SparkState.READY:
            self.check()

    def _take(self, java: Any) -> _Held | None:
        detail = ""
        try:
            held, reason = _try_lock(java, self._path), TAKEN
        except Exception as error:  # the disk's, Java's and py4j's own
            held, reason, detail = None, _NOT_LOCKABLE, f"{type(error).__name__}: {str(error)[:500]}"
        if held is not None:
            log.info("writer_lock_taken", file=str(self._path))
            self._reason = ""
        elif self._reason != reason:
            log.warning("writer_lock_refused", file=str(self._path), reason=reason, detail=detail)
            self._reason = reason
        return held


class _Held:
    """A lock in the JVM; whoever drops this lets the JVM's garbage collector free it."""

    def __init__(self, lock: Any, identity: tuple[int, int]) -> None:
        self._lock = lock
        self._identity = identity
        self.holding = object()  # stands for this one, and outlives it

    def is_still_the_file(self, path: Path) -> bool:
        try:
            return _identity(path) == self._identity
        except OSError:
            return False


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _try_lock(java: Any, path: Path) -> _Held | None:
    """The lock, signed; None when somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    identity = _identity(path)
    channel = java.java.io.RandomAccessFile(str(path), "rw").getChannel()
    lock = channel.tryLock()
    if lock is None or _identity(path) != identity:
        channel.close()
        return None
    _sign(java, channel)
    return _Held(lock, identity)


def _sign(java: Any, channel: Any) -> None:
    """Say in the file who holds it, for people. Only through the channel that is locked: closing another frees it."""
    pid = java.java.lang.ProcessHandle.current().pid()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    text = f"held by the JVM with pid {pid} on {socket.gethostname()} since {since}\n"
    channel.truncate(0).write(java.java.nio.ByteBuffer.wrap(text.encode()), 0)


class WriterLocks:
    """The guard of each catalog; from `start` to `stop` a thread tries for those that are not held."""

    def __init__(self, spark: Spark, roots: Mapping[str, Folder | None]) -> None:
        self._spark = spark
        self._guards: dict[str, WriteGuard] = {}
        by_root: dict[str, WriterLock] = {}
        for catalog, root in roots.items():
            if root is None or not root.is_local:
                self._guards[catalog] = UNGUARDED
            else:
                self._guards[catalog] = by_root.setdefault(root.uri, WriterLock(spark, Path(root.uri)))
        self._locks = list(by_root.values())
        self._taken: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_trying, name="writer-lock", daemon=True)

    def of(self, catalog: str) -> WriteGuard:
        return self._guards[catalog]

    def items(self) -> list[tuple[str, WriteGuard]]:
        return list(self._guards.items())

    def start(self, taken: Callable[[], None] = lambda: None) -> None:
        """`taken` is called, by the thread, each time a lock was taken anew."""
        self._taken = taken
        for catalog, guard in self._guards.items():
            if guard is UNGUARDED:
                log.warning("writer_lock_not_used", catalog=catalog, reason="it has no warehouse in a local folder")
        if self._locks and self._spark.state is not SparkState.OFF:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            # A JVM that does not answer holds the thread; it is gone with the process.
            self._thread.join(timeout=_TRY_SECONDS)

    def _keep_trying(self) -> None:
        seen: dict[WriterLock, object] = {}
        while not self._stop.wait(_TRY_SECONDS):
            for lock in self._locks:
                try:
                    lock.refuse_early()
                except UnavailableError:
                    continue  # said in the log and by /readyz
                holding = lock.holding
                if holding is not None and holding is not seen.get(lock):
                    seen[lock] = holding
                    self._taken()
