"""DDL actions: decode, hand to the catalog's editor, answer with the table as it is then."""

from __future__ import annotations

from collections.abc import Callable

from gateway.catalog.editing import Editor
from gateway.catalog.registry import Catalog, Catalogs
from gateway.flight.browsing import Browsing
from gateway.flight.contexts import ANONYMOUS, owner_of
from gateway.flight.fillings import Fillings
from gateway.transactions.manager import TransactionManager
from gateway.wire.ddl import (
    ALTERATIONS,
    RenameTable,
    decode_alter,
    decode_create_schema,
    decode_create_table,
    decode_drop_schema,
    decode_drop_table,
)
from gateway.wire.headers import CallHeaders
from gateway.wire.packing import contents, pack

Handler = Callable[[CallHeaders, bytes], bytes]
_NOTHING = b""


class Editors:
    """One editor per catalog, since changes of a catalog's names take turns."""

    def __init__(self, catalogs: Catalogs) -> None:
        self._catalogs = catalogs
        self._editors = {catalog.name: Editor(catalog) for catalog in catalogs}

    def get(self, catalog: str) -> tuple[Catalog, Editor]:
        found = self._catalogs.get(catalog)
        return found, self._editors[found.name]


class Ddl:
    def __init__(
        self, editors: Editors, browsing: Browsing, fillings: Fillings, transactions: TransactionManager
    ) -> None:
        self._editors = editors
        self._browsing = browsing
        self._fillings = fillings
        self._transactions = transactions

    def actions(self) -> dict[str, tuple[str, Handler]]:
        """Description and handler of each action."""
        alter = {name: (f"ALTER TABLE: {name.replace('_', ' ')}", self._altering(name)) for name in ALTERATIONS}
        return {
            "create_schema": ("CREATE SCHEMA", self._create_schema),
            "drop_schema": ("DROP SCHEMA", self._drop_schema),
            "create_table": ("CREATE TABLE", self._create_table),
            "drop_table": ("DROP TABLE", self._drop_table),
            **alter,
        }

    def _create_schema(self, _headers: CallHeaders, body: bytes) -> bytes:
        request = decode_create_schema(body)
        _, editor = self._editors.get(request.catalog)
        tables = editor.create_schema(request.schema)
        return pack(contents([self._browsing.entry(table, request.catalog) for table in tables]))

    def _drop_schema(self, _headers: CallHeaders, body: bytes) -> bytes:
        request = decode_drop_schema(body)
        _, editor = self._editors.get(request.catalog)
        editor.drop_schema(request.schema, ignore_not_found=request.ignore_not_found)
        return _NOTHING

    def _create_table(self, headers: CallHeaders, body: bytes) -> bytes:
        began_ms = self._transactions.now_ms()
        request = decode_create_table(body)
        _, editor = self._editors.get(request.catalog)
        table, is_new = editor.create_table(request.schema, request.table, request.definition, request.on_conflict)
        if is_new:
            self._fillings.was_made(table, headers, began_ms)
        return self._browsing.entry(table, request.catalog)

    def _drop_table(self, _headers: CallHeaders, body: bytes) -> bytes:
        request = decode_drop_table(body)
        _, editor = self._editors.get(request.catalog)
        editor.drop_table(request.schema, request.table, ignore_not_found=request.ignore_not_found)
        return _NOTHING

    def _altering(self, action: str) -> Handler:
        return lambda headers, body: self._alter(action, headers, body)

    def _alter(self, action: str, headers: CallHeaders, body: bytes) -> bytes:
        request = decode_alter(action, body)
        catalog, editor = self._editors.get(request.catalog)
        table = catalog.table(request.schema, request.table)
        if isinstance(request.change, RenameTable):
            table = editor.rename_table(table, request.change.new_name)
        else:
            version = editor.alter_table(table, request.change, ANONYMOUS)
            if version is not None:
                self._transactions.altered(owner_of(headers), table.name.key, version)
        return self._browsing.entry(table, request.catalog)
