"""ALTER TABLE as edits of a table's definition: what changes, and what must be true of the rows for that.

Pure: the definition is edited in place, and a plan says what is left to do. The
rules are DuckDB's where it has one (a column that a key or check needs cannot be
dropped), and Delta's elsewhere (columns are renamed by their mapping).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from gateway.catalog.names import fold
from gateway.errors import PreconditionError, RequestError, UnsupportedError
from gateway.lake.ddl.definitions import (
    Definition,
    Json,
    check_column_name,
    new_column,
    set_default,
)
from gateway.lake.duck.expressions import RowExpression, check_expression
from gateway.lake.sql.checks import CheckText, columns_of, parse_constraint, renamed, translate_check
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.schemas import DEFAULT_TEXT
from gateway.lake.values.types import ANNOTATION_KEY, StoredForm, form_of
from gateway.wire.ddl_messages import (
    AddColumn,
    AddConstraint,
    AddField,
    Alteration,
    ChangeColumnType,
    DropNotNull,
    RemoveColumn,
    RemoveField,
    RenameColumn,
    RenameField,
    SetDefault,
    SetNotNull,
)

_GENERATION = "delta.generationExpression"
_STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"


@dataclass(frozen=True, slots=True)
class NoNulls:
    column: str


@dataclass(frozen=True, slots=True)
class NoDuplicates:
    columns: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class EveryRow:
    """A condition in Spark SQL that no row may break; `original` is how it was written."""

    condition: str
    original: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The values of a column anew: `expression` over the old rows' `inputs`, stored in this `form`."""

    expression: RowExpression
    inputs: tuple[StoredForm, ...]
    form: StoredForm

    @property
    def column(self) -> str:
        return self.form.name


@dataclass(frozen=True, slots=True)
class AlterationPlan:
    """What an alteration asks for beyond the new definition."""

    is_needed: bool = True
    proofs: tuple[NoNulls | NoDuplicates | EveryRow, ...] = ()
    rewrite: Rewrite | None = None
    drops_column: bool = False


_NOTHING = AlterationPlan(is_needed=False)


def apply(definition: Definition, change: Alteration) -> AlterationPlan:
    """Edit the definition; a GatewayError says why it cannot be."""
    return _apply(change, definition)


@singledispatch
def _apply(change: object, _definition: Definition) -> AlterationPlan:
    raise AssertionError(change)


@_apply.register
def _add_column(change: AddColumn, definition: Definition) -> AlterationPlan:
    name = change.column.name
    if definition.find(name) is not None:
        if change.if_not_exists:
            return _NOTHING
        raise PreconditionError(f"table '{definition.table}' already has a column '{name}'")
    check_column_name(name, definition.rowid_column)
    definition.fields.append(new_column(change.column))
    return AlterationPlan()


@_apply.register
def _remove_column(change: RemoveColumn, definition: Definition) -> AlterationPlan:
    column = definition.find(change.column)
    if column is None and change.if_exists:
        return _NOTHING
    column = definition.column(change.column)
    name = column["name"]
    if len(definition.columns()) == 1:
        raise PreconditionError(
            f"column '{name}' is the only one of table '{definition.table}': drop the table instead"
        )
    if name in definition.partition_columns:
        raise PreconditionError(f"column '{name}' cannot be dropped: table '{definition.table}' is partitioned by it")
    _require_mapping(definition)
    _refuse_if_generated(definition, name)
    _release_keys(definition, name, cascade=change.cascade)
    for check in _checks_using(definition, name):
        if not change.cascade:
            raise PreconditionError(f"column '{name}' cannot be dropped: a CHECK constraint depends on it")
        definition.drop_check(check)
    definition.fields.remove(column)
    _edit_statistics(definition, lambda names: [each for each in names if fold(each) != fold(name)])
    return AlterationPlan(drops_column=True)


@_apply.register
def _rename_column(change: RenameColumn, definition: Definition) -> AlterationPlan:
    column = definition.column(change.old_name)
    old, new = column["name"], change.new_name
    if old == new:
        return _NOTHING
    check_column_name(new, definition.rowid_column)
    other = definition.find(new)
    if other is not None and other is not column:
        raise PreconditionError(f"table '{definition.table}' already has a column '{other['name']}'")
    _require_mapping(definition)
    _refuse_if_generated(definition, old)
    originals = {check: definition.original_check(check) for check in _checks_using(definition, old)}
    if any(original is None for original in originals.values()):
        raise PreconditionError(f"column '{old}' cannot be renamed: a CHECK constraint that others made depends on it")
    column["name"] = new
    for check, original in originals.items():
        assert original is not None
        definition.put_check(check, translate_check(renamed(original, old, new), definition.named_types()))
    definition.set_keys(
        [new if name == old else name for name in definition.primary_key],
        [[new if name == old else name for name in key] for key in definition.unique_keys],
    )
    definition.partition_columns[:] = [new if name == old else name for name in definition.partition_columns]
    _edit_statistics(definition, lambda names: [new if fold(each) == fold(old) else each for each in names])
    return AlterationPlan()


@_apply.register
def _change_type(change: ChangeColumnType, definition: Definition) -> AlterationPlan:
    column = definition.column(change.column.name)
    name = column["name"]
    wanted = new_column(change.column.with_name(name).with_metadata(_only_extension(change.column.metadata)))
    rewrite = _rewrite(change, definition, wanted)
    if _is_same(wanted, column) and rewrite.expression.copied == name:
        return _NOTHING
    if name in definition.partition_columns:
        raise PreconditionError(f"the type of column '{name}' cannot change: the table is partitioned by it")
    if name in definition.primary_key or any(name in key for key in definition.unique_keys):
        raise PreconditionError(f"the type of column '{name}' cannot change: a key depends on it")
    if _checks_using(definition, name):
        raise PreconditionError(f"the type of column '{name}' cannot change: a CHECK constraint depends on it")
    _refuse_if_generated(definition, name)
    column["type"] = wanted["type"]
    column["metadata"].pop(ANNOTATION_KEY, None)
    column["metadata"].update(wanted["metadata"])
    _keep_default(column)
    return AlterationPlan(rewrite=rewrite)


def _rewrite(change: ChangeColumnType, definition: Definition, wanted: Json) -> Rewrite:
    forms, new = [_form(each) for each in definition.columns()], _form(wanted)
    try:
        expression = check_expression(change.expression, [form.declared for form in forms], new.declared)
    except RequestError as error:
        raise RequestError(f"column '{new.name}': {error.message}") from error
    # A constant needs rows all the same, and the column itself has them.
    names = expression.columns or (new.name,)
    return Rewrite(expression, tuple(form for form in forms if form.name in names), new)


def _form(column: Json) -> StoredForm:
    return form_of(column["name"], column["type"], column["metadata"])


def _is_same(one: Json, other: Json) -> bool:
    return (_bare(one["type"]), _annotation(one)) == (_bare(other["type"]), _annotation(other))


@_apply.register
def _set_default(change: SetDefault, definition: Definition) -> AlterationPlan:
    column = definition.column(change.column)
    before = dict(column["metadata"])
    set_default(column, change.expression)
    return AlterationPlan() if column["metadata"] != before else _NOTHING


@_apply.register
def _set_not_null(change: SetNotNull, definition: Definition) -> AlterationPlan:
    column = definition.column(change.column)
    if not column["nullable"]:
        return _NOTHING
    column["nullable"] = False
    return AlterationPlan(proofs=(NoNulls(column["name"]),))


@_apply.register
def _drop_not_null(change: DropNotNull, definition: Definition) -> AlterationPlan:
    column = definition.column(change.column)
    if column["nullable"]:
        return _NOTHING
    if column["name"] in definition.primary_key:
        raise PreconditionError(f"column '{column['name']}' must stay NOT NULL: it is part of the primary key")
    column["nullable"] = True
    return AlterationPlan()


@_apply.register
def _add_field(change: AddField, _definition: Definition) -> AlterationPlan:
    raise UnsupportedError(
        f"a field cannot be added to '{'.'.join(change.path)[:60]}': DuckDB's client does not send the new field's name"
    )


@_apply.register
def _rename_field(change: RenameField, definition: Definition) -> AlterationPlan:
    if len(change.path) == 1:
        return _rename_column(RenameColumn(change.path[0], change.new_name), definition)
    siblings, field = _field_at(definition, change.path)
    if field is None:
        raise _no_field(change.path)
    if field["name"] == change.new_name:
        return _NOTHING
    check_column_name(change.new_name, definition.rowid_column)
    if any(fold(each["name"]) == fold(change.new_name) and each is not field for each in siblings):
        raise PreconditionError(f"'{'.'.join(change.path[:-1])}' already has a field '{change.new_name}'")
    _require_free_struct(definition, change.path[0])
    field["name"] = change.new_name
    return AlterationPlan()


@_apply.register
def _remove_field(change: RemoveField, definition: Definition) -> AlterationPlan:
    if len(change.path) == 1:
        return _remove_column(RemoveColumn(change.path[0], change.if_exists, change.cascade), definition)
    siblings, field = _field_at(definition, change.path)
    if field is None:
        if change.if_exists:
            return _NOTHING
        raise _no_field(change.path)
    if len(siblings) == 1:
        raise PreconditionError(f"'{'.'.join(change.path)}' is the only field: drop the column instead")
    _require_free_struct(definition, change.path[0])
    siblings.remove(field)
    return AlterationPlan(drops_column=True)


@_apply.register
def _add_constraint(change: AddConstraint, definition: Definition) -> AlterationPlan:
    match parse_constraint(change.constraint):
        case CheckText(expression):
            check = definition.add_check(expression)
            return AlterationPlan(proofs=(EveryRow(check.stored, check.original),))
        case key:
            columns = definition.key_columns(key.columns)
    if not key.is_primary:
        if columns in definition.unique_keys:
            return _NOTHING
        definition.set_keys(definition.primary_key, [*definition.unique_keys, columns])
        return AlterationPlan(proofs=(NoDuplicates(tuple(columns), "unique"),))
    if definition.primary_key:
        raise PreconditionError(f"table '{definition.table}' has a primary key already")
    definition.set_keys(columns, definition.unique_keys)
    nulls = [NoNulls(name) for name in columns if definition.column(name)["nullable"]]
    for name in columns:
        definition.column(name)["nullable"] = False
    return AlterationPlan(proofs=(*nulls, NoDuplicates(tuple(columns), "primary key")))


# What depends on a column


def _require_mapping(definition: Definition) -> None:
    if not definition.is_mapped:
        raise PreconditionError(
            f"table '{definition.table}' was made without column mapping: its columns cannot be renamed or dropped"
            " until delta.columnMapping.mode is set to name"
        )


def _release_keys(definition: Definition, name: str, *, cascade: bool) -> None:
    primary, unique = definition.primary_key, definition.unique_keys
    if not cascade and (name in primary or any(name in key for key in unique)):
        kind = "the primary key" if name in primary else "a UNIQUE constraint"
        raise PreconditionError(f"column '{name}' cannot be dropped: {kind} depends on it")
    definition.set_keys([] if name in primary else primary, [key for key in unique if name not in key])


def _checks_using(definition: Definition, name: str) -> list[str]:
    found = []
    for check, stored in definition.checks().items():
        used = columns_of(stored, "spark")
        if fold(name) in used or "*" in used:
            found.append(check)
    return found


def _refuse_if_generated(definition: Definition, name: str) -> None:
    for each in definition.fields:
        expression = each["metadata"].get(_GENERATION)
        if expression is None:
            continue
        used = columns_of(expression, "spark")
        if each["name"] == name or fold(name) in used or "*" in used:
            raise PreconditionError(f"column '{name}' cannot be changed: a generated column depends on it")


def _edit_statistics(definition: Definition, edit: Callable[[list[str]], list[str]]) -> None:
    named = definition.properties.get(_STATISTICS_COLUMNS)
    if named is not None:
        names = edit([name.strip().strip("`") for name in named.split(",") if name.strip()])
        shown = [name if name.isidentifier() or "." in name else quoted(name) for name in names]
        definition.properties[_STATISTICS_COLUMNS] = ",".join(shown)


def _require_free_struct(definition: Definition, column: str) -> None:
    _require_mapping(definition)
    name = definition.column(column)["name"]
    _refuse_if_generated(definition, name)
    if _checks_using(definition, name):
        raise PreconditionError(f"fields of column '{name}' cannot be changed: a CHECK constraint depends on it")


def _field_at(definition: Definition, path: tuple[str, ...]) -> tuple[list[Json], Json | None]:
    """The fields beside the one that a path names, and the field itself, None where it is not there."""
    kind: Any = definition.column(path[0])["type"]
    for position, name in enumerate(path[1:], start=1):
        is_last = position == len(path) - 1
        shape = kind.get("type") if isinstance(kind, dict) else None
        parts = {"array": {"element": "elementType"}, "map": {"key": "keyType", "value": "valueType"}}.get(
            str(shape), {}
        )
        if fold(name) in parts and not is_last:
            kind = kind[parts[fold(name)]]
            continue
        if shape != "struct":
            raise _no_field(path)
        found = next((each for each in kind["fields"] if fold(each["name"]) == fold(name)), None)
        if is_last or found is None:
            return kind["fields"], found if is_last else None
        kind = found["type"]
    raise _no_field(path)


def _no_field(path: tuple[str, ...]) -> RequestError:
    return RequestError(f"there is no field '{'.'.join(path)[:80]}'")


# Types


def _bare(kind: Any) -> Any:
    """A type without what Delta notes at the fields inside it, their meaning excepted."""
    if not isinstance(kind, dict):
        return kind
    bare = {key: _bare(value) for key, value in kind.items() if key != "fields"}
    if "fields" in kind:
        bare["fields"] = [(each["name"], _bare(each["type"]), _annotation(each)) for each in kind["fields"]]
    return bare


def _annotation(column: Json) -> str | None:
    text: str | None = column["metadata"].get(ANNOTATION_KEY)
    return text


def _only_extension(metadata: dict[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    return {key: value for key, value in (metadata or {}).items() if key.startswith(b"ARROW:")} or None


def _keep_default(column: Json) -> None:
    kept = column["metadata"].get(DEFAULT_TEXT)
    if kept is not None:
        set_default(column, json.loads(kept)["text"])
    elif "CURRENT_DEFAULT" in column["metadata"]:
        raise PreconditionError(f"the type of column '{column['name']}' cannot change: its default was made by others")
