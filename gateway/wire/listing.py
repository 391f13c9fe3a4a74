"""Schemas and tables as the client lists them: FlightInfos, compressed and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from gateway.wire.packing import compress, pack

STATISTICS_KEY = b"can_produce_statistics"
CHECKS_KEY = b"check_constraints"
ROWID_KEY = b"is_rowid"
COMMENT_KEY = b"comment"
DEFAULT_KEY = b"default"

_NO_CONTENTS = {"sha256": "", "url": None, "serialized": None}


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table of a listing. `catalog` must be the name used in ATTACH, to the letter."""

    catalog: str
    schema: str
    name: str
    comment: str
    shape: pa.Schema
    descriptor: flight.FlightDescriptor
    rows: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    name: str
    description: str
    tables: tuple[bytes, ...]


def table_info(entry: TableEntry) -> flight.FlightInfo:
    metadata = {
        "type": "table",
        "catalog": entry.catalog,
        "schema": entry.schema,
        "name": entry.name,
        "comment": entry.comment or None,
        "input_schema": None,
        "action_name": None,
        "description": None,
        "extra_data": None,
    }
    return flight.FlightInfo(
        entry.shape,
        entry.descriptor,
        [],
        -1 if entry.rows is None else entry.rows,
        entry.bytes,
        app_metadata=pack(metadata),
    )


def encode_listing(schemas: Iterable[SchemaEntry], version: int) -> bytes:
    """The reply to `list_schemas`: every schema's contents inline, each with its hash."""
    root = {
        "contents": _NO_CONTENTS,  # a bundle for the client's disk cache, which never expires; better unused
        "schemas": [
            {
                "name": schema.name,
                "description": schema.description,
                "tags": {},
                "contents": encode_contents(schema.tables),
                "is_default": False,
            }
            for schema in schemas
        ],
        "version_info": encode_version(version),
    }
    return compress(pack(root))


def encode_contents(tables: Sequence[bytes]) -> dict[str, Any]:
    """A schema's tables, inline, with the hash that the client checks."""
    envelope = compress(pack(list(tables)))
    return {"sha256": hashlib.sha256(envelope).hexdigest(), "url": None, "serialized": envelope}


def encode_version(version: int) -> dict[str, int | bool]:
    # Both are read without a default by the client: leave neither out.
    return {"catalog_version": version, "is_fixed": False}


def metadata_of(items: Mapping[bytes, str | bytes | None]) -> dict[bytes, bytes] | None:
    """Arrow metadata of what is present; None rather than an empty map, as Arrow compares them."""
    present = {
        key: value if isinstance(value, bytes) else value.encode("utf-8")
        for key, value in items.items()
        if value is not None
    }
    return present or None
