"""Requests that change schemas and tables: what the bodies of the DDL actions say.

Bodies are maps whose spellings differ from action to action (`schema`,
`schema_name`); here they become one model each. Whether a name, a type or an
expression can be used is for the catalog and the lake to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from gateway.errors import RequestError
from gateway.wire.packing import Fields


class OnConflict(Enum):
    """What CREATE TABLE does where the table exists."""

    ERROR = "error"
    IGNORE = "ignore"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class CreateSchema:
    catalog: str
    schema: str


@dataclass(frozen=True, slots=True)
class DropSchema:
    catalog: str
    schema: str
    ignore_not_found: bool


@dataclass(frozen=True, slots=True)
class DropTable:
    catalog: str
    schema: str
    table: str
    ignore_not_found: bool


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table to be made. `unique` holds one tuple of column names per constraint that is spelled as columns;
    `constraints` are SQL texts such as `UNIQUE(b, c)`."""

    columns: pa.Schema
    not_null: frozenset[int] = frozenset()
    checks: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    constraints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTable:
    catalog: str
    schema: str
    table: str
    on_conflict: OnConflict
    definition: TableDefinition


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: pa.Field
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class RemoveColumn:
    column: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ChangeColumnType:
    """`expression` makes the new values from the old row: `CAST(age AS BIGINT)` where the user said nothing."""

    column: pa.Field
    expression: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    column: str
    expression: str


@dataclass(frozen=True, slots=True)
class SetNotNull:
    column: str


@dataclass(frozen=True, slots=True)
class DropNotNull:
    column: str


@dataclass(frozen=True, slots=True)
class AddField:
    """The client loses the new field's name on the way, so this can only be refused."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RenameField:
    path: tuple[str, ...]
    new_name: str


@dataclass(frozen=True, slots=True)
class RemoveField:
    path: tuple[str, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AddConstraint:
    """SQL text, e.g. `PRIMARY KEY(id)`."""

    constraint: str


@dataclass(frozen=True, slots=True)
class RenameTable:
    new_name: str


Alteration = (
    AddColumn
    | RemoveColumn
    | RenameColumn
    | ChangeColumnType
    | SetDefault
    | SetNotNull
    | DropNotNull
    | AddField
    | RenameField
    | RemoveField
    | AddConstraint
)


@dataclass(frozen=True, slots=True)
class AlterTable:
    # `ignore_not_found` is not read: the client itself skips a table that it does not know, and for one that is gone
    # by now it needs a table in reply.
    catalog: str
    schema: str
    table: str
    change: Alteration | RenameTable


def decode_create_schema(body: bytes) -> CreateSchema:
    fields = Fields.unpack("create_schema", body)
    return CreateSchema(fields.text("catalog_name", ""), fields.text("schema"))


def decode_drop_schema(body: bytes) -> DropSchema:
    fields = Fields.unpack("drop_schema", body)
    return DropSchema(fields.text("catalog_name", ""), fields.text("name"), fields.flag("ignore_not_found"))


def decode_drop_table(body: bytes) -> DropTable:
    fields = Fields.unpack("drop_table", body)
    return DropTable(
        fields.text("catalog_name", ""),
        fields.text("schema_name"),
        fields.text("name"),
        fields.flag("ignore_not_found"),
    )


def decode_create_table(body: bytes) -> CreateTable:
    fields = Fields.unpack("create_table", body)
    columns = fields.schema("arrow_schema")
    wanted = fields.text("on_conflict", OnConflict.ERROR.value)
    if wanted not in {each.value for each in OnConflict}:
        raise RequestError("create_table: field 'on_conflict' must be error, ignore or replace")
    return CreateTable(
        catalog=fields.text("catalog_name", ""),
        schema=fields.text("schema_name"),
        table=fields.text("table_name"),
        on_conflict=OnConflict(wanted),
        definition=TableDefinition(
            columns=columns,
            not_null=_positions(fields, "not_null_constraints", columns),
            checks=fields.texts("check_constraints"),
            primary_key=_primary_key(fields, columns),
            unique=tuple((name,) for name in [*_unique_names(fields, columns), *fields.texts("unique_columns")]),
            constraints=fields.texts("extra_constraints"),
        ),
    )


def _positions(fields: Fields, name: str, columns: pa.Schema) -> frozenset[int]:
    found = fields.whole_numbers(name, ())
    if any(position >= len(columns) for position in found):
        raise RequestError(f"create_table: field '{name}' goes beyond the table's {len(columns)} columns")
    return frozenset(found)


def _unique_names(fields: Fields, columns: pa.Schema) -> list[str]:
    return [columns.field(position).name for position in sorted(_positions(fields, "unique_constraints", columns))]


def _primary_key(fields: Fields, columns: pa.Schema) -> tuple[str, ...]:
    """The client loses the order of a key of several columns: the table's order counts."""
    single, several = fields.texts("primary_key_columns"), fields.texts("multi_key_primary_keys")
    if single and several:
        raise RequestError("create_table: a table has one primary key, not two")
    if len(single) > 1:
        raise RequestError("create_table: a table has one primary key, not several")
    names = [field.name for field in columns]
    return single or tuple(sorted(several, key=lambda name: names.index(name) if name in names else len(names)))


def decode_alter(action: str, body: bytes) -> AlterTable:
    """The body of one of `ALTERATIONS`."""
    fields = Fields.unpack(action, body)
    return AlterTable(
        catalog=fields.text("catalog", ""),
        schema=fields.text("schema"),
        table=fields.text("name"),
        change=ALTERATIONS[action](fields),
    )


def _one_column(fields: Fields) -> pa.Field:
    schema = fields.schema("column_schema")
    if len(schema) != 1:
        raise RequestError("the field 'column_schema' must hold one column")
    return schema.field(0)


def _path(fields: Fields) -> tuple[str, ...]:
    path = fields.texts("column_path")
    if not path:
        raise RequestError("the field 'column_path' must name a column")
    return path


ALTERATIONS: Mapping[str, Callable[[Fields], Alteration | RenameTable]] = {
    "add_column": lambda fields: AddColumn(_one_column(fields), fields.flag("if_column_not_exists")),
    "remove_column": lambda fields: RemoveColumn(
        fields.text("removed_column"), fields.flag("if_column_exists"), fields.flag("cascade")
    ),
    "rename_column": lambda fields: RenameColumn(fields.text("old_name"), fields.text("new_name")),
    "rename_table": lambda fields: RenameTable(fields.text("new_table_name")),
    "change_column_type": lambda fields: ChangeColumnType(_one_column(fields), fields.text("expression")),
    "set_default": lambda fields: SetDefault(fields.text("column_name"), fields.text("expression")),
    "set_not_null": lambda fields: SetNotNull(fields.text("column_name")),
    "drop_not_null": lambda fields: DropNotNull(fields.text("column_name")),
    "add_field": lambda fields: AddField(_path(fields)),
    "rename_field": lambda fields: RenameField(_path(fields), fields.text("new_name")),
    "remove_field": lambda fields: RemoveField(_path(fields), fields.flag("if_column_exists"), fields.flag("cascade")),
    "add_constraint": lambda fields: AddConstraint(fields.text("constraint")),
}
