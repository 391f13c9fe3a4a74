"""Where a catalog's Delta tables are: a warehouse folder, tables mapped one by one, or both.

`<warehouse>/<schema>/<table>/` is a Delta table if it has a log; an empty
folder is an empty schema. Folders whose names are no names (a leading dot or
underscore, for example) are not looked into. Mapped tables win over folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from gateway.catalog.capabilities import Readable
from gateway.catalog.names import TableName, fold, is_name, parse_qualified
from gateway.lake.tables.snapshots import LOG
from gateway.lake.tables.storage import ClosedFolderError, Folder

log = structlog.get_logger(__name__)


class Warehouse:
    """A catalog's source of tables. Thread-safe: the mapped ones never change, folders are listed anew each time."""

    def __init__(
        self, root: Folder | None, mapped: Mapping[str, str], open_table: Callable[[TableName, Folder], Readable]
    ) -> None:
        self._root = root
        self._open_table = open_table
        self._mapped: dict[tuple[str, str], tuple[tuple[str, str], Folder]] = {}
        for name, location in mapped.items():
            schema, table = parse_qualified(name)
            self._mapped[fold(schema), fold(table)] = (schema, table), Folder.open(location)

    def schemas(self) -> Iterable[str]:
        found = {fold(schema): schema for (schema, _), _ in self._mapped.values()}
        for schema in self._schema_folders():
            found.setdefault(fold(schema), schema)
        return found.values()

    def tables(self) -> Iterable[tuple[str, str]]:
        mapped = [names for names, _ in self._mapped.values()]
        folders = [
            (schema, table)
            for schema in self._schema_folders()
            for table in self._table_folders(schema)
            if (fold(schema), fold(table)) not in self._mapped
        ]
        return [*mapped, *folders]

    def _table_folders(self, schema: str) -> list[str]:
        try:
            return self._folder(schema).folders_with(LOG)
        except ClosedFolderError:
            log.warning("schema_left_out", schema=schema, reason="its folder may not be read")
            return []

    def has_table(self, schema: str, table: str) -> tuple[str, str] | None:
        if (mapped := self._mapped.get((fold(schema), fold(table)))) is not None:
            return mapped[0]
        if self._root is None or not self._folder(schema).child(table).child(LOG).exists():
            return None
        return schema, table

    def open(self, name: TableName) -> Readable:
        mapped = self._mapped.get((fold(name.schema), fold(name.table)))
        folder = self._folder(name.schema).child(name.table) if mapped is None else mapped[1]
        return self._open_table(name, folder)

    def _schema_folders(self) -> Iterator[str]:
        if self._root is not None:
            yield from (name for name in self._root.folders() if is_name(name))

    def _folder(self, schema: str) -> Folder:
        assert self._root is not None
        return self._root.child(schema)
