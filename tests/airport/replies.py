"""Replies of the server, decoded and judged.

Everything here is stricter than the real client: where that one would crash,
hang, read garbage or show wrong values, a `ProtocolViolation` says what was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.airport.arrow_types import duckdb_type
from tests.airport.packing import (
    ProtocolViolation,
    boolean,
    open_envelope,
    optional_text,
    text,
    text_keys,
    uint,
    unpack_map,
    unpack_reply,
)
from tests.airport_filters import Expression, column

ROWID = 2**64 - 1
REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
KINDS = ("table", "scalar_function", "table_function")


@dataclass(frozen=True)
class VersionInfo:
    catalog_version: int
    is_fixed: bool


@dataclass(frozen=True)
class Contents:
    """Where the objects of a schema are: inline, behind a URL, or (all empty) in ListFlights."""

    sha256: str
    url: str | None
    serialized: bytes | None

    @property
    def is_empty(self) -> bool:
        return not self.sha256 and self.url is None and self.serialized is None


@dataclass(frozen=True)
class SchemaEntry:
    name: str
    description: str
    tags: Mapping[str, str]
    is_default: bool | None
    contents: Contents


@dataclass(frozen=True)
class Listing:
    schemas: tuple[SchemaEntry, ...]
    version: VersionInfo
    contents: Contents


@dataclass(frozen=True)
class Flight:
    """A table (or function) as the server declared it to the client."""

    descriptor: flight.FlightDescriptor
    schema: pa.Schema
    app_metadata: Mapping[str, Any] = field(default_factory=dict)
    total_records: int = -1

    @property
    def kind(self) -> str:
        return self.app_metadata["type"]

    @property
    def schema_name(self) -> str:
        return self.app_metadata["schema"]

    @property
    def name(self) -> str:
        return self.app_metadata["name"]

    @property
    def comment(self) -> str | None:
        return self.app_metadata.get("comment")

    @property
    def path(self) -> str | None:
        """Value of `airport-flight-path`; None for a CMD descriptor."""
        return flight_path(self.descriptor)

    @property
    def rowid(self) -> pa.Field | None:
        """The row id pseudo column; only its metadata marks it, not its name."""
        return next((each for each in self.schema if is_rowid(each)), None)

    @property
    def columns(self) -> list[pa.Field]:
        """The ordinary columns; a column id is a position in this list."""
        return [each for each in self.schema if not is_rowid(each)]

    @property
    def column_names(self) -> list[str]:
        return [each.name for each in self.columns]

    @property
    def has_statistics(self) -> bool:
        return bool((self.schema.metadata or {}).get(b"can_produce_statistics"))

    def column_id(self, name: str) -> int:
        """As sent in `column_ids`; `rowid` is the pseudo column if there is one."""
        if name == "rowid" and self.rowid is not None:
            return ROWID
        return self.column_names.index(name)

    def position(self, name: str) -> int:
        """Where a column stands in the stream."""
        if name == "rowid" and self.rowid is not None:
            return self.schema.get_field_index(self.rowid.name)
        return self.schema.get_field_index(name)

    def ref(self, name: str) -> Expression:
        """The column as part of a filter, with the type the client gives it."""
        return column(name, duckdb_type(self.schema.field(self.position(name)).type))


def flight_path(descriptor: flight.FlightDescriptor) -> str | None:
    if descriptor.descriptor_type != flight.DescriptorType.PATH:
        return None
    return "/".join(part.decode() for part in descriptor.path)


def is_rowid(each: pa.Field) -> bool:
    return bool((each.metadata or {}).get(b"is_rowid"))


def only_result(action: str, results: Sequence[bytes]) -> bytes:
    """Exactly one result: none is a null dereference in the client, more are dropped unseen."""
    if len(results) != 1:
        raise ProtocolViolation(f"{action}: one result is needed, {len(results)} came")
    return results[0]


def decode_version(value: Mapping[str, Any], what: str) -> VersionInfo:
    return VersionInfo(
        uint(value.get("catalog_version"), f"{what} catalog_version"),
        boolean(value.get("is_fixed"), f"{what} is_fixed"),
    )


def decode_catalog_version(raw: bytes) -> VersionInfo:
    return decode_version(unpack_map(raw, "catalog_version"), "catalog_version")


def decode_transaction(raw: bytes) -> str | None:
    reply = unpack_map(raw, "create_transaction")
    if "identifier" not in reply:
        raise ProtocolViolation("create_transaction: the key identifier is missing")
    return optional_text(reply["identifier"], "create_transaction identifier")


def decode_contents(value: object, what: str) -> Contents:
    fields = text_keys(value, what)
    serialized = fields.get("serialized")
    if serialized is not None and not isinstance(serialized, bytes):
        raise ProtocolViolation(f"{what} serialized: bytes or nil are needed, not {serialized!r}")
    return Contents(
        text(fields.get("sha256"), f"{what} sha256"), optional_text(fields.get("url"), f"{what} url"), serialized
    )


def decode_listing(raw: bytes) -> Listing:
    """The reply of `list_schemas`."""
    root = unpack_map(open_envelope(raw, "list_schemas"), "list_schemas")
    if not isinstance(root.get("schemas"), list):
        raise ProtocolViolation("list_schemas: schemas must be an array")
    schemas = tuple(_decode_schema_entry(entry) for entry in root["schemas"])
    names = [entry.name for entry in schemas]
    if "" in names or len(set(names)) != len(names):
        raise ProtocolViolation(f"list_schemas: empty or repeated schema name in {names}")
    return Listing(
        schemas,
        decode_version(text_keys(root.get("version_info"), "version_info"), "version_info"),
        decode_contents(root.get("contents"), "catalog contents"),
    )


def _decode_schema_entry(entry: object) -> SchemaEntry:
    fields = text_keys(entry, "schema entry")
    name = text(fields.get("name"), "schema name")
    tags = text_keys(fields.get("tags") or {}, f"tags of {name}")
    is_default = fields.get("is_default")
    return SchemaEntry(
        name,
        optional_text(fields.get("description"), f"description of {name}") or "",
        {key: text(value, f"tag {key} of {name}") for key, value in tags.items()},
        None if is_default is None else boolean(is_default, f"is_default of {name}"),
        decode_contents(fields.get("contents"), f"contents of {name}"),
    )


def open_contents(contents: Contents, catalog: str, schema: str) -> list[Flight]:
    """The objects of a schema given inline; the hash is that of the envelope."""
    what = f"contents of {schema}"
    if contents.serialized is None:
        raise ProtocolViolation(f"{what}: a URL or a hash alone is not followed by this client")
    digest = hashlib.sha256(contents.serialized).hexdigest()
    if contents.sha256 and contents.sha256 != digest:
        raise ProtocolViolation(f"{what}: SHA256 mismatch, {contents.sha256} declared, {digest} found")
    infos = unpack_reply(open_envelope(contents.serialized, what), what)
    if not isinstance(infos, list) or not all(isinstance(info, bytes) for info in infos):
        raise ProtocolViolation(f"{what}: an array of serialized FlightInfo is needed")
    return judge_flights((decode_info(info, what) for info in infos), catalog, schema)


def judge_flights(infos: Iterable[flight.FlightInfo], catalog: str, schema: str) -> list[Flight]:
    """Objects of one schema; two tables whose names differ only in case are one for the client."""
    flights = [decode_flight(info, catalog, schema) for info in infos]
    tables = [each.name.lower() for each in flights if each.kind == "table"]
    if len(set(tables)) != len(tables):
        raise ProtocolViolation(f"contents of {schema}: two tables have one name: {sorted(tables)}")
    return flights


def decode_info(raw: bytes, what: str) -> flight.FlightInfo:
    try:
        return flight.FlightInfo.deserialize(raw)
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation(f"{what}: not a FlightInfo: {error}") from error


def info_schema(info: flight.FlightInfo, what: str) -> pa.Schema:
    try:
        schema = info.schema
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation(f"{what}: the schema cannot be read: {error}") from error
    if schema is None:
        raise ProtocolViolation(f"{what}: there is no schema")
    return schema


def decode_flight(info: flight.FlightInfo, catalog: str, schema: str) -> Flight:
    """A catalog object; its app_metadata decides what it is and must name this catalog and schema."""
    if not info.app_metadata:
        raise ProtocolViolation(f"a flight of {schema} without app_metadata is ignored by the client")
    fields = unpack_map(info.app_metadata, "app_metadata")
    names = {key: text(fields.get(key), f"app_metadata {key}") for key in ("type", "catalog", "schema", "name")}
    if names["type"] not in KINDS or not names["name"]:
        raise ProtocolViolation(f"app_metadata: no object of the client: {names}")
    if (names["catalog"], names["schema"]) != (catalog, schema):
        raise ProtocolViolation(f"app_metadata: {names} listed under {catalog!r}.{schema!r}")
    metadata = {**fields, **names}
    for key in ("comment", "description", "action_name"):
        metadata[key] = optional_text(fields.get(key), f"app_metadata {key}")
    result = Flight(info.descriptor, info_schema(info, names["name"]), metadata, info.total_records)
    if result.kind == "table":
        judge_table_schema(result.schema, f"{schema}.{result.name}")
    else:
        _judge_function(result)
    return result


def judge_table_schema(schema: pa.Schema, what: str) -> None:
    """What a table schema must be for the client: known types, distinct names, one row id, last."""
    names = [each.name.lower() for each in schema]
    if "" in names or len(set(names)) != len(names):
        raise ProtocolViolation(f"{what}: empty or repeated column names {schema.names}")
    for each in schema:
        try:
            duckdb_type(each.type)
        except ValueError as error:
            raise ProtocolViolation(f"{what}.{each.name}: {error}") from error
    marked = [index for index, each in enumerate(schema) if is_rowid(each)]
    if marked and marked != [len(schema) - 1]:
        raise ProtocolViolation(f"{what}: one row id, in the last place; marked are {marked} of {len(schema)} fields")
    constraints = (schema.metadata or {}).get(b"check_constraints")
    if constraints is not None:
        checks = unpack_map(constraints, f"{what} check_constraints").get("constraints")
        if not isinstance(checks, list) or not all(isinstance(check, bytes) for check in checks):
            raise ProtocolViolation(f"{what} check_constraints: an array of SQL texts is needed")


def _judge_function(function: Flight) -> None:
    raw = function.app_metadata.get("input_schema")
    if not isinstance(raw, bytes):
        raise ProtocolViolation(f"{function.name}: a function needs its input_schema")
    try:
        pa.ipc.read_schema(pa.py_buffer(raw))
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation(f"{function.name}: input_schema cannot be read: {error}") from error
    if function.kind == "scalar_function" and len(function.schema) != 1:
        raise ProtocolViolation(f"{function.name}: a scalar function has exactly one output field")


def decode_endpoints(raw: bytes) -> list[flight.FlightEndpoint]:
    """The reply of `endpoints`; each needs a location the client can follow."""
    value = unpack_reply(raw, "endpoints")
    if not isinstance(value, list) or not all(isinstance(each, bytes) for each in value):
        raise ProtocolViolation("endpoints: an array of serialized FlightEndpoint is needed")
    try:
        endpoints = [flight.FlightEndpoint.deserialize(each) for each in value]
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation(f"endpoints: not a FlightEndpoint: {error}") from error
    for endpoint in endpoints:
        first_location(endpoint)
    return endpoints


def first_location(endpoint: flight.FlightEndpoint) -> str:
    """The only location the client looks at."""
    if not endpoint.locations:
        raise ProtocolViolation("endpoints: an endpoint without a location is an error in the client")
    uri = endpoint.locations[0].uri.decode()
    if uri != REUSE_CONNECTION and not uri.startswith(("grpc://", "grpc+tcp://", "grpc+tls://", "grpc+unix://")):
        raise ProtocolViolation(f"endpoints: location {uri!r} is neither the reuse marker nor gRPC")
    return uri


def decode_progress(metadata: pa.Buffer | bytes) -> float:
    """app_metadata of a DoGet batch: `{"progress": number in [0, 1]}`, anything else fails the query."""
    value = unpack_map(bytes(metadata), "batch app_metadata")
    progress = value.get("progress")
    if set(value) != {"progress"} or isinstance(progress, bool) or not isinstance(progress, int | float):
        raise ProtocolViolation(f"batch app_metadata: only a progress number is allowed, not {value!r}")
    if not 0 <= progress <= 1:
        raise ProtocolViolation(f"batch app_metadata: progress {progress} is outside [0, 1]")
    return float(progress)


def judge_stream_schema(declared: pa.Schema, streamed: pa.Schema) -> None:
    """The stream has every declared column, in its place, with its type; the client takes that on trust."""
    if streamed.names != declared.names:
        raise ProtocolViolation(f"DoGet: columns {streamed.names} instead of {declared.names}")
    for expected, found in zip(declared, streamed, strict=True):
        if not found.type.equals(expected.type):
            raise ProtocolViolation(f"DoGet: {found.name} is {found.type}, declared was {expected.type}")


def judge_batch(batch: pa.RecordBatch) -> None:
    """The client reads buffers as they are: lengths, offsets and UTF-8 must be right."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolViolation(f"a batch is not valid: {error}") from error


def decode_statistics(raw: bytes, column: pa.Field) -> dict[str, Any]:
    """The reply of `column_statistics`: one row whose min and max have the column's own type."""
    what = f"column_statistics of {column.name}"
    try:
        with pa.ipc.open_stream(raw) as stream:
            table = stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise ProtocolViolation(f"{what}: not an Arrow stream: {error}") from error
    if table.num_rows != 1:
        raise ProtocolViolation(f"{what}: exactly one row is needed, not {table.num_rows}")
    needed = {"min", "max", "has_not_null", "has_null", "distinct_count"}
    if missing := needed - set(table.column_names):
        raise ProtocolViolation(f"{what}: {sorted(missing)} missing")
    row = {name: table.column(name)[0].as_py() for name in table.column_names}
    kind = duckdb_type(column.type)
    if not pa.types.is_nested(column.type):
        for name in ("min", "max"):
            if not table.schema.field(name).type.equals(column.type):
                raise ProtocolViolation(f"{what}: {name} is {table.schema.field(name).type}, not {column.type}")
            if row[name] is None and kind in ("VARCHAR", "BLOB"):
                raise ProtocolViolation(f"{what}: a null {name} is read as the text NULL")
    for name, is_type in (
        ("has_not_null", pa.types.is_boolean),
        ("has_null", pa.types.is_boolean),
        ("contains_unicode", pa.types.is_boolean),
        ("distinct_count", pa.types.is_integer),
        ("max_string_length", pa.types.is_integer),
    ):
        if name in row and (row[name] is None or not is_type(table.schema.field(name).type)):
            raise ProtocolViolation(f"{what}: {name} is {row[name]!r} of {table.schema.field(name).type}")
    return row


def decode_total_changed(metadata: pa.Buffer | bytes | None) -> int:
    """The last message of an exchange."""
    if not metadata:
        raise ProtocolViolation("DoExchange: the final message carries no app_metadata")
    return uint(unpack_map(bytes(metadata), "DoExchange").get("total_changed"), "total_changed")


def decode_exception(error: flight.FlightError) -> dict[str, str]:
    """The typed error of DoGet, DoExchange, GetFlightInfo and ListFlights; empty if there is none."""
    if not error.extra_info:
        return {}
    fields = unpack_map(error.extra_info, "extra_info")
    return {key: text(fields.get(key), f"extra_info {key}") for key in ("exception_type", "message")}
