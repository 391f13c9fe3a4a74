"""A table's history: which versions exist, and which one was current at a time.

Times are Delta's own: a commit's file time, or the time inside the commit where
the table keeps it there, moved forward so that later commits have later times.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime

from gateway.errors import InternalError, NotFoundError, RequestError, UnavailableError
from gateway.lake.tables.storage import Folder

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\b.*\.(?:parquet|json)$")
_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
_IN_COMMIT_SINCE = "delta.inCommitTimestampEnablementVersion"
# What DuckDB's own infinities are in years that Python knows.
_INFINITE = {"infinity": datetime.max.replace(tzinfo=UTC), "-infinity": datetime.min.replace(tzinfo=UTC)}


def commit_file(version: int) -> str:
    return f"{version:020d}.json"


def available_versions(log: Folder) -> tuple[int, int]:
    """First and last version that can be read back."""
    return _readable(*_scan(log))


def version_at_time(log: Folder, configuration: Mapping[str, str], moment: datetime) -> int:
    """The version that was current at a moment; now and later mean the newest."""
    commits, checkpoints = _scan(log)
    first, last = _readable(commits, checkpoints)
    # A version whose commit is gone, with a checkpoint in its place, has no time.
    versions = [version for version in range(first, last + 1) if version in commits]
    if not versions:
        return last
    inside_since = _in_commit_since(configuration)
    file_times = _file_times(commits, [version for version in versions if version < inside_since])

    def time_of(version: int) -> int:
        return file_times[version] if version < inside_since else _commit_millis(log, version)

    found = bisect_right(versions, moment.timestamp() * 1000, key=time_of)
    if found:
        return versions[found - 1]
    earliest = datetime.fromtimestamp(time_of(versions[0]) / 1000, UTC)
    raise NotFoundError(f"no version is as old as {_shown(moment)}; the first is of {_shown(earliest)}")


def commit_times(log: Folder) -> dict[int, int]:
    """When each commit was made, in milliseconds by its file's time, without those that only a gap leads to.

    In order, up to the newest. Log clean-up removes the oldest first: where version 0 is missing, so may be others.
    """
    made, times = _scan(log)[0], {}
    version = max(made, default=-1)
    while version in made:
        times[version] = made[version] // 1_000_000
        version -= 1
    return dict(reversed(times.items()))


def first_line(log: Folder, version: int) -> bytes:
    """The first line of a commit, where Spark writes what the commit says of itself."""
    try:
        with log.open_file(commit_file(version)) as file:
            return io.BufferedReader(file).readline()
    except OSError as error:
        raise UnavailableError("its history changed while it was read; try again") from error


def changes_metadata(log: Folder, version: int) -> bool:
    """Whether a commit may have changed the table's definition; true where its file is gone."""
    if log.stamps([commit_file(version)]) == [None]:
        return True
    lines = log.read_file(commit_file(version)).splitlines()
    return any(b'"metaData"' in line and "metaData" in json.loads(line) for line in lines)


def parse_moment(text: str) -> datetime:
    """A time as DuckDB writes it; without a zone it is UTC."""
    cleaned = text.strip()
    if (infinite := _INFINITE.get(cleaned.lower())) is not None:
        return infinite
    try:
        moment = datetime.fromisoformat(cleaned)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"'{text[:40]}' is not a time; give one like 2024-01-31 12:00:00") from error


def parse_version(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise RequestError(f"'{text[:40]}' is not a version; versions are whole numbers from 0")
    return int(digits)


def _scan(log: Folder) -> tuple[dict[int, int], set[int]]:
    commits: dict[int, int] = {}
    checkpoints: set[int] = set()
    for name, stamp in log.files().items():
        if match := _COMMIT.match(name):
            commits[int(match[1])] = stamp.modified_ns
        elif match := _CHECKPOINT.match(name):
            checkpoints.add(int(match[1]))
    return commits, checkpoints


def _readable(commits: Mapping[int, int], checkpoints: Set[int]) -> tuple[int, int]:
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


def _in_commit_since(configuration: Mapping[str, str]) -> float:
    """The version from which on commits hold their own time; a table may have begun to keep it late."""
    if configuration.get(_IN_COMMIT_TIMESTAMPS, "false").lower() != "true":
        return float("inf")
    return int(configuration.get(_IN_COMMIT_SINCE, "0"))


def _file_times(commits: Mapping[int, int], versions: Iterable[int]) -> dict[int, int]:
    times: dict[int, int] = {}
    previous = -(2**63)
    for version in versions:
        previous = times[version] = max(commits[version] // 1_000_000, previous + 1)
    return times


def _commit_millis(log: Folder, version: int) -> int:
    try:
        return int(json.loads(first_line(log, version))["commitInfo"]["inCommitTimestamp"])
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError("a commit without its time is in the Delta log") from error


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
