"""DDL actions: decode, hand to the catalog's editor, answer with the table as it is then."""

from __future__ import annotations

from collections.abc import Callable

from gateway.access.policy import Action
from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Readable
from gateway.catalog.editing import Editor, Editors
from gateway.catalog.guarding import SeenCatalog, seen_by
from gateway.errors import NotFoundError, PreconditionError
from gateway.flight.browsing import Browsing
from gateway.flight.pending_creations import PendingCreations
from gateway.transactions.manager import TransactionManager
from gateway.wire.ddl_messages import (
    ALTERATIONS,
    RenameTable,
    decode_alter,
    decode_create_schema,
    decode_create_table,
    decode_drop_schema,
    decode_drop_table,
)
from gateway.wire.listing import encode_contents
from gateway.wire.packing import pack

Handler = Callable[[Call, bytes], bytes]
_NOTHING = b""


class DdlActions:
    def __init__(
        self, editors: Editors, browsing: Browsing, creations: PendingCreations, transactions: TransactionManager
    ) -> None:
        self._editors = editors
        self._browsing = browsing
        self._creations = creations
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

    def _create_schema(self, call: Call, body: bytes) -> bytes:
        request = decode_create_schema(body)
        seen, editor = self._editing(call, request.catalog)
        seen.check_new(request.schema)
        tables = [table for table in editor.create_schema(request.schema) if _is_readable(seen, table)]
        return pack(encode_contents([self._browsing.entry(table, request.catalog) for table in tables]))

    def _drop_schema(self, call: Call, body: bytes) -> bytes:
        request = decode_drop_schema(body)
        seen, editor = self._editing(call, request.catalog)
        try:
            seen.check(Action.DDL, request.schema)
        except NotFoundError:
            if request.ignore_not_found:
                return _NOTHING
            raise
        editor.drop_schema(request.schema, ignore_not_found=request.ignore_not_found)
        return _NOTHING

    def _create_table(self, call: Call, body: bytes) -> bytes:
        began_ms = self._transactions.now_ms()
        request = decode_create_table(body)
        seen, editor = self._editing(call, request.catalog)
        seen.check_new(request.schema, request.table)
        table, is_new = editor.create_table(request.schema, request.table, request.definition, request.on_conflict)
        if is_new:
            self._creations.record_creation(call, table, began_ms)
        elif not _is_readable(seen, table):  # IF NOT EXISTS would show its columns
            raise PreconditionError(f"table '{table.name}' already exists")
        return self._browsing.entry(table, request.catalog)

    def _drop_table(self, call: Call, body: bytes) -> bytes:
        request = decode_drop_table(body)
        seen, editor = self._editing(call, request.catalog)
        try:
            seen.check(Action.DDL, request.schema, request.table)
        except NotFoundError:
            if request.ignore_not_found:
                return _NOTHING
            raise
        editor.drop_table(request.schema, request.table, ignore_not_found=request.ignore_not_found)
        return _NOTHING

    def _editing(self, call: Call, catalog: str) -> tuple[SeenCatalog, Editor]:
        """The catalog as the caller sees it, to ask, and its editor."""
        seen = seen_by(call, self._editors.catalogs).get(catalog)
        return seen, self._editors.get(seen.name)

    def _altering(self, action: str) -> Handler:
        return lambda call, body: self._alter(action, call, body)

    def _alter(self, action: str, call: Call, body: bytes) -> bytes:
        request = decode_alter(action, body)
        seen, editor = self._editing(call, request.catalog)
        table = seen.table(request.schema, request.table, Action.DDL)
        if isinstance(request.change, RenameTable):
            seen.check_new(request.schema, request.change.new_name)
            table = editor.rename_table(table, request.change.new_name)
        else:
            version = editor.alter_table(table, request.change, call)
            if version is not None:
                self._transactions.altered(call.owner, table.name.key, version)
        return self._browsing.entry(table, request.catalog)


def _is_readable(seen: SeenCatalog, table: Readable) -> bool:
    return seen.may(Action.READ, table.name.schema, table.name.table)
