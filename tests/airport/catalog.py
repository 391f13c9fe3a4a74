"""The client's own picture of the catalog: loaded late, once, and patched by its own DDL."""

from __future__ import annotations

from collections.abc import Callable

from tests.airport.replies import Contents, Flight, Listing, SchemaEntry


class UnknownNameError(LookupError):
    """The client answers from its own list; nothing was sent for this name."""


class Catalog:
    """Schemas and tables as loaded so far.

    `load_listing` and `load_contents` are called at most once: for the catalog, and
    for each schema and kind of object. Other clients' DDL therefore stays unseen.
    """

    def __init__(
        self,
        load_listing: Callable[[], Listing],
        load_contents: Callable[[SchemaEntry], list[Flight]],
    ) -> None:
        self._load_listing = load_listing
        self._load_contents = load_contents
        self._schemas: dict[str, SchemaEntry] | None = None
        self._objects: dict[tuple[str, str], dict[str, Flight]] = {}

    def schemas(self) -> dict[str, SchemaEntry]:
        if self._schemas is None:
            self._schemas = {entry.name: entry for entry in self._load_listing().schemas}
        return self._schemas

    def schema(self, name: str) -> SchemaEntry:
        # The client never finds the exact name `main`, whatever the server lists.
        found = [entry for key, entry in self.schemas().items() if key.lower() == name.lower()]
        if name == "main" or not found:
            raise UnknownNameError(f"schema {name} does not exist")
        return next((entry for entry in found if entry.name == name), found[0])

    def objects(self, entry: SchemaEntry, kind: str) -> dict[str, Flight]:
        """Objects of one kind by lower-case name; functions of one name are overloads, the last is kept."""
        key = (entry.name, kind)
        if key not in self._objects:
            # Marked first: contents that cannot be loaded leave the schema empty for good.
            self._objects[key] = {}
            flights = self._load_contents(entry)
            self._objects[key] = {each.name.lower(): each for each in flights if each.kind == kind}
        return self._objects[key]

    def table(self, schema: str, name: str) -> Flight:
        tables = self.objects(self.schema(schema), "table")
        if name.lower() not in tables:
            raise UnknownNameError(f"table {schema}.{name} does not exist")
        return tables[name.lower()]

    def tables(self) -> list[Flight]:
        return [table for entry in self.schemas().values() for table in self.objects(entry, "table").values()]

    def add_schema(self, name: str, contents: Contents) -> None:
        if self._schemas is not None:
            self._schemas[name] = SchemaEntry(name, "", {}, None, contents)

    def drop_schema(self, name: str) -> None:
        if self._schemas is not None:
            self._schemas.pop(name, None)
        self._objects = {key: value for key, value in self._objects.items() if key[0] != name}

    def put_table(self, schema: str, table: Flight, *, replaces: str | None = None) -> None:
        tables = self.objects(self.schema(schema), "table")
        if replaces is not None:
            tables.pop(replaces.lower(), None)
        tables[table.name.lower()] = table

    def drop_table(self, schema: str, name: str) -> None:
        self.objects(self.schema(schema), "table").pop(name.lower(), None)
