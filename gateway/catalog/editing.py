"""Changing what a catalog holds: schemas and tables made, altered, renamed and dropped.

One change of a catalog's names runs at a time; altering a table is between that
table and its writers. A source that can be edited says so by its abilities. Each
change is in the listing, and moves the catalog's version, before it is answered.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Protocol, runtime_checkable

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Readable
from gateway.catalog.names import TableName, check_name, fold
from gateway.catalog.registry import Catalog, Catalogs, Listing
from gateway.errors import NotFoundError, PreconditionError, RequestError, UnsupportedError
from gateway.wire.ddl_messages import Alteration, OnConflict, TableDefinition

# The client answers every look-up of this name by itself, with "not found".
_INVISIBLE_SCHEMA = "main"


@runtime_checkable
class Editable(Protocol):
    """A source whose schemas and tables can be changed. Each change is made as a whole or not at all."""

    def create_schema(self, schema: str) -> None: ...

    def drop_schema(self, schema: str) -> None:
        """PreconditionError when it holds anything."""

    def create_table(self, name: TableName, definition: TableDefinition, replaced: Readable | None) -> Readable:
        """Make a table; `replaced` is dropped in the same change."""

    def drop_table(self, table: Readable) -> None: ...

    def rename_table(self, table: Readable, name: TableName) -> Readable: ...

    def begin_creation(self, table: Readable) -> None:
        """The first rows of a new table are on their way: should they never arrive, the table is dropped."""

    def end_creation(self, table: Readable, *, complete: bool) -> bool:
        """How it ended. True when the table is gone: it was not complete, and nobody else had written to it."""


@runtime_checkable
class Alterable(Protocol):
    """A table whose definition can be changed."""

    def alter(self, change: Alteration, call: Call) -> int | None:
        """The version that it made; None where there was nothing to change."""


class Editor:
    """Edits one catalog. Thread-safe: `_names_lock` lets one change of names run at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._names_lock = threading.Lock()

    def create_schema(self, schema: str) -> list[Readable]:
        """Make a schema, or find it there: the client sends the same for IF NOT EXISTS. Its tables."""
        check_name("schema", schema)
        if fold(schema) == _INVISIBLE_SCHEMA:
            raise RequestError(
                f"schema name '{schema}' cannot be used: DuckDB's client cannot see a schema of that name"
            )
        source = self._source()
        with self._names_lock:
            listing = self.catalog.listing()
            if fold(schema) not in listing.schemas:
                source.create_schema(schema)
                self.catalog.edit(lambda now: replace(now, schemas={**now.schemas, fold(schema): schema}))
            tables = self.catalog.listing().tables.items()
            return [table for (owner, _), table in tables if owner == fold(schema)]

    def drop_schema(self, schema: str, *, ignore_not_found: bool) -> None:
        source = self._source()
        with self._names_lock:
            listing = self.catalog.listing()
            written = listing.schemas.get(fold(schema))
            if written is None:
                if ignore_not_found:
                    return
                check_name("schema", schema)
                raise NotFoundError(f"schema '{schema}' not found")
            if any(owner == fold(schema) for owner, _ in [*listing.tables, *listing.broken]):
                raise PreconditionError(f"schema '{written}' is not empty: drop its tables first")
            source.drop_schema(written)
            self.catalog.edit(
                lambda now: replace(now, schemas={k: v for k, v in now.schemas.items() if k != fold(schema)})
            )

    def create_table(
        self, schema: str, table: str, definition: TableDefinition, on_conflict: OnConflict
    ) -> tuple[Readable, bool]:
        """The table, and whether it was made just now."""
        source = self._source()
        with self._names_lock:
            name = self._new_name(schema, table)
            existing = self._find(name.schema, table)
            if existing is not None and on_conflict is OnConflict.IGNORE:
                return existing, False
            if existing is not None and on_conflict is OnConflict.ERROR:
                raise PreconditionError(f"table '{existing.name}' already exists")
            made = source.create_table(name, definition, existing)
            self.catalog.edit(lambda now: _with_table(now, made))
            return made, True

    def drop_table(self, schema: str, table: str, *, ignore_not_found: bool) -> None:
        source = self._source()
        with self._names_lock:
            try:
                found = self.catalog.table(schema, table)
            except NotFoundError:
                if ignore_not_found:
                    return
                raise
            source.drop_table(found)
            self.catalog.edit(lambda now: _without_table(now, found))

    def rename_table(self, table: Readable, new_name: str) -> Readable:
        source = self._source()
        with self._names_lock:
            name = self._new_name(table.name.schema, new_name)
            other = self._find(name.schema, new_name)
            if other is not None and other is not table:
                raise PreconditionError(f"table '{other.name}' already exists")
            if name == table.name:
                return table
            renamed = source.rename_table(table, name)
            self.catalog.edit(lambda now: _with_table(_without_table(now, table), renamed))
            return renamed

    def alter_table(self, table: Readable, change: Alteration, call: Call) -> int | None:
        """The version that it made; None where there was nothing to change."""
        if not isinstance(table, Alterable):
            raise UnsupportedError(f"table '{table.name}' cannot be altered")
        version = table.alter(change, call)
        table.refresh()
        self.catalog.edit(lambda now: now)
        return version

    def begin_creation(self, table: Readable) -> None:
        self._source().begin_creation(table)

    def end_creation(self, table: Readable, *, complete: bool) -> None:
        with self._names_lock:
            if self._source().end_creation(table, complete=complete):
                self.catalog.edit(lambda now: _without_table(now, table))

    def _source(self) -> Editable:
        source = self.catalog.source
        if not isinstance(source, Editable):
            raise UnsupportedError(f"catalog '{self.catalog.name}' cannot be changed")
        return source

    def _new_name(self, schema: str, table: str) -> TableName:
        """The full name of a table to be, in a schema that exists."""
        check_name("schema", schema)
        check_name("table", table)
        written = self.catalog.listing().schemas.get(fold(schema))
        if written is None:
            raise NotFoundError(f"schema '{schema}' not found")
        return TableName(self.catalog.name, written, table)

    def _find(self, schema: str, table: str) -> Readable | None:
        try:
            return self.catalog.table(schema, table)
        except NotFoundError:
            return None


class Editors:
    """One editor per catalog, since changes of a catalog's names take turns."""

    def __init__(self, catalogs: Catalogs) -> None:
        self.catalogs = catalogs
        self._editors = {catalog.name: Editor(catalog) for catalog in catalogs}

    def get(self, catalog: str) -> Editor:
        return self._editors[self.catalogs.get(catalog).name]


def _with_table(listing: Listing, table: Readable) -> Listing:
    key = fold(table.name.schema), fold(table.name.table)
    broken = {k: v for k, v in listing.broken.items() if k != key}
    return Listing(listing.schemas, {**listing.tables, key: table}, broken)


def _without_table(listing: Listing, table: Readable) -> Listing:
    key = fold(table.name.schema), fold(table.name.table)
    return replace(listing, tables={k: v for k, v in listing.tables.items() if k != key})
