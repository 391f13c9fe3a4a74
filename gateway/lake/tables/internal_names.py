"""Columns that the gateway adds to rows on their way, beside the table's own: every one of them is named here.

One prefix keeps them apart from the columns of tables. No table of the gateway's
gets a column with it; a table that others made with one can be read, and not written.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.catalog.names import fold
from gateway.errors import PreconditionError

_PREFIX = "__deltaport"

# Rows of a statement, staged and in the source of a MERGE; `rowids.column` names the row id that tables store.
ROWID_FIELD = f"{_PREFIX}_rowid"
POSITION = f"{_PREFIX}_position"
OPERATION = f"{_PREFIX}_operation"
STATEMENT = f"{_PREFIX}_statement"
COUNT = f"{_PREFIX}_count"
# Rows that get ids: the place in the read, the task that reads it, the file, and what is known of each of these.
PLACE = f"{_PREFIX}_place"
TASK = f"{_PREFIX}_task"
PATH = f"{_PREFIX}_path"
FIRST = f"{_PREFIX}_first"
LAST = f"{_PREFIX}_last"
START = f"{_PREFIX}_start"
DUPLICATE = f"{_PREFIX}_duplicate"
# Rows that are put back as they were.
WAS_THERE = f"{_PREFIX}_was_there"
IS_THERE = f"{_PREFIX}_is_there"
STILL_THERE = f"{_PREFIX}_still_there"


def is_internal(name: str) -> bool:
    return fold(name).startswith(_PREFIX)


def check_writable(columns: Iterable[str]) -> None:
    """Refuse a table of others that has a column with such a name: it could be taken for the gateway's."""
    for name in columns:
        if is_internal(name):
            raise PreconditionError(
                f"column '{name[:60]}' has a name that the gateway keeps for itself: rename it to write to the table"
            )
