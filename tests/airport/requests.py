"""The body of every action the client sends, key for key in its own order.

Functions are named after the action. Nothing is checked: a test may build a
request the real client would never make.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import flight

from tests.airport.packing import Pairs, pack


def list_schemas(catalog: str) -> bytes:
    return pack({"catalog_name": catalog})


catalog_version = list_schemas
create_transaction = list_schemas


def flight_info(descriptor: flight.FlightDescriptor, at_unit: str, at_value: str) -> bytes:
    return pack({"descriptor": descriptor.serialize(), "at_unit": at_unit, "at_value": at_value})


def endpoints(
    descriptor: flight.FlightDescriptor,
    column_ids: Sequence[int],
    json_filters: str,
    *,
    at_unit: str = "",
    at_value: str = "",
    table_function_parameters: bytes = b"",
    table_function_input_schema: bytes = b"",
) -> bytes:
    return pack(
        {
            "descriptor": descriptor.serialize(),
            "parameters": {
                "json_filters": json_filters,
                "column_ids": list(column_ids),
                "table_function_parameters": table_function_parameters,
                "table_function_input_schema": table_function_input_schema,
                "at_unit": at_unit,
                "at_value": at_value,
            },
        }
    )


def column_statistics(descriptor: flight.FlightDescriptor, column_name: str, duckdb_type: str) -> bytes:
    return pack({"flight_descriptor": descriptor.serialize(), "column_name": column_name, "type": duckdb_type})


def table_function_flight_info(
    descriptor: flight.FlightDescriptor,
    parameters: bytes,
    *,
    table_input_schema: bytes = b"",
    at_unit: str = "",
    at_value: str = "",
) -> bytes:
    return pack(
        {
            "descriptor": descriptor.serialize(),
            "parameters": parameters,
            "table_input_schema": table_input_schema,
            "at_unit": at_unit,
            "at_value": at_value,
        }
    )


def create_schema(catalog: str, schema: str) -> bytes:
    return pack({"catalog_name": catalog, "schema": schema, "comment": None, "tags": {}})


def drop_schema(catalog: str, name: str, *, ignore_not_found: bool = False) -> bytes:
    return _drop("schema", catalog, "", name, ignore_not_found)


def drop_table(catalog: str, schema: str, name: str, *, ignore_not_found: bool = False) -> bytes:
    return _drop("table", catalog, schema, name, ignore_not_found)


def _drop(kind: str, catalog: str, schema: str, name: str, ignore_not_found: bool) -> bytes:
    return pack(
        {
            "type": kind,
            "catalog_name": catalog,
            "schema_name": schema,
            "name": name,
            "ignore_not_found": ignore_not_found,
        }
    )


def create_table(
    catalog: str,
    schema: str,
    name: str,
    columns: pa.Schema,
    *,
    on_conflict: str = "error",
    not_null_constraints: Sequence[int] = (),
    unique_constraints: Sequence[int] = (),
    check_constraints: Sequence[str] = (),
    primary_key_columns: Sequence[str] = (),
    unique_columns: Sequence[str] = (),
    multi_key_primary_keys: Sequence[str] = (),
    extra_constraints: Sequence[str] = (),
) -> bytes:
    return pack(
        {
            "catalog_name": catalog,
            "schema_name": schema,
            "table_name": name,
            "arrow_schema": columns.serialize().to_pybytes(),
            "on_conflict": on_conflict,
            "not_null_constraints": list(not_null_constraints),
            "unique_constraints": list(unique_constraints),
            "check_constraints": list(check_constraints),
            "primary_key_columns": list(primary_key_columns),
            "unique_columns": list(unique_columns),
            "multi_key_primary_keys": list(multi_key_primary_keys),
            "extra_constraints": list(extra_constraints),
        }
    )


class Alter:
    """Bodies of the ALTER actions on one table."""

    def __init__(self, catalog: str, schema: str, table: str, *, ignore_not_found: bool = False) -> None:
        self._ignore_not_found = ignore_not_found
        self._base = [
            ("catalog", catalog),
            ("schema", schema),
            ("name", table),
            ("ignore_not_found", ignore_not_found),
        ]

    def _body(self, *pairs: tuple[str, object]) -> bytes:
        return pack(Pairs([*self._base, *pairs]))

    def add_column(self, field: pa.Field, *, if_column_not_exists: bool = False) -> bytes:
        return self._body(("if_column_not_exists", if_column_not_exists), ("column_schema", _one_field(field)))

    def remove_column(self, column: str, *, if_column_exists: bool = False, cascade: bool = False) -> bytes:
        return self._body(("removed_column", column), ("if_column_exists", if_column_exists), ("cascade", cascade))

    def rename_column(self, old_name: str, new_name: str) -> bytes:
        return self._body(("new_name", new_name), ("old_name", old_name))

    def rename_table(self, new_table_name: str) -> bytes:
        return self._body(("new_table_name", new_table_name))

    def change_column_type(self, field: pa.Field, expression: str) -> bytes:
        return self._body(("column_schema", _one_field(field)), ("expression", expression))

    def set_default(self, column_name: str, expression: str) -> bytes:
        return self._body(("column_name", column_name), ("expression", expression))

    def set_not_null(self, column_name: str) -> bytes:
        # The client really packs this key twice.
        return self._body(("column_name", column_name), ("ignore_not_found", self._ignore_not_found))

    def drop_not_null(self, column_name: str) -> bytes:
        return self._body(("column_name", column_name))

    def add_field(
        self, column_path: Sequence[str], field_type: pa.DataType, *, if_field_not_exists: bool = False
    ) -> bytes:
        # A bug of the client: the field is named after the first parent, the new field's own name is lost.
        return self._body(
            ("if_field_not_exists", if_field_not_exists),
            ("column_schema", _one_field(pa.field(column_path[0], field_type))),
            ("column_path", list(column_path)),
        )

    def rename_field(self, column_path: Sequence[str], new_name: str) -> bytes:
        return self._body(("column_path", list(column_path)), ("new_name", new_name))

    def remove_field(
        self, column_path: Sequence[str], *, if_column_exists: bool = False, cascade: bool = False
    ) -> bytes:
        return self._body(
            ("column_path", list(column_path)), ("if_column_exists", if_column_exists), ("cascade", cascade)
        )

    def add_constraint(self, constraint: str) -> bytes:
        """Never captured: DuckDB refuses the statement before it reaches the client."""
        return self._body(("constraint", constraint))


def _one_field(field: pa.Field) -> bytes:
    return pa.schema([pa.field(field.name, field.type)]).serialize().to_pybytes()
