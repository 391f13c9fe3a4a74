"""Delta schemas to the Arrow schemas that clients are told.

The client crashes or shows wrong values when a stream differs from what it was
told, so one mapping serves both: `shape_of` makes the schema of listings, and
the readers cast to it. The row id is hidden among the columns and shown as the
last field, marked as the client expects it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gateway.catalog.names import fold
from gateway.errors import UnsupportedError
from gateway.lake.expressions import to_duckdb
from gateway.wire.listing import CHECKS_KEY, COMMENT_KEY, DEFAULT_KEY, ROWID_KEY, STATISTICS_KEY, metadata_of
from gateway.wire.packing import pack

ROWID = "rowid"
_CONSTRAINT_PREFIX = "delta.constraints."
_VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "variant": _VARIANT,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column as Delta has it and as clients see it."""

    name: str
    type: pa.DataType
    nullable: bool
    comment: str | None
    default: str | None
    physical_name: str
    field_id: int | None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A Delta schema, read: its columns, whether one of them is the row id, and its constraints."""

    columns: tuple[Column, ...]
    rowid: Column | None
    checks: tuple[str, ...]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


def read_schema(schema_json: str, configuration: dict[str, str], rowid_column: str) -> TableSchema:
    """Parse the schema string of a Delta table's metadata."""
    fields = json.loads(schema_json)["fields"]
    columns = tuple(_column(field) for field in fields)
    rowid = next((c for c in columns if fold(c.name) == fold(rowid_column) and c.type == pa.int64()), None)
    checks = (text for key, text in sorted(configuration.items()) if key.startswith(_CONSTRAINT_PREFIX))
    return TableSchema(tuple(c for c in columns if c is not rowid), rowid, tuple(checks))


def shape_of(schema: TableSchema, *, statistics: bool) -> pa.Schema:
    """What clients are told: the columns in order, then the row id, with everything the client understands."""
    checks = [text for text in (to_duckdb(check, schema.columns) for check in schema.checks) if text is not None]
    return pa.schema(
        [*(_told_field(column) for column in schema.columns), rowid_field(schema)],
        metadata=metadata_of(
            {
                CHECKS_KEY: pack({"constraints": checks}) if checks else None,
                STATISTICS_KEY: "1" if statistics else None,
            }
        ),
    )


def rowid_field(schema: TableSchema) -> pa.Field:
    # A table without row ids is told to have them all the same: UPDATE on a table
    # listed without a rowid kills the user's DuckDB, a refused exchange does not.
    # The client goes by the mark, so where a column has the name, the field takes another.
    name = ROWID
    while any(fold(column.name) == name for column in schema.columns):
        name = f"_{name}"
    return pa.field(name, pa.int64(), metadata={ROWID_KEY: b"1"})


def is_rowid(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(ROWID_KEY))


def _told_field(column: Column) -> pa.Field:
    default = None if column.default is None else to_duckdb(column.default, ())
    return pa.field(
        column.name,
        told_type(column.type),
        nullable=column.nullable,
        metadata=metadata_of({COMMENT_KEY: column.comment, DEFAULT_KEY: default}),
    )


def told_type(stored: pa.DataType) -> pa.DataType:
    """Texts are told as views, as the direct reader makes them: it saves a copy of every text (about a tenth)."""
    return pa.string_view() if stored == pa.string() else stored


def _column(field: dict[str, Any]) -> Column:
    metadata = field.get("metadata") or {}
    return Column(
        name=field["name"],
        type=_arrow_type(field["name"], field["type"]),
        nullable=bool(field["nullable"]),
        comment=metadata.get("comment"),
        default=metadata.get("CURRENT_DEFAULT"),
        physical_name=metadata.get("delta.columnMapping.physicalName", field["name"]),
        field_id=metadata.get("delta.columnMapping.id"),
    )


def _arrow_type(column: str, delta: Any) -> pa.DataType:
    if isinstance(delta, dict):
        return _nested_type(column, delta)
    if delta in _PRIMITIVES:
        return _PRIMITIVES[delta]
    if isinstance(delta, str) and delta.startswith("decimal(") and delta.endswith(")"):
        precision, scale = (int(number) for number in delta[len("decimal(") : -1].split(","))
        return pa.decimal128(precision, scale)
    raise UnsupportedError(f"column '{column}' has the type {delta}, which cannot be shown to clients")


def _nested_type(column: str, delta: dict[str, Any]) -> pa.DataType:
    match delta.get("type"):
        case "array":
            return pa.list_(pa.field("element", _arrow_type(column, delta["elementType"]), delta["containsNull"]))
        case "map":
            value = pa.field("value", _arrow_type(column, delta["valueType"]), delta["valueContainsNull"])
            return pa.map_(pa.field("key", _arrow_type(column, delta["keyType"]), nullable=False), value)
        case "struct" if delta["fields"]:
            return pa.struct(
                [pa.field(f["name"], _arrow_type(column, f["type"]), f["nullable"]) for f in delta["fields"]]
            )
    raise UnsupportedError(f"column '{column}' has a nested type that cannot be shown to clients")
