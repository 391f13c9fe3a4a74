"""A table's history: which versions exist, and which one was current at a time.

Times are Delta's own: a commit's file time, or the time inside the commit where
the table keeps it there, moved forward so that later commits have later times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.errors import InternalError, NotFoundError, RequestError
from gateway.lake.storage import Folder

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\b.*\.(?:parquet|json)$")
_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"


def commit_file(version: int) -> str:
    return f"{version:020d}.json"


def available_versions(log: Folder) -> tuple[int, int]:
    """First and last version that can be read back."""
    commits, checkpoints = _scan(log)
    if not commits and not checkpoints:
        raise NotFoundError("there is no Delta log")
    last = max([*commits, *checkpoints])
    first = last
    while first - 1 in commits:
        first -= 1
    if first == 0:
        return 0, last
    # Commits alone say too little: reading starts at a checkpoint.
    starts = [version for version in checkpoints if version >= first - 1]
    return min(starts, default=last), last


def version_at_time(log: Folder, configuration: Mapping[str, str], moment: datetime) -> int:
    """The version that was current at a moment; now and later mean the newest."""
    first, last = available_versions(log)
    commits, _ = _scan(log)
    in_commit = configuration.get(_IN_COMMIT_TIMESTAMPS, "false").lower() == "true"
    wanted = moment.timestamp() * 1000
    found, earliest, previous = None, None, float("-inf")
    for version in range(first, last + 1):
        if version not in commits:
            continue  # its commit is gone, a checkpoint stands in for it
        stamp = _commit_millis(log, version) if in_commit else commits[version] // 1_000_000
        previous = max(stamp, previous + 1)
        earliest = previous if earliest is None else earliest
        if previous > wanted:
            break
        found = version
    if found is not None:
        return found
    if earliest is None:
        return last
    since = datetime.fromtimestamp(earliest / 1000, UTC)
    raise NotFoundError(
        f"no version is as old as {moment:%Y-%m-%d %H:%M:%S}; the first is of {since:%Y-%m-%d %H:%M:%S} UTC"
    )


def parse_moment(text: str) -> datetime:
    """A time as DuckDB writes it; without a zone it is UTC."""
    cleaned = text.strip()
    if re.search(r"[+-]\d\d$", cleaned) and ":" in cleaned:
        cleaned += ":00"  # DuckDB writes +00, which datetime does not read
    try:
        moment = datetime.fromisoformat(cleaned)
    except ValueError as error:
        raise RequestError(f"'{text[:40]}' is not a time; give one like 2024-01-31 12:00:00") from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def parse_version(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise RequestError(f"'{text[:40]}' is not a version; versions are whole numbers from 0")
    return int(digits)


def _scan(log: Folder) -> tuple[dict[int, int], set[int]]:
    commits: dict[int, int] = {}
    checkpoints: set[int] = set()
    for name, modified in log.files():
        if match := _COMMIT.match(name):
            commits[int(match[1])] = modified
        elif match := _CHECKPOINT.match(name):
            checkpoints.add(int(match[1]))
    return commits, checkpoints


def _commit_millis(log: Folder, version: int) -> int:
    with log.open_file(commit_file(version)) as file:
        first_line = file.read().split(b"\n", 1)[0]
    try:
        return int(json.loads(first_line)["commitInfo"]["inCommitTimestamp"])
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError("a commit without its time is in the Delta log") from error
