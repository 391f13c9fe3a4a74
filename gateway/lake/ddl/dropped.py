"""The dropped tables of a warehouse: kept for a while in a hidden folder, so that a drop can be taken back.

`_dropped/<time>-<random>/<schema>/<table>/` is the table's folder as it was. Dropping
and bringing back are one rename each; what is older than it must be is removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from gateway.catalog.names import fold
from gateway.lake.tables.storage import Folder

log = structlog.get_logger(__name__)

AREA = "_dropped"
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class DroppedTable:
    schema: str
    table: str
    dropped_at: datetime
    folder: Folder


class DroppedTables:
    """Of one warehouse. Holds nothing but its place."""

    def __init__(self, root: Folder) -> None:
        self._area = root.child(AREA)

    def new_place(self, schema: str, table: str) -> Folder:
        """Where a table is to be moved; its parents exist then."""
        place = self._area.child(f"{datetime.now(UTC).strftime(_TIME)}-{secrets.token_hex(4)}").child(schema)
        place.create()
        return place.child(table)

    def find(self, schema: str, table: str) -> DroppedTable | None:
        """The one that was dropped last under this name."""
        wanted = fold(schema), fold(table)
        found = [each for each in self if (fold(each.schema), fold(each.table)) == wanted]
        return max(found, key=lambda each: (each.dropped_at, each.folder.uri), default=None)

    def __iter__(self) -> Iterator[DroppedTable]:
        for drop, dropped_at in self._drops():
            for schema in drop.folders():
                for table in drop.child(schema).folders():
                    yield DroppedTable(schema, table, dropped_at, drop.child(schema).child(table))

    def purge(self, keep: timedelta, now: datetime) -> int:
        """Remove what was dropped longer ago, and the folders of drops that never happened; how many."""
        removed = 0
        for drop, dropped_at in self._drops():
            if now - dropped_at > keep:
                drop.remove_tree()
                log.info("dropped_table_purged", dropped_at=dropped_at.isoformat())
                removed += 1
        return removed

    def clear_empty(self) -> None:
        """After a crash: places that were made for tables that stayed where they were."""
        for drop, _ in self._drops():
            for schema in drop.folders():
                drop.child(schema).remove_empty()
            drop.remove_empty()

    def _drops(self) -> Iterator[tuple[Folder, datetime]]:
        for name in self._area.folders():
            try:
                dropped_at = datetime.strptime(name.split("-", 1)[0], _TIME).replace(tzinfo=UTC)
            except ValueError:
                continue  # not one of ours: left alone
            yield self._area.child(name), dropped_at
