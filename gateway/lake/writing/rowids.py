"""How row ids are given: each table's mark, and the ids above it.

The mark is the highest id ever given. It is the maximum of the id column's file
statistics and of a Delta `txn` action that every commit which gives ids writes:
checkpoints keep it and RESTORE does not undo it, so ids of deleted rows are
never given again.
"""

from __future__ import annotations

import pyarrow.compute as pc

from gateway.lake.reading.lookups import select
from gateway.lake.tables.snapshots import LogSnapshot


def highest_row_id(snapshot: LogSnapshot) -> int:
    """The highest id that was ever given, as far as this snapshot knows; -1 when none was."""
    return max(snapshot.rowid_mark, _highest_stored(snapshot))


def _highest_stored(snapshot: LogSnapshot) -> int:
    rowid = snapshot.schema.rowid
    assert rowid is not None
    if snapshot.files.num_rows == 0:
        return -1
    highest = snapshot.file_values(rowid, "max")
    nulls = snapshot.file_values(rowid, "null_count")
    if highest is not None and nulls is not None:
        proven = pc.or_(
            pc.is_valid(highest), pc.fill_null(pc.equal(nulls, snapshot.files.column("num_records")), False)
        )
        if pc.all(proven).as_py():
            top = pc.max(highest).as_py()
            return -1 if top is None else int(top)
    # Somebody wrote files without statistics: ask the column itself.
    tops = [pc.max(batch.column(0)).as_py() for batch in select(snapshot, [rowid])]
    return max((int(top) for top in tops if top is not None), default=-1)
