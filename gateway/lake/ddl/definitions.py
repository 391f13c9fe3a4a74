"""A table's definition as Delta keeps it: schema, properties, and the gateway's own entries among them.

Pure: it is read from a table's metadata, edited, and written back by others. Own
tables have the row id as their first column, deletion vectors, and columns mapped
by name, so that a column can be renamed and dropped without touching a file.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gateway.catalog.names import MAX_NAME_BYTES, fold
from gateway.errors import RequestError
from gateway.lake.sql.checks import (
    Check,
    CheckText,
    NamedType,
    is_null,
    parse_constraint,
    translate_check,
    translate_default,
)
from gateway.lake.tables.internal_names import is_internal
from gateway.lake.tables.schemas import CHECK_TEXT_PREFIX, CONSTRAINT_PREFIX, DEFAULT_TEXT, ROWID
from gateway.lake.values.types import ANNOTATION_KEY, form_of, stored_form
from gateway.lake.writing.keys import PRIMARY_KEY, UNIQUE
from gateway.wire.ddl_messages import TableDefinition
from gateway.wire.listing import COMMENT_KEY, DEFAULT_KEY

MAPPING_MODE = "delta.columnMapping.mode"
_MAPPING_ID, _PHYSICAL_NAME = "delta.columnMapping.id", "delta.columnMapping.physicalName"
CURRENT_DEFAULT = "CURRENT_DEFAULT"
_PROPERTIES = {
    MAPPING_MODE: "name",
    "delta.enableDeletionVectors": "true",
    # A checkpoint costs half a second; the default writes one every tenth commit.
    "delta.checkpointInterval": "100",
}

Json = dict[str, Any]


@dataclass(slots=True)
class Definition:
    """What a table is, open to editing; `fields` are those of Delta's schema, the row id among them."""

    table: str
    rowid_column: str
    fields: list[Json]
    properties: dict[str, str]
    partition_columns: list[str] = field(default_factory=list)

    def columns(self) -> list[Json]:
        """The columns that clients see."""
        return [each for each in self.fields if not self.is_rowid(each)]

    def is_rowid(self, column: Json) -> bool:
        return fold(column["name"]) == fold(self.rowid_column) and column["type"] == "long"

    def find(self, name: str) -> Json | None:
        return next((each for each in self.columns() if fold(each["name"]) == fold(name)), None)

    def column(self, name: str) -> Json:
        found = self.find(name)
        if found is None:
            raise RequestError(f"table '{self.table}' has no column '{name[:60]}'")
        return found

    def named_types(self) -> list[NamedType]:
        """The columns as clients know them."""
        return [named_type(each) for each in self.columns()]

    @property
    def is_mapped(self) -> bool:
        return self.properties.get(MAPPING_MODE, "none") in ("name", "id")

    # Keys

    @property
    def primary_key(self) -> list[str]:
        return _names(self.properties.get(PRIMARY_KEY))

    @property
    def unique_keys(self) -> list[list[str]]:
        return [_names(json.dumps(key)) for key in json.loads(self.properties.get(UNIQUE, "[]"))]

    def set_keys(self, primary: Sequence[str], unique: Sequence[Sequence[str]]) -> None:
        for name, value in ((PRIMARY_KEY, list(primary)), (UNIQUE, [list(key) for key in unique])):
            self.properties.pop(name, None)
            if value:
                self.properties[name] = json.dumps(value)

    def key_columns(self, names: Sequence[str]) -> list[str]:
        """A key's columns as the table spells them."""
        found = [self.column(name) for name in names]
        if len({each["name"] for each in found}) < len(found):
            raise RequestError(f"table '{self.table}': a key names one column twice")
        for each in found:
            if isinstance(each["type"], dict):
                raise RequestError(f"column '{each['name']}' is nested and cannot be part of a key")
        return [each["name"] for each in found]

    # Checks

    def checks(self) -> dict[str, str]:
        """Every check by its name, as Delta enforces it."""
        return {
            key.removeprefix(CONSTRAINT_PREFIX): text
            for key, text in self.properties.items()
            if key.startswith(CONSTRAINT_PREFIX)
        }

    def original_check(self, name: str) -> str | None:
        """What the client wrote, where a client wrote it."""
        return self.properties.get(CHECK_TEXT_PREFIX + name)

    def add_check(self, text: str) -> Check:
        check = translate_check(text, self.named_types())
        taken = {fold(name) for name in self.checks()}
        number = next(n for n in range(1, len(taken) + 2) if f"check_{n}" not in taken)
        self.put_check(f"check_{number}", check)
        return check

    def put_check(self, name: str, check: Check) -> None:
        self.properties[CONSTRAINT_PREFIX + name] = check.stored
        self.properties[CHECK_TEXT_PREFIX + name] = check.original

    def drop_check(self, name: str) -> None:
        self.properties.pop(CONSTRAINT_PREFIX + name, None)
        self.properties.pop(CHECK_TEXT_PREFIX + name, None)

    # Features: what the schema and properties need of whoever reads and writes the table

    def needed_features(self) -> set[str]:
        needed = set()
        if any(uses_type(each["type"], "timestamp_ntz") for each in self.fields):
            needed.add("timestampNtz")
        if any(CURRENT_DEFAULT in each["metadata"] for each in self.fields):
            needed.add("allowColumnDefaults")
        if self.checks():
            needed.add("checkConstraints")
        if any(not each["nullable"] for each in self.fields):
            needed.add("invariants")
        return needed


def named_type(column: Json) -> NamedType:
    return NamedType(column["name"], form_of(column["name"], column["type"], column["metadata"]).declared.type)


def _names(text: str | None) -> list[str]:
    return [str(name) for name in json.loads(text or "[]")]


def uses_type(kind: Any, name: str) -> bool:
    return kind == name or any(uses_type(inner, name) for inner in inner_types(kind))


def inner_types(kind: Any) -> Iterator[Any]:
    if isinstance(kind, dict):
        yield from (kind[part] for part in ("elementType", "keyType", "valueType") if part in kind)
        yield from (each["type"] for each in kind.get("fields", ()))


def define(table: str, wanted: TableDefinition, rowid_column: str) -> Definition:
    """A new table's definition; a RequestError names what cannot be."""
    if len(wanted.columns) == 0:
        raise RequestError(f"table '{table}' needs at least one column")
    names = [each.name for each in wanted.columns]
    for name in names:
        check_column_name(name, rowid_column)
    if len({fold(name) for name in names}) < len(names):
        twice = next(name for i, name in enumerate(names) if fold(name) in {fold(other) for other in names[:i]})
        raise RequestError(f"table '{table}' has two columns called '{twice}'")
    rowid: Json = {"name": rowid_column, "type": "long", "nullable": True, "metadata": {}}
    made = Definition(table, rowid_column, [rowid, *(new_column(each) for each in wanted.columns)], dict(_PROPERTIES))
    for position in wanted.not_null:
        made.columns()[position]["nullable"] = False
    _add_constraints(made, wanted)
    return made


def _add_constraints(made: Definition, wanted: TableDefinition) -> None:
    primary, unique = list(wanted.primary_key), [list(key) for key in wanted.unique]
    checks = list(wanted.checks)
    for text in wanted.constraints:
        match parse_constraint(text):
            case CheckText(expression):
                checks.append(expression)
            case key if key.is_primary and primary:
                raise RequestError(f"table '{made.table}' has one primary key, not two")
            case key if key.is_primary:
                primary = list(key.columns)
            case key:
                unique.append(list(key.columns))
    made.set_keys(made.key_columns(primary), _distinct([made.key_columns(key) for key in unique]))
    for name in made.primary_key:
        made.column(name)["nullable"] = False
    for text in checks:
        made.add_check(text)


def _distinct(keys: list[list[str]]) -> list[list[str]]:
    return [key for position, key in enumerate(keys) if key not in keys[:position]]


def new_column(wanted: pa.Field) -> Json:
    """A column as Delta keeps it, with the comment and default that came along."""
    form = stored_form(wanted)
    metadata: Json = {} if form.annotation is None else {ANNOTATION_KEY: form.annotation}
    column: Json = {"name": wanted.name, "type": form.delta, "nullable": True, "metadata": metadata}
    declared = wanted.metadata or {}
    if COMMENT_KEY in declared:
        metadata["comment"] = declared[COMMENT_KEY].decode("utf-8", "replace")
    if DEFAULT_KEY in declared:
        set_default(column, declared[DEFAULT_KEY].decode("utf-8", "replace"))
    return column


def set_default(column: Json, text: str) -> None:
    metadata = column["metadata"]
    for key in (CURRENT_DEFAULT, DEFAULT_TEXT):
        metadata.pop(key, None)
    if is_null(text):
        return
    stored = translate_default(text, named_type(column))
    if stored is not None:
        metadata[CURRENT_DEFAULT] = stored
    metadata[DEFAULT_TEXT] = json.dumps({"text": text, "stored": stored})


def check_column_name(name: str, rowid_column: str) -> None:
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:60])
    if not name.strip():
        raise RequestError("a column name is empty")
    if fold(name) in (fold(rowid_column), ROWID):
        raise RequestError(f"column name '{shown}' is taken by the gateway's row ids")
    if is_internal(name):
        raise RequestError(f"column name '{shown}' begins as the names that the gateway keeps for itself do")
    if any(not char.isprintable() for char in name):
        raise RequestError(f"column name '{shown}' must not hold control characters")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise RequestError(f"column name '{shown}' is longer than {MAX_NAME_BYTES} bytes")


def first_commit(made: Definition) -> bytes:
    """The log's first entry of a table without rows.

    Written by hand, because it takes a millisecond and no Spark: nobody else
    can see the table yet, so there is nobody to agree with.
    """
    counter = _Counter()
    mapped = [_map_field(each, counter) for each in made.fields]
    readers = {"columnMapping", "deletionVectors"} | (made.needed_features() & {"timestampNtz"})
    writers = readers | made.needed_features() | {"invariants", "appendOnly"}
    now = int(time.time() * 1000)
    actions: list[Json] = [
        {
            "commitInfo": {
                "timestamp": now,
                "operation": "CREATE TABLE",
                "operationParameters": {"partitionBy": "[]", "properties": json.dumps(made.properties)},
                "isBlindAppend": True,
                "engineInfo": "deltaport",
            }
        },
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": sorted(readers),
                "writerFeatures": sorted(writers),
            }
        },
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": mapped}),
                "partitionColumns": [],
                "configuration": {**made.properties, "delta.columnMapping.maxColumnId": str(counter.value)},
                "createdTime": now,
            }
        },
    ]
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


class _Counter:
    value = 0

    def next(self) -> int:
        self.value += 1
        return self.value


def _map_field(column: Json, counter: _Counter) -> Json:
    """The field with its id and its name in files, and so the fields inside it."""
    mapping = {_MAPPING_ID: counter.next(), _PHYSICAL_NAME: f"col-{uuid.uuid4()}"}
    return {**column, "metadata": {**column["metadata"], **mapping}, "type": _map_type(column["type"], counter)}


def _map_type(kind: Any, counter: _Counter) -> Any:
    if not isinstance(kind, dict):
        return kind
    mapped = dict(kind)
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            mapped[part] = _map_type(kind[part], counter)
    if "fields" in kind:
        mapped["fields"] = [_map_field(each, counter) for each in kind["fields"]]
    return mapped
