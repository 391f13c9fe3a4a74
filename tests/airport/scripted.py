"""A small Flight server that answers as the captured one did, for testing the client itself.

It holds `demo.people` and its neighbours in memory, notes every call with the
headers and bodies it saw, and changes nothing. Tests subclass it to misbehave.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pyarrow as pa
from pyarrow import flight

from tests.airport.replies import REUSE_CONNECTION

_ROWID = pa.field("rowid", pa.int64(), metadata={"is_rowid": "1"})
PEOPLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "key"}),
        pa.field("name", pa.string()),
        pa.field("age", pa.int32(), metadata={"default": "18"}),
        pa.field("city", pa.string()),
        _ROWID,
    ]
)
STRICT = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.float64()), pa.field("s", pa.string()), _ROWID])
_ROWS = pa.table(
    [
        pa.array([1, 2, 3, 4], pa.int64()),
        pa.array(["Ann", "Bob", "Cid", "Dee"]),
        pa.array([31, 25, 47, None], pa.int32()),
        pa.array(["Oslo", "Rome", None, "Rome"]),
        pa.array([0, 1, 2, 3], pa.int64()),
    ],
    schema=PEOPLE,
)


@dataclass
class Seen:
    """One call as it arrived; `frames` is the order of messages of an exchange."""

    method: str
    headers: list[tuple[str, str]]
    action: str = ""
    body: bytes = b""
    frames: list[str] = field(default_factory=list)


class _Note(flight.ServerMiddleware):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen


class _Notebook(flight.ServerMiddlewareFactory):
    def __init__(self, calls: list[Seen]) -> None:
        self._calls = calls
        self._lock = threading.Lock()

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[Any]]) -> flight.ServerMiddleware:
        pairs = [
            (name, value if isinstance(value, str) else value.decode("latin-1"))
            for name, values in headers.items()
            for value in values
        ]
        names = {flight.FlightMethod.DO_ACTION: "DoAction", flight.FlightMethod.DO_GET: "DoGet"}
        names |= {flight.FlightMethod.DO_EXCHANGE: "DoExchange", flight.FlightMethod.LIST_FLIGHTS: "ListFlights"}
        names |= {flight.FlightMethod.GET_FLIGHT_INFO: "GetFlightInfo"}
        seen = Seen(names[info.method], pairs)
        with self._lock:
            self._calls.append(seen)
        return _Note(seen)


def envelope(data: bytes) -> bytes:
    return msgpack.packb([len(data), pa.Codec("zstd").compress(data, asbytes=True)])


def contents(infos: list[flight.FlightInfo]) -> dict[str, Any]:
    packed = envelope(msgpack.packb([info.serialize() for info in infos]))
    return {"sha256": hashlib.sha256(packed).hexdigest(), "url": None, "serialized": packed}


EMPTY_CONTENTS = {"sha256": "", "url": None, "serialized": None}


class ScriptedServer(flight.FlightServerBase):
    """Answers every call of the captures. Catalog `lazy` lists its schemas without contents."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.tables: dict[tuple[str, str], pa.Schema] = {
            ("demo", "people"): PEOPLE,
            ("demo", "people_stats"): PEOPLE.with_metadata({"can_produce_statistics": "1"}),
            ("demo", "strict"): STRICT,
            ("demo", "locked"): STRICT,
            ("demo", "parts"): PEOPLE,
            ("alt", "a1"): PEOPLE,
            ("s1", "nested"): STRICT,
            ("s1", "t"): STRICT,
            ("s1", "ctas"): PEOPLE,
            ("s1", "ctas0"): PEOPLE,
            ("s1", "ck"): PEOPLE,
        }
        super().__init__("grpc://127.0.0.1:0", middleware={"note": _Notebook(self.seen)})

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    # What a subclass may bend

    def version(self) -> dict[str, Any]:
        return {"catalog_version": 1, "is_fixed": False}

    def app_metadata(self, catalog: str, schema: str, name: str) -> dict[str, Any]:
        return {"type": "table", "catalog": catalog, "schema": schema, "name": name, "comment": None}

    def schema_contents(self, catalog: str, schema: str) -> dict[str, Any]:
        if catalog == "lazy":
            return EMPTY_CONTENTS
        return contents([self.info(catalog, *key) for key in self.tables if key[0] == schema])

    def endpoint(self, ticket: bytes) -> flight.FlightEndpoint:
        return flight.FlightEndpoint(ticket, [REUSE_CONNECTION])

    def stream(self, schema: pa.Schema) -> Iterator[Any]:
        """What DoGet yields after `stream_schema`."""
        yield from _ROWS.select(schema.names).to_batches() if schema.names == PEOPLE.names else ()

    def stream_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def reply_schema(self, schema: pa.Schema) -> pa.Schema:
        """Asked for right before an exchange sends its schema."""
        return schema

    def finish(self, writer: flight.MetadataRecordBatchWriter, changed: int) -> None:
        writer.write_metadata(msgpack.packb({"total_changed": changed}))

    # Calls

    def info(self, catalog: str, schema: str, name: str) -> flight.FlightInfo:
        return flight.FlightInfo(
            self.tables[schema, name],
            flight.FlightDescriptor.for_path(schema, name),
            [],
            total_records=4,
            app_metadata=msgpack.packb(self.app_metadata(catalog, schema, name)),
        )

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        seen = _note(context)
        seen.action, seen.body = action.type, action.body.to_pybytes()
        if action.type == "echo":
            return [seen.body]
        request = {key.decode(): value for key, value in msgpack.unpackb(seen.body, raw=True).items()}
        return getattr(self, f"_{action.type}", self._alter)(request)

    def _create_transaction(self, _request: dict[str, Any]) -> list[bytes]:
        return [msgpack.packb({"identifier": f"tx-{len(self.seen)}"})]

    def _catalog_version(self, _request: dict[str, Any]) -> list[bytes]:
        return [msgpack.packb(self.version())]

    def _list_schemas(self, request: dict[str, Any]) -> list[bytes]:
        catalog = request["catalog_name"].decode()
        names = list(dict.fromkeys(schema for schema, _ in self.tables))
        schemas = [
            {"name": name, "description": "", "tags": {}, "contents": self.schema_contents(catalog, name)}
            for name in names
        ]
        root = {"contents": EMPTY_CONTENTS, "schemas": schemas, "version_info": self.version()}
        return [envelope(msgpack.packb(root))]

    def _endpoints(self, request: dict[str, Any]) -> list[bytes]:
        descriptor = flight.FlightDescriptor.deserialize(request["descriptor"])
        parts = 3 if descriptor.path and descriptor.path[-1] == b"parts" else 1
        return [msgpack.packb([self.endpoint(request["descriptor"]).serialize() for _ in range(parts)])]

    def _flight_info(self, request: dict[str, Any]) -> list[bytes]:
        schema, name = flight.FlightDescriptor.deserialize(request["descriptor"]).path
        if request["at_value"] == b"tag":
            raise flight.FlightError("unknown version 'tag'")
        return [self.info("db", schema.decode(), name.decode()).serialize()]

    def _column_statistics(self, request: dict[str, Any]) -> list[bytes]:
        column = PEOPLE.field(request["column_name"].decode())
        values = ("Ann", "Dee") if column.type == pa.string() else (25, 47)
        row = {"min": pa.array(values[:1], column.type), "max": pa.array(values[1:], column.type)}
        row |= {"has_not_null": [True], "has_null": [True], "distinct_count": pa.array([4], pa.uint64())}
        return [ipc(pa.table(row))]

    def _create_schema(self, _request: dict[str, Any]) -> list[bytes]:
        return [msgpack.packb(contents([]))]

    def _create_table(self, request: dict[str, Any]) -> list[bytes]:
        key = (request["schema_name"].decode(), request["table_name"].decode())
        self.tables[key] = pa.ipc.read_schema(pa.py_buffer(request["arrow_schema"])).append(_ROWID)
        return [self.info("db", *key).serialize()]

    def _drop_table(self, _request: dict[str, Any]) -> list[bytes]:
        return []

    _drop_schema = _drop_table

    def _alter(self, request: dict[str, Any]) -> list[bytes]:
        schema, old = request["schema"].decode(), request["name"].decode()
        new = request.get("new_table_name", request["name"]).decode()
        self.tables[schema, new] = self.tables[schema, old]
        return [self.info("db", schema, new).serialize()]

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        return flight.FlightInfo(self._schema_of(descriptor), descriptor, [])

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        seen = _note(context)
        seen.body = criteria
        headers = dict(seen.headers)
        wanted = headers.get("airport-list-flights-filter-schema")
        catalog = headers.get("airport-list-flights-filter-catalog", "db")
        return iter([self.info(catalog, *key) for key in self.tables if wanted in (None, key[0])])

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        schema = self._schema_of(flight.FlightDescriptor.deserialize(ticket.ticket))
        return flight.GeneratorStream(self.stream_schema(schema), self.stream(schema))

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        seen = _note(context)
        headers = dict(seen.headers)
        returning = headers["return-chunks"] == "1"
        uploaded = reader.schema
        seen.frames.append("client schema")
        schema = uploaded if headers["airport-operation"] == "update" else self._schema_of(descriptor)
        writer.begin(self.reply_schema(schema))
        seen.frames.append("server schema")
        changed = 0
        for chunk in reader:
            seen.frames.append(f"client batch[{chunk.data.num_rows}]")
            changed += chunk.data.num_rows
            if returning:
                self.answer(writer, chunk.data, schema)
                seen.frames.append(f"server batch[{chunk.data.num_rows}]")
        seen.frames.append("client half-close")
        self.finish(writer, changed)

    def answer(self, writer: flight.MetadataRecordBatchWriter, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        """RETURNING: the uploaded values, null where there are none."""
        arrays = [
            batch.column(each.name) if each.name in batch.schema.names else pa.nulls(batch.num_rows, each.type)
            for each in schema
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def _schema_of(self, descriptor: flight.FlightDescriptor) -> pa.Schema:
        if descriptor.descriptor_type == flight.DescriptorType.PATH and len(descriptor.path) == 2:
            schema, name = descriptor.path
            return self.tables[schema.decode(), name.decode()]
        return pa.schema([("name" if descriptor.path else "a", pa.int64())])


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _note(context: flight.ServerCallContext) -> Seen:
    return context.get_middleware("note").seen
