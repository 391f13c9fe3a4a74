"""Deleted rows that are still in their files: how many a version has, as its log tells.

Statistics count a file's rows with those that its deletion vector hides, and the
direct reader's list of files does not tell of vectors. The log does: each file's
newest action counts, from the newest commit back to the last plain checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow.parquet as pq

from gateway.lake.tables.history import commit_file
from gateway.lake.tables.storage import Folder

# Whole, or in numbered parts. Others point to further files, and are passed over.
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet$")
_MOST_COMMITS = 200


def deleted_rows(log: Folder, version: int) -> int | None:
    """None where the log does not tell, or only after more reading than the number is worth."""
    try:
        return sum(_deletions(log, version))
    except (OSError, ValueError, LookupError):
        return None


def _deletions(log: Folder, version: int) -> Iterator[int]:
    """Of each file with a deletion vector, how many rows it hides."""
    checkpoints = _checkpoints(log)
    seen: set[str] = set()
    for number in range(version, max(version - _MOST_COMMITS, -1), -1):
        if number in checkpoints:
            for part in checkpoints[number]:
                yield from (hidden for path, hidden in _in_checkpoint(log, part) if path not in seen)
            return
        added, removed = _in_commit(log, number)
        yield from (hidden for path, hidden in added.items() if path not in seen)
        seen |= added.keys() | removed
        if number == 0:
            return
    raise LookupError("there is no checkpoint near")


def _checkpoints(log: Folder) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in log.files():
        if match := _CHECKPOINT.match(name):
            found.setdefault(int(match[1]), []).append(name)
    return found


def _in_commit(log: Folder, version: int) -> tuple[dict[str, int], set[str]]:
    """Files that a commit added, each with its deleted rows, and those it removed; one with a new vector is both."""
    added, removed = {}, set()
    for line in log.read_file(commit_file(version)).splitlines():
        if b'"add"' not in line and b'"remove"' not in line:
            continue
        action = json.loads(line)
        if (file := action.get("add")) is not None:
            added[file["path"]] = (file.get("deletionVector") or {}).get("cardinality", 0)
        elif (file := action.get("remove")) is not None:
            removed.add(file["path"])
    return added, removed


def _in_checkpoint(log: Folder, name: str) -> Iterator[tuple[str, int]]:
    with log.open_file(name) as file:
        adds = pq.ParquetFile(file).read(columns=["add.path", "add.deletionVector.cardinality"])
    for chunk in adds.column("add").chunks:
        for add in chunk.filter(chunk.is_valid()).to_pylist():
            if add["path"] is not None:
                yield add["path"], (add.get("deletionVector") or {}).get("cardinality") or 0
