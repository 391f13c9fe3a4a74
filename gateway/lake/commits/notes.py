"""What the gateway notes in a commit, and how a commit is found again.

Every commit carries an id in its `userMetadata`. Whatever an engine said, the
log decides: a commit whose id is found there landed, once.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gateway.lake.tables.history import commit_file
from gateway.lake.tables.storage import Folder

_KEY = "deltaport"


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
    reverts: int | None = None  # the version that this statement took back as a whole: nothing in it counts as written


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
        notes = [{name: value for name, value in asdict(each).items() if value is not None} for each in self.statements]
        return json.dumps({_KEY: {"commit": self.id, "statements": notes}}, separators=(",", ":"))


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
            StatementNote(**{name: value for name, value in noted.items() if name in known})
            for noted in _note(info).get("statements", ())
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
