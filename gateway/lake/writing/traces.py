"""What a transaction left in the tables' logs, where its commits name it in their `userMetadata`.

The log outlives the process, so this is how a transaction is found again after a
restart. No commit older than the transaction is read. Where that cannot be all,
because commits are gone or too many, the answer says so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from gateway.catalog.changes import Footprint, Trace, Traces, Undone
from gateway.errors import UnavailableError
from gateway.lake.tables.history import commit_times, first_line
from gateway.lake.tables.storage import Folder

_KEY = "deltaport"
_MOST_COMMITS = 100_000
# The clock of a mounted disk may differ from ours.
_CLOCKS_DIFFER_MS = 60_000


def traces_of(logs: Mapping[Hashable, Folder], transaction: str, issued_ms: int) -> Traces:
    """The tables that the transaction wrote to; `logs` are by the tables' keys."""
    recent: list[tuple[int, int, Hashable]] = []
    gaps: list[str] = []
    for table, log in logs.items():
        try:
            times = commit_times(log)
        except UnavailableError:  # a table that cannot be looked at hides no other
            gaps.append(f"the log of {_shown(table)} cannot be read now")
            continue
        since = issued_ms - _CLOCKS_DIFFER_MS
        if times and min(times) > 0 and times[min(times)] >= since:
            gaps.append(f"the log of {_shown(table)} does not reach back to its beginning")
        recent += [(when, version, table) for version, when in times.items() if when >= since]
    recent.sort(key=lambda commit: commit[:2], reverse=True)
    if len(recent) > _MOST_COMMITS:
        gaps.append(f"more than {_MOST_COMMITS:,} commits were made since it began")
    return Traces(_found(logs, recent[:_MOST_COMMITS], transaction), gaps[0] if gaps else None)


def _found(
    logs: Mapping[Hashable, Folder], commits: list[tuple[int, int, Hashable]], transaction: str
) -> dict[Hashable, Trace]:
    versions: defaultdict[Hashable, set[int]] = defaultdict(set)
    since: dict[Hashable, int] = {}
    undone: dict[Hashable, Undone] = {}
    callers: defaultdict[Hashable, set[str]] = defaultdict(set)
    reverted: set[tuple[Hashable, int]] = set()
    # By the time of a file a commit may seem older than the one before it; what reverts another must come first.
    for table, version in sorted(((table, version) for _, version, table in commits), key=lambda each: -each[1]):
        for statement in _statements(logs[table], version, transaction):
            if "reverts" in statement:
                reverted.add((table, statement["reverts"]))
            elif (table, version) in reverted:
                continue
            elif statement.get("undoes") == transaction:
                undone.setdefault(table, Undone(int(statement.get("rows", 0)), version))
            elif statement.get("transaction") == transaction:
                versions[table].add(version)
                callers[table] |= {statement["caller"]} if isinstance(statement.get("caller"), str) else set()
                # Commits of earlier versions do not say where the transaction began.
                begun = statement.get("since", -1)
                since[table] = min(since.get(table, begun), begun)
    return {
        table: Trace(Footprint(since[table], frozenset(found)), undone.get(table), frozenset(callers[table]))
        for table, found in versions.items()
    }


def _statements(log: Folder, version: int, transaction: str) -> list[dict[str, Any]]:
    """What a commit says of its statements; nothing where it is gone, or surely not of this transaction."""
    try:
        line = first_line(log, version)
        if transaction.encode() not in line and b"reverts" not in line:
            return []
        note = json.loads(json.loads(line)["commitInfo"]["userMetadata"])[_KEY]
        return list(_statements_of(note))
    except (UnavailableError, KeyError, TypeError, ValueError):
        return []


def _statements_of(note: dict[str, Any]) -> Iterator[dict[str, Any]]:
    # Commits of earlier versions name the transaction once for all their statements.
    for statement in (note, *note.get("statements", ())):
        if isinstance(statement, dict):
            yield statement


def _shown(table: Hashable) -> str:
    assert isinstance(table, tuple)
    return f"table '{'.'.join(table[1:])}'"
