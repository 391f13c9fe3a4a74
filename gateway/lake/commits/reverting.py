"""Takes a whole commit back at once: only for one that turned out to hold other rows than it should.

Unlike an undo, which takes back what a transaction wrote, this puts back the very
files that the commit replaced, and only while nobody has committed since.
"""

from __future__ import annotations

from typing import Any

from gateway.lake.commits.delta_log import commit_by_hand, delta_log, removed, start_transaction

_SNAPSHOT_DEFAULTS = range(2, 5)  # of `getSnapshotAt`, which Java sees as methods with numbers


def revert_commit(session: Any, uri: str, version: int) -> int:
    """Make the table again what it was before a version. Raises where that is not the newest, or on any conflict."""
    transaction = start_transaction(session, uri)
    if transaction.readVersion() != version:
        raise RuntimeError("others committed since")
    transaction.readWholeTable()
    log = delta_log(session, uri)
    defaults = [getattr(log, f"getSnapshotAt$default${place}")() for place in _SNAPSHOT_DEFAULTS]
    before, after = _files(log.getSnapshotAt(version - 1, *defaults)), _files(transaction.snapshot())
    actions = removed([file for key, file in after.items() if key not in before])
    actions += [file for key, file in before.items() if key not in after]
    return commit_by_hand(session, transaction, actions)


def _files(snapshot: Any) -> dict[tuple[str, str], Any]:
    """A file is another one with another deletion vector."""
    return {(file.path(), str(file.getDeletionVectorUniqueId())): file for file in snapshot.allFiles().collectAsList()}
