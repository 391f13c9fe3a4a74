"""DuckDB's types on Delta: what a column is stored as, and what it is declared as to clients.

Delta has fewer types than DuckDB. A type it lacks is stored as another one, and
an annotation in the column's metadata says what it stands for. Every field of a
struct has its own annotation in its own metadata, so that it follows the field
through renames; elements of arrays and maps, which have no metadata in Delta, are
described in the annotation of the field around them. How values are converted is
for `codec` to say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gateway.catalog.names import fold
from gateway.errors import RequestError, UnsupportedError

ANNOTATION_KEY = "deltaport.type"
"""The key of the annotation in a Delta field's metadata."""

_LONGEST_ARRAY = 100_000  # as in DuckDB
_EXTENSION_NAME, _EXTENSION_METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"
_WKB = b"geoarrow.wkb"
_VARIANT = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
INTERVAL_STORAGE = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanos", pa.int64())])

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


def _opaque(storage: pa.DataType, name: str) -> pa.DataType:
    return pa.opaque(storage, name, "DuckDB")


# What an annotation means: the storage it stands on, and the type that is declared to clients.
_MEANINGS: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "utinyint": (pa.int16(), pa.uint8()),
    "usmallint": (pa.int32(), pa.uint16()),
    "uinteger": (pa.int64(), pa.uint32()),
    "ubigint": (pa.decimal128(20, 0), pa.uint64()),
    "hugeint": (pa.binary(), _opaque(pa.binary(16), "hugeint")),
    "uhugeint": (pa.binary(), _opaque(pa.binary(16), "uhugeint")),
    "bignum": (pa.binary(), _opaque(pa.binary(), "bignum")),
    "varint": (pa.binary(), _opaque(pa.binary(), "varint")),
    "bit": (pa.binary(), _opaque(pa.binary(), "bit")),
    "time_tz": (pa.binary(), _opaque(pa.binary(8), "time_tz")),
    "uuid": (pa.string(), pa.uuid()),
    "json": (pa.string(), pa.json_(pa.string())),
    "time": (pa.int64(), pa.time64("us")),
    "time_ns": (pa.int64(), pa.time64("ns")),
    "timestamp_s": (pa.timestamp("us"), pa.timestamp("s")),
    "timestamp_ms": (pa.timestamp("us"), pa.timestamp("ms")),
    "timestamp_ns": (pa.int64(), pa.timestamp("ns")),
    "interval": (INTERVAL_STORAGE, pa.month_day_nano_interval()),
}
_OPAQUE = {"hugeint", "uhugeint", "bignum", "varint", "bit", "time_tz"}
_ANNOTATED = {declared: meaning for meaning, (_, declared) in _MEANINGS.items() if meaning not in _OPAQUE | {"json"}}
_ANNOTATED |= {pa.time32("s"): "time", pa.time32("ms"): "time"}
_DELTA_NAMES = {kind: name for name, kind in _PRIMITIVES.items() if name != "variant"}

# A tree of annotations: the name of a meaning, or what an array's or a map's parts stand for.
_Tree = str | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How one field is stored in Delta, and how clients see it.

    `delta` is its type in a Delta schema, the metadata of fields inside it included;
    `annotation` belongs under ANNOTATION_KEY in the field's own metadata. `meaning` is what
    a single value stands for, None where it is itself; `parts` are the forms inside a
    list, a map (key, value) or a struct. A plain form is stored and declared as one type.
    """

    name: str
    arrow: pa.DataType
    delta: Any
    annotation: str | None
    declared: pa.Field
    meaning: str | None
    parts: tuple[StoredForm, ...]
    is_plain: bool


def stored_form(field: pa.Field) -> StoredForm:
    """How to keep a column that a client transmitted; RequestError where Delta cannot keep its type."""
    delta, tree = _to_delta(field.name, field)
    return _form(field.name, field.name, delta, tree)


def form_of(name: str, delta: Any, metadata: dict[str, Any]) -> StoredForm:
    """The form of a Delta column: its type and metadata as they are in the table's schema."""
    return _form(name, name, delta, _read_annotation(metadata))


def reads_alike(form: StoredForm) -> bool:
    """Whether an expression over the stored values says the same of the declared ones."""
    return form.is_plain or form.meaning in ("utinyint", "usmallint", "uinteger", "ubigint", "json")


def has_statistics(form: StoredForm) -> bool:
    """Whether the client knows what to do with this type's statistics."""
    return form.meaning not in ("interval", "bit", "bignum", "varint", "geometry")


def type_name(field: pa.Field) -> str:
    """A transmitted type in DuckDB's words, for messages."""
    kind = field.type
    if pa.types.is_union(kind):
        return "UNION"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _extension_of(field) or str(kind)


# From the client's type to Delta's.


def _to_delta(column: str, field: pa.Field) -> tuple[Any, _Tree]:
    kind, types = field.type, pa.types
    extension = _extension_of(field)
    if extension is not None:
        return _extension_to_delta(column, field, extension)
    if kind in _ANNOTATED:
        meaning = _ANNOTATED[kind]
        return _delta_of(_MEANINGS[meaning][0]), meaning
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _to_delta(column, field.with_type(kind.value_type))
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})", None
    if kind.num_fields and not types.is_union(kind):
        return _nested_to_delta(column, field)
    plain = _plain_storage(kind)
    if plain is None:
        raise _unkept(column, field)
    return plain, None


def _plain_storage(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_fixed_size_binary(kind):
        return "binary"
    if types.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    if types.is_date64(kind):
        return "date"
    if types.is_null(kind):
        return "integer"  # as DuckDB itself makes a column of NULLs
    return _DELTA_NAMES.get(kind)


def _extension_of(field: pa.Field) -> str | None:
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name = (field.metadata or {}).get(_EXTENSION_NAME)
    return None if name is None else bytes(name).decode(errors="replace")


def _extension_to_delta(column: str, field: pa.Field, extension: str) -> tuple[Any, _Tree]:
    kind = field.type
    match extension:
        case "arrow.bool8":
            return "boolean", None
        case "arrow.uuid":
            return "string", "uuid"
        case "arrow.json":
            return "string", "json"
        case "arrow.opaque" if isinstance(kind, pa.OpaqueType):
            known = _MEANINGS.get(kind.type_name) if kind.vendor_name == "DuckDB" else None
            if known is not None and kind.type_name in _OPAQUE:
                return _delta_of(known[0]), kind.type_name
        case "geoarrow.wkb" if _plain_storage(kind) == "binary":
            described = (field.metadata or {}).get(_EXTENSION_METADATA, b"")
            return "binary", {"geometry": bytes(described).decode()}
    raise _unkept(column, field)


def _nested_to_delta(column: str, field: pa.Field) -> tuple[Any, _Tree]:
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        if len({fold(inner.name) for inner in kind}) < len(kind):
            raise RequestError(f"column '{column}' has a STRUCT with two fields of one name, which Delta cannot keep")
        return {"type": "struct", "fields": [_field_to_delta(column, inner) for inner in kind]}, None
    if types.is_map(kind):
        key, key_tree = _to_delta(column, kind.key_field)
        value, value_tree = _to_delta(column, kind.item_field)
        if _has_map(key):
            raise RequestError(f"column '{column}' has a MAP within the key of a MAP, which Delta cannot keep")
        delta = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        return delta, _without_nones({"key": key_tree, "value": value_tree})
    element, tree = _to_delta(column, kind.value_field)
    length = kind.list_size if types.is_fixed_size_list(kind) else None
    if length is not None and not 0 < length <= _LONGEST_ARRAY:
        raise RequestError(f"column '{column}' has an ARRAY of {length} elements; 1 to {_LONGEST_ARRAY} can be kept")
    delta = {"type": "array", "elementType": element, "containsNull": True}
    return delta, _without_nones({"length": length, "element": tree})


def _field_to_delta(column: str, field: pa.Field) -> dict[str, Any]:
    if not field.name:
        raise RequestError(f"column '{column}' has a STRUCT with a field without a name, which Delta cannot keep")
    delta, tree = _to_delta(column, field)
    metadata = {} if tree is None else {ANNOTATION_KEY: json.dumps(tree)}
    return {"name": field.name, "type": delta, "nullable": True, "metadata": metadata}


def _has_map(delta: Any) -> bool:
    if not isinstance(delta, dict):
        return False
    inside = [delta.get("elementType"), *(field["type"] for field in delta.get("fields", ()))]
    return delta["type"] == "map" or any(_has_map(part) for part in inside)


def _without_nones(tree: dict[str, Any]) -> _Tree:
    return {key: value for key, value in tree.items() if value is not None} or None


def _unkept(column: str, field: pa.Field) -> RequestError:
    return RequestError(f"column '{column}' has the type {type_name(field)}, which a Delta table cannot keep")


# From Delta's type to the form.


def _form(column: str, name: str, delta: Any, tree: _Tree) -> StoredForm:
    meaning, storage, declared = _meaning_of(name, delta, tree)
    if meaning is None and isinstance(delta, dict):
        return _nested_form(column, name, delta, tree)
    if meaning is None:
        storage = _arrow_type(column, delta)
        declared = pa.field(name, storage)
    annotation = None if meaning is None else json.dumps(tree)
    return StoredForm(name, storage, delta, annotation, declared, meaning, (), meaning is None)


def _meaning_of(name: str, delta: Any, tree: _Tree) -> tuple[str | None, pa.DataType | None, pa.Field | None]:
    """What a value stands for; an annotation that no longer fits, because others changed the type, says nothing."""
    match tree:
        case str() if tree in _MEANINGS and _without_metadata(delta) == _delta_of(_MEANINGS[tree][0]):
            storage, declared = _MEANINGS[tree]
            return tree, storage, pa.field(name, declared)
        case {"geometry": str(described)} if delta == "binary":
            extension = {_EXTENSION_NAME: _WKB, _EXTENSION_METADATA: described.encode()}
            return "geometry", pa.binary(), pa.field(name, pa.binary(), metadata=extension)
    return None, None, None


def _without_metadata(delta: Any) -> Any:
    if isinstance(delta, dict) and delta.get("type") == "struct":
        return {**delta, "fields": [{**field, "metadata": {}} for field in delta["fields"]]}
    return delta


def _nested_form(column: str, name: str, delta: dict[str, Any], tree: _Tree) -> StoredForm:
    within = tree if isinstance(tree, dict) else {}
    match delta.get("type"):
        case "array":
            element = _form(column, "element", delta["elementType"], within.get("element"))
            return _array_form(name, delta, element, within)
        case "map":
            key = _form(column, "key", delta["keyType"], within.get("key"))
            value = _form(column, "value", delta["valueType"], within.get("value"))
            parts: tuple[StoredForm, ...] = (key, value)
            holds_null = [False, bool(delta["valueContainsNull"])]
            stored, declared = (pa.map_(*fields) for fields in _both(parts, holds_null))
        case "struct" if delta["fields"]:
            fields = delta["fields"]
            parts = tuple(_form(column, f["name"], f["type"], _read_annotation(f.get("metadata"))) for f in fields)
            stored, declared = (pa.struct(inside) for inside in _both(parts, [f["nullable"] for f in fields]))
        case _:
            raise UnsupportedError(f"column '{column}' has a nested type that cannot be shown to clients")
    return _around(name, stored, delta, within, declared, parts)


def _array_form(name: str, delta: dict[str, Any], element: StoredForm, within: dict[str, Any]) -> StoredForm:
    (stored,), (declared,) = _both((element,), [bool(delta["containsNull"])])
    length = within.get("length")
    if type(length) is int and 0 < length <= _LONGEST_ARRAY:
        return _around(name, pa.list_(stored), delta, within, pa.list_(declared, length), (element,))
    return _around(name, pa.list_(stored), delta, within, pa.list_(declared), (element,))


def _around(
    name: str,
    stored: pa.DataType,
    delta: Any,
    within: dict[str, Any],
    declared: pa.DataType,
    parts: tuple[StoredForm, ...],
) -> StoredForm:
    is_plain = all(part.is_plain for part in parts) and not pa.types.is_fixed_size_list(declared)
    annotation = json.dumps(within) if within else None
    return StoredForm(name, stored, delta, annotation, pa.field(name, declared), None, parts, is_plain)


def _both(parts: tuple[StoredForm, ...], holds_null: list[bool]) -> tuple[list[pa.Field], list[pa.Field]]:
    """The fields inside a nested type, as they are stored and as they are declared."""
    pairs = list(zip(parts, holds_null, strict=True))
    stored = [pa.field(part.name, part.arrow, nullable) for part, nullable in pairs]
    return stored, [part.declared.with_nullable(nullable) for part, nullable in pairs]


def _arrow_type(column: str, delta: Any) -> pa.DataType:
    if isinstance(delta, str) and delta in _PRIMITIVES:
        return _PRIMITIVES[delta]
    if isinstance(delta, str) and delta.startswith("decimal(") and delta.endswith(")"):
        precision, scale = (int(number) for number in delta[len("decimal(") : -1].split(","))
        return pa.decimal128(precision, scale)
    raise UnsupportedError(f"column '{column}' has the type {delta}, which cannot be shown to clients")


def _delta_of(storage: pa.DataType) -> Any:
    if pa.types.is_struct(storage):
        fields = [{"name": f.name, "type": _delta_of(f.type), "nullable": True, "metadata": {}} for f in storage]
        return {"type": "struct", "fields": fields}
    if pa.types.is_decimal128(storage):
        return f"decimal({storage.precision},{storage.scale})"
    return _DELTA_NAMES[storage]


def _read_annotation(metadata: dict[str, Any] | None) -> _Tree:
    text = (metadata or {}).get(ANNOTATION_KEY)
    try:
        tree = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):  # written by others
        return None
    return tree if isinstance(tree, str | dict) else None
