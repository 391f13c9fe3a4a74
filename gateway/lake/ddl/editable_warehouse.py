"""A warehouse whose schemas and tables can be made, dropped and renamed.

A new table is built aside and renamed into its place, a dropped one is renamed
out of it, so a crash leaves the old state or the new one. What takes two steps is
noted first and finished by whoever writes next. Nothing outside the root is ever
removed: a table that the settings map from elsewhere is only forgotten.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

import structlog

from gateway.catalog.capabilities import Readable
from gateway.catalog.names import TableName, fold
from gateway.errors import GatewayError, InternalError, NotFoundError, PreconditionError, RequestError
from gateway.lake.ddl.definitions import define, first_commit
from gateway.lake.ddl.dropped import AREA, DroppedTable, DroppedTables
from gateway.lake.ddl.journal import Journal, Moves, PendingCreation, Place
from gateway.lake.tables.history import commit_file
from gateway.lake.tables.snapshots import LOG
from gateway.lake.tables.storage import Folder
from gateway.lake.tables.warehouse import Warehouse
from gateway.settings import DdlSettings
from gateway.wire.ddl_messages import TableDefinition

log = structlog.get_logger(__name__)

_OWN = "_deltaport"  # what the gateway keeps in a warehouse
_BUILDING, _JOURNAL = (_OWN, "building"), (_OWN, "journal")
_PURGE_EVERY_SECONDS = 3600.0
_NEVER = object()


@runtime_checkable
class Retirable(Protocol):
    """A table that can be taken out of use."""

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """No statement of this gateway writes to the table meanwhile."""

    def retire(self) -> None:
        """Its place is not its own any more; whoever still uses it gets an error that says so."""


class EditableWarehouse(Warehouse):
    """Thread-safe for reading; its changes run one at a time, which the catalog's editor sees to."""

    def __init__(
        self,
        root: Folder | None,
        mapped: Mapping[str, str],
        open_table: Callable[[TableName, Folder], Readable],
        rowid_column: str,
        settings: DdlSettings,
        *,
        check_writer: Callable[[], object] = lambda: None,
        replaced: Callable[[str], None] = lambda _uri: None,
    ) -> None:
        """`check_writer` raises where this process must not write; `replaced` hears of places with another table.

        What `check_writer` returns is another object whenever somebody else may have written in between.
        """
        super().__init__(root, mapped, open_table)
        self._rowid_column = rowid_column
        self._settings = settings
        self._check_writer = check_writer
        self._replaced = replaced
        self._changes = threading.Lock()  # held while names change, so that nobody takes that for a crash
        self._recovered_for: object = _NEVER
        self._purge_after = 0.0
        self._creations: dict[tuple[str, str], tuple[str, PendingCreation]] = {}

    # Schemas

    def create_schema(self, schema: str) -> None:
        with self._changing():
            _check_place("schema", schema)
            self._writable_root().child(schema).create()

    def drop_schema(self, schema: str) -> None:
        with self._changing():
            if any(fold(schema) == owner for owner, _ in self._mapped):
                raise PreconditionError(f"schema '{schema}' is not empty: the settings map a table into it")
            if not self._writable_root().child(schema).remove_empty():
                raise PreconditionError(f"schema '{schema}' is not empty: its folder holds other files")

    # Tables

    def create_table(self, name: TableName, definition: TableDefinition, replaced: Readable | None) -> Readable:
        with self._changing():
            _check_place("table", name.table)
            if replaced is not None and self._is_mapped(replaced.name):
                raise PreconditionError(f"table '{replaced.name}' is mapped by the settings and cannot be replaced")
            log_entry = first_commit(define(str(name), definition, self._rowid_column))
            if replaced is None:
                self._require_free(_place(name))
            building = (*_BUILDING, str(uuid.uuid4()))
            try:
                self._at(building).child(LOG).create()
                self._at(building).child(LOG).write_file(commit_file(0), log_entry)
                if replaced is None:
                    self._move(building, _place(name))
                else:
                    self._exchange(building, replaced)
            except GatewayError:
                if self._at(building).exists():
                    self._at(building).remove_tree()
                raise
        return self._opened(name)

    def drop_table(self, table: Readable) -> None:
        name = table.name
        with self._changing():
            if self._is_mapped(name):
                # The settings name it again at the next start; its files are none of ours.
                self._mapped = {key: value for key, value in self._mapped.items() if key != name.key[1:]}
                _retire(table)
                log.warning("table_unmapped", table=str(name))
                return
            with self._taken_out(table):
                self._at(_place(name)).move_to(self._dropped().new_place(name.schema, name.table))
                _retire(table)
        self._replaced(self._at(_place(name)).uri)
        log.info("table_dropped", table=str(name))

    def rename_table(self, table: Readable, name: TableName) -> Readable:
        with self._changing():
            _check_place("table", name.table)
            if self._is_mapped(table.name):
                raise PreconditionError(f"table '{table.name}' is mapped by the settings: rename it there")
            if fold(name.table) != fold(table.name.table):
                self._require_free(_place(name))
            with self._taken_out(table):
                self._move(_place(table.name), _place(name))
                _retire(table)
        self._replaced(self._at(_place(table.name)).uri)
        log.info("table_renamed", table=str(table.name), new_name=name.table)
        return self._opened(name)

    # CREATE TABLE AS

    def begin_creation(self, table: Readable) -> None:
        creation = PendingCreation(table.name.schema, table.name.table, table.current().identity)
        with self._changes:
            self._creations[table.name.key[1:]] = self._journal().write(creation), creation

    def end_creation(self, table: Readable, *, complete: bool) -> bool:
        with self._changes:
            noted = self._creations.pop(table.name.key[1:], None)
            if noted is None:
                return False
            note, creation = noted
            is_gone = False
            if not complete:
                with _exclusively(table):
                    is_gone = self._take_back(creation)
                    if is_gone:
                        _retire(table)
            with contextlib.suppress(GatewayError):  # what is left is found by the next recovery, and does no harm
                self._journal().remove(note)
        return is_gone

    def _take_back(self, creation: PendingCreation) -> bool:
        """Remove a table that was never filled; one that has rows, or is another one by now, stays."""
        place = self._at((creation.schema, creation.table))
        if not place.child(LOG).exists():
            return False
        try:
            newest = self._open_table(TableName("", creation.schema, creation.table), place).current()
        except NotFoundError:
            return False
        if newest.identity != creation.identity or newest.version > 0:
            return False
        aside = self._at((*_BUILDING, str(uuid.uuid4())))
        self._at(_BUILDING).create()
        place.move_to(aside)
        self._replaced(place.uri)
        aside.remove_tree()
        log.info("incomplete_table_removed", table=f"{creation.schema}.{creation.table}")
        return True

    # After a crash, and as time goes by

    def maintain(self) -> bool:
        """Finish what others left half done, and remove what was dropped long ago; to be called now and then.

        True when something was finished: there may be other tables than before.
        """
        if self._root is None or not self._changes.acquire(blocking=False):
            return False  # a change that is under way has looked itself
        try:
            finished = self._catch_up()
            now = time.monotonic()
            if now >= self._purge_after:
                self._purge_after = now + _PURGE_EVERY_SECONDS
                self._dropped().purge(timedelta(days=self._settings.dropped_keep_days), datetime.now(UTC))
            return finished
        finally:
            self._changes.release()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time: this process is the writer, and nothing is left half done."""
        with self._changes:
            self._catch_up()
            yield

    def _catch_up(self) -> bool:
        """Each time the right to write was taken anew: whoever had it may have died in the middle of a change."""
        holding = self._check_writer()
        if self._root is None or self._recovered_for is holding:
            return False
        finished = self._recover()
        self._recovered_for = holding
        return finished

    def _recover(self) -> bool:
        journal, own = self._journal(), {note for note, _ in self._creations.values()}
        notes = [(name, note) for name, note in journal.notes() if name not in own]
        for name, note in notes:
            log.warning("recovering", note=type(note).__name__)
            if isinstance(note, Moves):
                self._finish(note)
            else:
                self._take_back(note)
            journal.remove(name)
        journal.clear_halves()
        for name in self._at(_BUILDING).folders():
            self._at(_BUILDING).child(name).remove_tree()
        self._dropped().clear_empty()
        return bool(notes)

    def _finish(self, moves: Moves) -> None:
        """The steps that are left. What the last step moves is in its place when all was done.

        Then nothing may move again: the first goal may be gone since, a dropped table that was purged or brought
        back, and its start is another table by now.
        """
        if not self._at(moves.steps[-1][0]).exists():
            return
        for start, goal in moves.steps:
            if self._at(start).exists() and not self._at(goal).exists():
                self._move(start, goal)

    # Dropped tables

    def dropped(self) -> list[DroppedTable]:
        return list(self._dropped())

    def undrop(self, schema: str, table: str) -> DroppedTable:
        """Bring back the table that was dropped last under this name: one rename, so a running gateway may be there."""
        found = self._dropped().find(schema, table)
        if found is None:
            raise NotFoundError(f"no dropped table '{schema}.{table}' is kept")
        # The schema may have been dropped too, and made again in another spelling.
        schemas = self._writable_root().folders()
        owner = next((name for name in schemas if fold(name) == fold(found.schema)), found.schema)
        if any(fold(name) == fold(found.table) for name in self._at((owner,)).folders()):
            raise PreconditionError(f"table '{owner}.{found.table}' exists: rename or drop it first")
        self._at((owner,)).create()
        found.folder.move_to(self._at((owner, found.table)))
        return found

    # Places

    def _exchange(self, building: Place, old: Readable) -> None:
        """A new table for an old one: two renames, noted first, so that a crash in between is finished."""
        name = old.name
        with self._taken_out(old):
            goal = self._dropped().new_place(name.schema, name.table)
            dropped = tuple(goal.uri.removeprefix(f"{self._writable_root().uri}/").split("/"))
            assert dropped[0] == AREA
            note = self._journal().write(Moves(((_place(name), dropped), (building, _place(name)))))
            try:
                self._move(_place(name), dropped)
                self._move(building, _place(name))
            except GatewayError:
                self._finish(Moves(((dropped, _place(name)),)))
                self._journal().remove(note)
                raise
            _retire(old)
            self._journal().remove(note)

    @contextlib.contextmanager
    def _taken_out(self, table: Readable) -> Iterator[None]:
        """No statement writes to the table, and after the wait for that it is still there, and ours to move."""
        with _exclusively(table):
            self._check_writer()
            _require_log(self._at(_place(table.name)), table.name)
            yield

    def _opened(self, name: TableName) -> Readable:
        self._replaced(self._at(_place(name)).uri)
        table = self.open(name)
        table.refresh()
        return table

    def _require_free(self, place: Place) -> None:
        schema, table = place
        taken = next((each for each in self._at((schema,)).folders() if fold(each) == fold(table)), None)
        if taken is not None:
            raise PreconditionError(f"table '{schema}.{table}' cannot be made: a folder '{taken}' is in its place")

    def _move(self, start: Place, goal: Place) -> None:
        self._at(start).move_to(self._at(goal))

    def _at(self, place: Place) -> Folder:
        folder = self._writable_root()
        for name in place:
            folder = folder.child(name)
        return folder

    def _writable_root(self) -> Folder:
        if self._root is None:
            raise PreconditionError("this catalog has no warehouse: schemas and tables cannot be made in it")
        return self._root

    def _journal(self) -> Journal:
        return Journal(self._at(_JOURNAL))

    def _dropped(self) -> DroppedTables:
        return DroppedTables(self._writable_root())

    def _is_mapped(self, name: TableName) -> bool:
        return name.key[1:] in self._mapped


def _check_place(kind: str, name: str) -> None:
    # Delta's readers take a folder's name for part of a URI, where %41 is another way to write A.
    if "%" in name:
        raise RequestError(f"{kind} name '{name[:60]}' must not hold a percent sign")


def _place(name: TableName) -> Place:
    return name.schema, name.table


def _require_log(folder: Folder, name: TableName) -> None:
    if not folder.child(LOG).exists():
        raise NotFoundError(f"table '{name}' not found")


@contextlib.contextmanager
def _exclusively(table: Readable) -> Iterator[None]:
    if not isinstance(table, Retirable):
        raise InternalError(f"table '{table.name}' cannot be taken out of use")
    with table.exclusive():
        yield


def _retire(table: Readable) -> None:
    assert isinstance(table, Retirable)
    table.retire()
