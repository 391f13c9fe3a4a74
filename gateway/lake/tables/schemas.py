"""Delta schemas to the Arrow schemas that are declared to clients.

The client crashes or shows wrong values when a stream differs from what was
declared, so one mapping serves both: `shape_of` makes the schema of listings, and
the readers cast to it. The row id is hidden among the columns and shown as the
last field, marked as the client expects it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from gateway.catalog.names import fold
from gateway.lake.sql.checks import NamedType, stored_check
from gateway.lake.sql.dialects import to_duckdb
from gateway.lake.values.types import StoredForm, form_of, has_statistics, reads_alike
from gateway.wire.listing import CHECKS_KEY, COMMENT_KEY, DEFAULT_KEY, ROWID_KEY, STATISTICS_KEY, metadata_of
from gateway.wire.packing import pack

ROWID = "rowid"
CONSTRAINT_PREFIX = "delta.constraints."
CHECK_TEXT_PREFIX = "deltaport.check."  # what a client wrote, under the name of the constraint
DEFAULT_TEXT = "deltaport.default"  # in a column's metadata: what a client wrote, and what Delta keeps of it


class Computed(Enum):
    """Columns that Delta fills in by itself where an INSERT leaves them out."""

    GENERATED = "a generated column"
    IDENTITY = "an identity column"  # BY DEFAULT: takes values, too
    IDENTITY_ALWAYS = "an identity column that takes no values"

    @property
    def is_identity(self) -> bool:
        return self is not Computed.GENERATED


@dataclass(frozen=True, slots=True)
class Column:
    """One column as Delta has it and as clients see it; `type` is the stored one, `form` says what it stands for."""

    name: str
    type: pa.DataType
    nullable: bool
    comment: str | None
    default: str | None
    physical_name: str
    field_id: int | None
    form: StoredForm
    client_default: str | None = None  # the default as a client wrote it
    computed: Computed | None = None

    def means_the_same_as(self, other: Column | None) -> bool:
        """Whether values of one may stand in the other: the same column, of the same stored type and client type."""
        return other is not None and (self.physical_name, self.type, self.form) == (
            other.physical_name,
            other.type,
            other.form,
        )


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A Delta schema, read: its columns, whether one of them is the row id, and its constraints."""

    columns: tuple[Column, ...]
    rowid: Column | None
    checks: tuple[tuple[str, str | None], ...]  # as Delta enforces it, and as a client wrote it

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


def read_schema(schema_json: str, configuration: dict[str, str], rowid_column: str) -> TableSchema:
    """Parse the schema string of a Delta table's metadata."""
    fields = json.loads(schema_json)["fields"]
    columns = tuple(_column(field) for field in fields)
    rowid = next((c for c in columns if fold(c.name) == fold(rowid_column) and c.type == pa.int64()), None)
    checks = (
        (text, configuration.get(CHECK_TEXT_PREFIX + key.removeprefix(CONSTRAINT_PREFIX)))
        for key, text in sorted(configuration.items())
        if key.startswith(CONSTRAINT_PREFIX)
    )
    return TableSchema(tuple(c for c in columns if c is not rowid), rowid, tuple(checks))


def shape_of(schema: TableSchema, *, statistics: bool) -> pa.Schema:
    """What is declared to clients: the columns in order, then the row id, with everything the client understands."""
    checks = [text for text in (_declared_check(schema, *check) for check in schema.checks) if text is not None]
    # The client asks for every column that it needs, and fails where a type has no statistics.
    statistics = statistics and all(has_statistics(column.form) for column in schema.columns)
    return pa.schema(
        [*(_declared_field(column) for column in schema.columns), rowid_field(schema)],
        metadata=metadata_of(
            {
                CHECKS_KEY: pack({"constraints": checks}) if checks else None,
                STATISTICS_KEY: "1" if statistics else None,
            }
        ),
    )


def in_expressions(columns: Sequence[Column]) -> list[Column]:
    """The columns for translating an expression: one that stands for another type has no type to compare by."""
    return [column if reads_alike(column.form) else replace(column, type=pa.null()) for column in columns]


def _declared_check(schema: TableSchema, stored: str, original: str | None) -> str | None:
    """The client's own words, unless somebody else has changed the constraint since."""
    if original is not None:
        declared = [NamedType(column.name, column.form.declared.type) for column in schema.columns]
        if stored_check(original, declared) == stored:
            return original
    return to_duckdb(stored, in_expressions(schema.columns))


def rowid_field(schema: TableSchema) -> pa.Field:
    # A table without row ids is declared with them all the same: UPDATE on a table
    # listed without a rowid kills the user's DuckDB, a refused exchange does not.
    # The client goes by the mark, so where a column has the name, the field takes another.
    name = ROWID
    while any(fold(column.name) == name for column in schema.columns):
        name = f"_{name}"
    return pa.field(name, pa.int64(), metadata={ROWID_KEY: b"1"})


def is_rowid(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(ROWID_KEY))


def declared_type(column: Column) -> pa.DataType:
    """Texts are declared as views, as the direct reader makes them: it saves a copy of every text (about a tenth)."""
    kind = column.form.declared.type
    return pa.string_view() if kind == pa.string() else kind


def _declared_field(column: Column) -> pa.Field:
    default = column.client_default
    if default is None and column.default is not None and reads_alike(column.form):
        default = to_duckdb(column.default, ())
    extras = metadata_of({COMMENT_KEY: column.comment, DEFAULT_KEY: default})
    metadata = {**(column.form.declared.metadata or {}), **(extras or {})}
    return pa.field(column.name, declared_type(column), nullable=column.nullable, metadata=metadata or None)


def _column(field: dict[str, Any]) -> Column:
    metadata = field.get("metadata") or {}
    form = form_of(field["name"], field["type"], metadata)
    return Column(
        name=field["name"],
        type=form.arrow,
        nullable=bool(field["nullable"]),
        comment=metadata.get("comment"),
        default=metadata.get("CURRENT_DEFAULT"),
        physical_name=metadata.get("delta.columnMapping.physicalName", field["name"]),
        field_id=metadata.get("delta.columnMapping.id"),
        form=form,
        client_default=_client_default(metadata),
        computed=_computed(metadata),
    )


def _computed(metadata: dict[str, Any]) -> Computed | None:
    if "delta.generationExpression" in metadata:
        return Computed.GENERATED
    if "delta.identity.start" in metadata:
        return Computed.IDENTITY if metadata.get("delta.identity.allowExplicitInsert") else Computed.IDENTITY_ALWAYS
    return None


def _client_default(metadata: dict[str, Any]) -> str | None:
    """None as well when somebody else has changed the default since."""
    try:
        kept = json.loads(metadata.get(DEFAULT_TEXT, "null"))
        return str(kept["text"]) if kept and kept["stored"] == metadata.get("CURRENT_DEFAULT") else None
    except (ValueError, TypeError, KeyError):
        return None
