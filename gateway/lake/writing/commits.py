"""What became of a commit: landed, surely not, or unknown.

Every commit carries an id in its `userMetadata`. Whatever an engine said, the
log decides: a commit whose id is found there landed, once. Only "surely not"
may be tried again or cleaned up after.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any

from gateway.lake.tables.history import commit_file
from gateway.lake.tables.storage import Folder

_KEY = "deltaport"
HEAD_MOVED = "the head has moved"  # what a MERGE raises by itself


@dataclass(frozen=True, slots=True)
class StatementNote:
    """One statement of a commit: whose it was and which rows it changed; `ids` is left out where it would be long."""

    operation: str
    caller: str
    rows: int
    transaction: str | None = None
    ids: str | None = None
    undoes: str | None = None  # the transaction whose changes this statement took back
    key: str | None = None  # an idempotency key, and what was written under it
    digest: str | None = None
    since: int | None = None  # a version up to which its transaction wrote nothing into the table


@dataclass(frozen=True, slots=True)
class Noted:
    """A commit, when it was written (seconds since the epoch), and its statements; one of others has none."""

    version: int
    written_at: float
    statements: tuple[StatementNote, ...]


@dataclass(frozen=True, slots=True)
class CommitNote:
    """What the gateway writes into a commit: enough to find it again and to say whose it was."""

    statements: tuple[StatementNote, ...]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def encode(self) -> str:
        told = [{name: value for name, value in asdict(each).items() if value is not None} for each in self.statements]
        return json.dumps({_KEY: {"commit": self.id, "statements": told}}, separators=(",", ":"))


def find_commit(log: Folder, after_version: int, commit_id: str) -> int | None:
    """The version that holds a commit, among those after a version; None when it is not there."""
    version = after_version + 1
    while (info := _commit_info(log, version)) is not None:
        if _note(info).get("commit") == commit_id:
            return version
        version += 1
    return None


def noted_in(log: Folder, version: int) -> Noted | None:
    """What a commit says of itself; None where it is gone."""
    if (info := _commit_info(log, version)) is None:
        return None
    return Noted(version, float(info.get("timestamp", 0)) / 1000, _statements(info))


def _statements(info: dict[str, Any]) -> tuple[StatementNote, ...]:
    known = {field.name for field in fields(StatementNote)}
    try:
        return tuple(
            StatementNote(**{name: value for name, value in told.items() if name in known})
            for told in _note(info).get("statements", ())
        )
    except (AttributeError, TypeError):
        return ()


def affected_in(log: Folder, version: int) -> int | None:
    """How many rows Delta counted in a MERGE or an append that landed."""
    info = _commit_info(log, version) or {}
    counted = info.get("operationMetrics", {})
    if info.get("operation") == "WRITE":
        return int(counted["numOutputRows"]) if str(counted.get("numOutputRows")).isdecimal() else None
    found = [counted.get(f"numTargetRows{what}") for what in ("Inserted", "Updated", "Deleted")]
    return sum(map(int, found)) if all(str(value).isdecimal() for value in found) else None


def _commit_info(log: Folder, version: int) -> dict[str, Any] | None:
    """A commit's own line; {} where it has none, None where there is no such commit."""
    if log.stamps([commit_file(version)]) == [None]:
        return None
    try:
        lines = log.read_file(commit_file(version)).splitlines()
    except FileNotFoundError:  # log clean-up was faster
        return None
    for line in lines:
        if b'"commitInfo"' in line and "commitInfo" in (action := json.loads(line)):
            info: dict[str, Any] = action["commitInfo"]
            return info
    return {}


def _note(info: dict[str, Any]) -> dict[str, Any]:
    """The gateway's own part of a commit's line; {} where others wrote it."""
    try:
        note = json.loads(info["userMetadata"])[_KEY]
    except (KeyError, TypeError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


class Failure(Enum):
    """Why a MERGE failed, as far as its error tells."""

    CONFLICT = "conflict"
    CONSTRAINT = "constraint"
    SPARK_GONE = "spark gone"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Explained:
    failure: Failure
    detail: str = ""


_CONFLICTS = re.compile(
    r"Concurrent(Append|DeleteRead|DeleteDelete|Write|Transaction)Exception|MetadataChangedException|ProtocolChangedException|DELTA_CONCURRENT|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
)
# The name, and the condition as Delta writes it: in brackets, or as our own are stored.
_CHECK = re.compile(r"CHECK constraint (.+?) (?:coalesce\()?\(")
_NOT_NULL = re.compile(r"NOT NULL constraint violated for column: ([^\n]+?)\.?\s*(?:\n|$)")


def explain(error: BaseException) -> Explained:
    """Walk the Java causes: Spark wraps what failed in a task, in a job, in a Python error."""
    texts = list(causes(error))
    for name, text in texts:
        if "USER_RAISED_EXCEPTION" in text and HEAD_MOVED in text:
            return Explained(Failure.CONFLICT)
        if "InvariantViolation" in name or "DELTA_VIOLATE_CONSTRAINT" in text or "DELTA_NOT_NULL_CONSTRAINT" in text:
            return Explained(Failure.CONSTRAINT, _broken_constraint(text))
        if _CONFLICTS.search(name) or _CONFLICTS.search(text):
            return Explained(Failure.CONFLICT)
    if any(_is_silence(name, text) for name, text in texts):
        return Explained(Failure.SPARK_GONE)
    return Explained(Failure.OTHER, texts[-1][1][:300] if texts else "")


def _is_silence(name: str, text: str) -> bool:
    """Whether the JVM gave no answer at all.

    py4j hides the broken connection from whoever waits for an answer: it raises its general error, which comes
    with a Java exception or a trace wherever Java answered.
    """
    if name == "Py4JError":
        return "Trace:" not in text
    return name.startswith("Py4JNetwork") or name in ("ConnectionRefusedError", "ConnectionResetError")


def causes(error: BaseException) -> Iterator[tuple[str, str]]:
    """Class and text of an error and of all that lies below it."""
    seen: BaseException | None = error
    while seen is not None:
        try:
            yield type(seen).__name__, str(seen)
            java = getattr(seen, "java_exception", None) or getattr(seen, "_origin", None)
            while java is not None:
                yield str(java.getClass().getName()), str(java.getMessage())
                java = java.getCause()
        except Exception as silence:  # these words come from the JVM, which went away while it was asked
            yield type(silence).__name__, ""
            return
        seen = seen.__cause__ or seen.__context__


def _broken_constraint(text: str) -> str:
    if match := _NOT_NULL.search(text):
        return f"NOT NULL constraint failed: column '{match[1]}'"
    if match := _CHECK.search(text):
        return f"CHECK constraint failed: {match[1]}"
    return "a constraint of the table failed"
