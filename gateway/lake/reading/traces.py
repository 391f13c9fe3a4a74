"""What a transaction left in the tables' logs, where its commits name it in their `userMetadata`.

The log outlives the process, so this is how a transaction is found again after a
restart. Newest commits first, none older than the transaction, and not too many.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from gateway.catalog.changes import Undone
from gateway.errors import UnavailableError
from gateway.lake.tables.history import commits_since, first_line
from gateway.lake.tables.storage import Folder

_KEY = "deltaport"
_MOST_COMMITS = 10_000
# The clock of a mounted disk may differ from ours.
_CLOCKS_DIFFER_MS = 60_000


def traces_of(logs: Mapping[Hashable, Folder], transaction: str, issued_ms: int) -> dict[Hashable, Undone | None]:
    """The tables that the transaction wrote to, each with what took that back."""
    recent = [
        (when, version, table)
        for table, log in logs.items()
        for when, version in _commits_since(log, issued_ms - _CLOCKS_DIFFER_MS)
    ]
    recent.sort(key=lambda commit: commit[:2], reverse=True)
    wrote: set[Hashable] = set()
    undone: dict[Hashable, Undone] = {}
    for _, version, table in recent[:_MOST_COMMITS]:
        for statement in _statements(logs[table], version):
            if statement.get("undoes") == transaction:
                undone.setdefault(table, Undone(int(statement.get("rows", 0)), version))
            elif statement.get("transaction") == transaction:
                wrote.add(table)
    return {table: undone.get(table) for table in wrote}


def _commits_since(log: Folder, moment_ms: int) -> list[tuple[int, int]]:
    with contextlib.suppress(UnavailableError):  # a table that cannot be looked at hides no other
        return commits_since(log, moment_ms)
    return []


def _statements(log: Folder, version: int) -> list[dict[str, Any]]:
    """What a commit says of its statements; nothing where it is gone, or not one of ours."""
    try:
        note = json.loads(json.loads(first_line(log, version))["commitInfo"]["userMetadata"])[_KEY]
        return list(_told(note))
    except (UnavailableError, KeyError, TypeError, ValueError):
        return []


def _told(note: dict[str, Any]) -> Iterator[dict[str, Any]]:
    # Commits of earlier versions name the transaction once for all their statements.
    for statement in (note, *note.get("statements", ())):
        if isinstance(statement, dict):
            yield statement
