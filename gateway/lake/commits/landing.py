"""The commits of one table: each is run until it has landed or surely has not.

Others who commit at the same time make Delta refuse, and the commit is made
anew as of the newer head, bounded by time. Whatever an engine said, the log
decides what became of a commit, once the JVM can write no more; only "surely
not" is tried again. A commit of which that is not known yet is remembered, and
nothing else is written into the table before it is: MERGE, undo, adoption and
ALTER of a table share one of these.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from gateway.errors import (
    ConflictError,
    ConstraintError,
    GatewayError,
    InternalError,
    OutcomeUnknownError,
    UnavailableError,
)
from gateway.lake.commits.failures import Explained, Failure, explain
from gateway.lake.commits.notes import CommitNote, find_commit
from gateway.lake.commits.writer_lock import UNGUARDED, WriteGuard
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.tables.snapshots import LogSnapshot, Snapshots
from gateway.lake.tables.storage import Folder

log = structlog.get_logger(__name__)

T = TypeVar("T")

# However long one takes: a commit that takes longer than `write.retry_seconds` is tried again all the same.
_FEWEST_TRIES = 4
NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_END_SECONDS = 10  # that a JVM which does not answer is given to end


class NotLandedError(Exception):
    """The commit surely did not land, and trying it again may help."""


class OvertakenError(ConflictError):
    """Others committed during each try."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of commit is spoken of in errors."""

    act: str
    done: str
    not_done: str
    rule: str


WRITTEN = Kind("write", "the statement was written", "nothing was written", "rows can only be changed")
ALTERED = Kind("alter it", "it was altered", "nothing was changed", "it can only be altered")
NUMBERED = Kind("give ids", "its rows were numbered", "what was committed before stays", "rows can only be numbered")


@dataclass(frozen=True, slots=True)
class Landed(Generic[T]):
    version: int
    made: T | None  # what Spark said of it; None where it landed in spite of an error


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A commit of which nobody knows whether it landed, and the JVM that may still be at it."""

    note: CommitNote
    after_version: int
    jvm: object


@dataclass(eq=False)
class Landing:
    """Thread-safe: `_lock` guards what is unsettled. Rows may be written while others are numbered."""

    table: str
    snapshots: Snapshots
    log_folder: Folder
    spark: Spark
    retry_seconds: float
    guard: WriteGuard = UNGUARDED
    _unsettled: list[_Unsettled] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def run(self, kind: Kind, attempt: Callable[[LogSnapshot, int], T], tried: int = 0) -> T:
        """Make attempts, each with the head of then and its number, until one does not raise NotLandedError.

        OvertakenError when others were faster too often; it may have been tried so many times before.
        """
        started = time.monotonic()
        for tries in itertools.count(tried + 1):
            self.settle_earlier()
            try:
                return attempt(self.snapshots.current(), tries)
            except NotLandedError as error:
                seconds = time.monotonic() - started
                if tries >= _FEWEST_TRIES and seconds > self.retry_seconds:
                    raise OvertakenError(
                        f"table '{self.table}': others committed to it during each of {tries} tries in {seconds:.0f} s,"
                        f" and {kind.rule} while nobody else commits; try again, or let the other writers pause"
                    ) from error
                time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - jitter
        raise AssertionError

    def commit(
        self, kind: Kind, head: LogSnapshot, note: CommitNote, profile: Profile, make: Callable[[Any], T]
    ) -> Landed[T] | None:
        """One commit after this head: what `make` commits in its session carries the note, and is found by it.

        None where nothing was committed and `make` says so, too. NotLandedError when it may be tried again.
        """
        jvm = self.spark.jvm
        try:
            with self.spark.session(profile) as session:
                jvm = self.spark.jvm  # the session's: it may have been started anew
                self.guard.check()
                session.conf.set(NOTE, note.encode())
                try:
                    made = make(session)
                finally:
                    session.conf.unset(NOTE)
            version = find_commit(self.log_folder, head.version, note.id)
        except (GatewayError, NotLandedError):
            raise
        except Exception as error:  # py4j, Spark and Delta each raise their own
            return Landed(self._settle(kind, head, note, error, jvm), None)
        if version is not None:
            return Landed(version, made)
        if made:
            raise InternalError(f"table '{self.table}': the commit of the statement is not in the log")
        return None

    def settle_earlier(self) -> None:
        """Nothing is written while a commit before it may still land."""
        with self._lock:
            self._unsettled = [earlier for earlier in self._unsettled if not self._is_settled(earlier)]
            if self._unsettled:
                raise UnavailableError(
                    f"table '{self.table}': Spark may still be writing an earlier statement; try again"
                )

    def failure(self, kind: Kind, explained: Explained, error: Exception) -> GatewayError:
        """How to report an error that surely left nothing written."""
        if explained.failure is Failure.CONSTRAINT:
            return ConstraintError(explained.detail)
        log.error("commit_failed", table=self.table, act=kind.act, error=type(error).__name__, detail=explained.detail)
        if explained.failure is Failure.SPARK_GONE:
            return UnavailableError(f"Spark stopped during the statement; {kind.not_done}, try again")
        return InternalError(f"table '{self.table}': Spark could not {kind.act}; {kind.not_done}")

    def _is_settled(self, earlier: _Unsettled) -> bool:
        if self.spark.has_ended(earlier.jvm, 0):
            return True
        return find_commit(self.log_folder, earlier.after_version, earlier.note.id) is not None

    def _settle(self, kind: Kind, head: LogSnapshot, note: CommitNote, error: Exception, jvm: object) -> int:
        """The log decides what an error left open."""
        explained = explain(error)
        # A JVM that does not answer may still be writing: the log is final once the JVM is gone.
        is_final = explained.failure is not Failure.SPARK_GONE or self.spark.has_ended(jvm, _END_SECONDS)
        try:
            version = find_commit(self.log_folder, head.version, note.id)
        except Exception as unread:  # a disk that does not answer, or a line of others that is no JSON
            raise self._unknown(kind, None if is_final else _Unsettled(note, head.version, jvm)) from unread
        if version is not None:
            failure = explained.failure.value
            log.warning("commit_landed_in_spite_of_error", table=self.table, version=version, failure=failure)
            return version
        if not is_final:
            raise self._unknown(kind, _Unsettled(note, head.version, jvm)) from error
        if explained.failure is Failure.CONFLICT:
            raise NotLandedError from error
        if explained.failure is Failure.OTHER and self.snapshots.current().schema != head.schema:
            raise NotLandedError from error  # a column it meant was changed meanwhile; the next look will say so
        raise self.failure(kind, explained, error) from error

    def _unknown(self, kind: Kind, unsettled: _Unsettled | None) -> OutcomeUnknownError:
        """Remembered while a JVM may still be at it; without that, whatever there is is in the log by now."""
        log.error("commit_outcome_unknown", table=self.table, kind=kind.act)
        if unsettled is not None:
            with self._lock:
                self._unsettled.append(unsettled)
        return OutcomeUnknownError(f"table '{self.table}': it is not known whether {kind.done}")
