"""DDL statements: the action, the calls around it, and the client's own bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.airport import requests
from tests.airport.arrow_types import duckdb_type
from tests.airport.catalog import UnknownNameError
from tests.airport.exchange import Changed
from tests.airport.packing import ProtocolViolation, unpack_reply
from tests.airport.replies import Flight, decode_contents, decode_flight, decode_info

if TYPE_CHECKING:
    from tests.airport.client import AirportClient


class Ddl:
    """`client.ddl`. No call here carries a trace or a transaction id, as with the real client."""

    def __init__(self, client: AirportClient, *, if_exists: bool = False) -> None:
        self._client = client
        self._if_exists = if_exists
        self._catalog_name = client.identity.catalog

    def create_schema(self, name: str) -> None:
        """CREATE SCHEMA: ver, tx, create_schema. IF NOT EXISTS looks the same on the wire."""
        self._client.check_version()
        self._client.transaction_id()
        raw = self._client.catalog_action("create_schema", requests.create_schema(self._catalog_name, name))
        contents = decode_contents(unpack_reply(raw, "create_schema"), "create_schema")
        if not contents.is_empty:
            self._client.open_contents(name, contents)
        self._client.catalog.add_schema(name, contents)

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """DROP SCHEMA: ver, tx, drop_schema; sent also for a schema the client does not know."""
        self._client.check_version()
        self._client.transaction_id()
        self._drop("drop_schema", requests.drop_schema(self._catalog_name, name, ignore_not_found=if_exists))
        self._client.catalog.drop_schema(name)

    def drop_table(self, schema: str, name: str, *, if_exists: bool = False) -> None:
        """DROP TABLE: ver, tx, ver, drop_table; a table the client does not know never reaches the server."""
        self._client.check_version()
        self._client.transaction_id()
        try:
            self._client.catalog.table(schema, name)
        except UnknownNameError:
            if if_exists:
                return
            raise
        self._client.check_version()
        body = requests.drop_table(self._catalog_name, schema, name, ignore_not_found=if_exists)
        self._drop("drop_table", body)
        self._client.catalog.drop_table(schema, name)

    def create_table(
        self,
        schema: str,
        name: str,
        columns: pa.Schema,
        *,
        if_not_exists: bool = False,
        not_null: Sequence[int] = (),
        checks: Sequence[str] = (),
        primary_key_columns: Sequence[str] = (),
        unique_columns: Sequence[str] = (),
        multi_key_primary_keys: Sequence[str] = (),
        extra_constraints: Sequence[str] = (),
    ) -> Flight:
        """CREATE TABLE: tx, ver, create_table. Only names and types of `columns` are sent."""
        self._client.transaction_id()
        return self._create_table(
            schema,
            name,
            columns,
            on_conflict="ignore" if if_not_exists else "error",
            not_null_constraints=not_null,
            check_constraints=checks,
            primary_key_columns=primary_key_columns,
            unique_columns=unique_columns,
            multi_key_primary_keys=multi_key_primary_keys,
            extra_constraints=extra_constraints,
        )

    def create_table_as(self, schema: str, name: str, rows: pa.Table) -> Changed:
        """CREATE TABLE AS: tx, ver, create_table, DoExchange insert on the table just created."""
        transaction_id = self._client.transaction_id()
        table = self._create_table(schema, name, rows.schema)
        return self._client.insert_into(table, rows, transaction_id)

    def _create_table(self, schema: str, name: str, columns: pa.Schema, **options: Sequence[object] | str) -> Flight:
        entry = self._client.catalog.schema(schema)
        self._client.check_version()
        plain = pa.schema([pa.field(field.name, field.type) for field in columns])
        body = requests.create_table(self._catalog_name, schema, name, plain, **options)
        table = self._decode_table(self._client.catalog_action("create_table", body), entry.name, name)
        known = self._client.catalog.objects(entry, "table")
        # IF NOT EXISTS of a known table: the client goes on with its old entry.
        return known.setdefault(table.name.lower(), table)

    # ALTER TABLE: tx, ver, one action whose reply is the table after the change

    def add_column(self, schema: str, table: str, field: pa.Field, *, if_not_exists: bool = False) -> Flight:
        body = self._alter(schema, table).add_column(field, if_column_not_exists=if_not_exists)
        return self._send("add_column", body, schema, table)

    def remove_column(
        self, schema: str, table: str, column: str, *, if_exists: bool = False, cascade: bool = False
    ) -> Flight:
        body = self._alter(schema, table).remove_column(column, if_column_exists=if_exists, cascade=cascade)
        return self._send("remove_column", body, schema, table)

    def rename_column(self, schema: str, table: str, old_name: str, new_name: str) -> Flight:
        return self._send("rename_column", self._alter(schema, table).rename_column(old_name, new_name), schema, table)

    def rename_table(self, schema: str, table: str, new_name: str) -> Flight:
        body = self._alter(schema, table).rename_table(new_name)
        return self._send("rename_table", body, schema, table, becomes=new_name)

    def change_column_type(self, schema: str, table: str, field: pa.Field, *, using: str | None = None) -> Flight:
        expression = using or f"CAST({field.name} AS {duckdb_type(field.type)})"
        body = self._alter(schema, table).change_column_type(field, expression)
        return self._send("change_column_type", body, schema, table)

    def set_default(self, schema: str, table: str, column: str, expression: str) -> Flight:
        return self._send("set_default", self._alter(schema, table).set_default(column, expression), schema, table)

    def set_not_null(self, schema: str, table: str, column: str) -> Flight:
        return self._send("set_not_null", self._alter(schema, table).set_not_null(column), schema, table)

    def drop_not_null(self, schema: str, table: str, column: str) -> Flight:
        return self._send("drop_not_null", self._alter(schema, table).drop_not_null(column), schema, table)

    def add_field(
        self, schema: str, table: str, path: Sequence[str], kind: pa.DataType, *, if_not_exists: bool = False
    ) -> Flight:
        """ADD COLUMN a.b: `path` is the parents only; the client loses the new name."""
        body = self._alter(schema, table).add_field(path, kind, if_field_not_exists=if_not_exists)
        return self._send("add_field", body, schema, table)

    def rename_field(self, schema: str, table: str, path: Sequence[str], new_name: str) -> Flight:
        return self._send("rename_field", self._alter(schema, table).rename_field(path, new_name), schema, table)

    def remove_field(
        self, schema: str, table: str, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False
    ) -> Flight:
        body = self._alter(schema, table).remove_field(path, if_column_exists=if_exists, cascade=cascade)
        return self._send("remove_field", body, schema, table)

    def add_constraint(self, schema: str, table: str, constraint: str) -> Flight:
        """Never captured: DuckDB 1.5 refuses ADD CONSTRAINT before any call."""
        return self._send("add_constraint", self._alter(schema, table).add_constraint(constraint), schema, table)

    def _alter(self, schema: str, table: str) -> requests.Alter:
        return requests.Alter(self._catalog_name, schema, table, ignore_not_found=self._if_exists)

    def _send(self, action: str, body: bytes, schema: str, table: str, *, becomes: str | None = None) -> Flight:
        self._client.transaction_id()
        known = self._client.catalog.table(schema, table)
        self._client.check_version()
        raw = self._client.catalog_action(action, body, repeat=2)
        changed = self._decode_table(raw, known.schema_name, becomes or known.name)
        self._client.catalog.put_table(schema, changed, replaces=table)
        return changed

    def _drop(self, action: str, body: bytes) -> None:
        headers = self._client.identity.headers(action=action)
        results = self._client.connection.action(action, body, headers)
        if len(results) > 1:
            raise ProtocolViolation(f"{action}: {len(results)} results, at most one is read")

    def _decode_table(self, raw: bytes, schema: str, name: str) -> Flight:
        table = decode_flight(decode_info(raw, name), self._catalog_name, schema)
        if table.kind != "table" or table.name.lower() != name.lower():
            raise ProtocolViolation(f"a table {name} was due, not {table.kind} {table.name}")
        return table

    def if_exists(self) -> Ddl:
        """ALTER TABLE IF EXISTS: the same statements with `ignore_not_found` set."""
        return Ddl(self._client, if_exists=True)
