"""Arrow types as the client sees them: their DuckDB type text, and what it uploads for them."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as kinds

TIME_ZONE = "Etc/UTC"

_PLAIN = {
    pa.null(): "NULL",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.string_view(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.binary_view(): "BLOB",
    pa.date32(): "DATE",
    pa.date64(): "DATE",
    pa.time32("s"): "TIME",
    pa.time32("ms"): "TIME",
    pa.time64("us"): "TIME",
    pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.month_day_nano_interval(): "INTERVAL",
}
_OPAQUE = {
    "hugeint": "HUGEINT",
    "uhugeint": "UHUGEINT",
    "time_tz": "TIME WITH TIME ZONE",
    "bit": "BIT",
    "bignum": "BIGNUM",
}
_UPLOADED = {
    "VARCHAR": pa.string(),
    "UUID": pa.string(),
    "JSON": pa.string(),
    "BLOB": pa.binary(),
    "BIT": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME WITH TIME ZONE": pa.time64("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", TIME_ZONE),
    "INTERVAL": pa.month_day_nano_interval(),
    "HUGEINT": pa.decimal128(38, 0),
    "UHUGEINT": pa.decimal128(38, 0),
    "BOOLEAN": pa.bool_(),
}


_LISTS = (kinds.is_list, kinds.is_large_list, kinds.is_list_view, kinds.is_large_list_view)


def duckdb_type(kind: pa.DataType) -> str:
    """The type text the client shows and sends; ValueError for what it refuses in a schema."""
    plain = _PLAIN.get(kind) or _family(kind)
    if plain is not None:
        return plain
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_type(kind)
    return _nested_type(kind)


def _family(kind: pa.DataType) -> str | None:
    """Types that are one DuckDB type whatever their unit, zone or width."""
    if kinds.is_timestamp(kind):
        return "TIMESTAMP WITH TIME ZONE"
    if kinds.is_duration(kind):
        return "INTERVAL"
    if kinds.is_fixed_size_binary(kind):
        return "BLOB"
    if kinds.is_decimal(kind) and not kinds.is_decimal256(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return None


def _extension_type(kind: pa.BaseExtensionType) -> str:
    known = {"arrow.uuid": "UUID", "arrow.json": "JSON", "arrow.bool8": "BOOLEAN"}
    if kind.extension_name == "arrow.opaque" and kind.vendor_name == "DuckDB":
        known["arrow.opaque"] = _OPAQUE.get(kind.type_name, duckdb_type(kind.storage_type))
    return known.get(kind.extension_name) or duckdb_type(kind.storage_type)


def _nested_type(kind: pa.DataType) -> str:
    if _is_encoded(kind):
        return duckdb_type(kind.value_type)
    if kinds.is_map(kind):
        return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.item_type)})"
    if kinds.is_fixed_size_list(kind):
        return f"{duckdb_type(kind.value_type)}[{kind.list_size}]"
    if any(is_list(kind) for is_list in _LISTS):
        return f"{duckdb_type(kind.value_type)}[]"
    if (kinds.is_struct(kind) and kind.num_fields) or (kinds.is_union(kind) and kind.mode == "sparse"):
        members = ", ".join(f"{field.name} {duckdb_type(field.type)}" for field in kind)
        return f"{'STRUCT' if kinds.is_struct(kind) else 'UNION'}({members})"
    raise ValueError(f"the client refuses the Arrow type {kind}")


def _is_encoded(kind: pa.DataType) -> bool:
    return kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind)


def upload_type(kind: pa.DataType) -> pa.DataType:
    """What the client uploads, with its default settings, for a column the server declares so."""
    text = duckdb_type(kind)
    if text in _UPLOADED:
        return _UPLOADED[text]
    if _is_encoded(kind):
        return upload_type(kind.value_type)
    if kinds.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return _upload_nested(kind)


def _upload_nested(kind: pa.DataType) -> pa.DataType:
    if kinds.is_map(kind):
        return pa.map_(upload_type(kind.key_type), upload_type(kind.item_type))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(pa.field("", upload_type(kind.value_type)), kind.list_size)
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(pa.field("l", upload_type(kind.value_type)))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, upload_type(field.type)) for field in kind])
    return kind
