"""The test client against servers that would crash, hang or mislead the real one."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ClassVar

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.airport import AirportClient, ProtocolViolation
from tests.airport.packing import open_envelope
from tests.airport.replies import decode_statistics
from tests.airport.scan import read_chunks
from tests.airport.scripted import PEOPLE, REUSE_CONNECTION, ScriptedServer, contents, envelope, ipc


@pytest.fixture
def serve() -> Iterator[Callable[[type[ScriptedServer]], ScriptedServer]]:
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(kind())


# Servers that break the rules

ROWID = PEOPLE.field("rowid")


class WrongOrder(ScriptedServer):
    def stream_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([schema.field(index) for index in (0, 3, 2, 1, 4)])

    def stream(self, schema: pa.Schema) -> Iterator[Any]:
        yield from ()


class MissingColumn(WrongOrder):
    def stream_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.remove(4)


class WrongType(WrongOrder):
    def stream_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.set(2, pa.field("age", pa.int64()))


class OddProgress(ScriptedServer):
    progress: ClassVar = {"progress": 1.5}

    def stream(self, schema: pa.Schema) -> Iterator[Any]:
        for batch in super().stream(schema):
            yield batch, msgpack.packb(self.progress)


class ForeignMetadata(OddProgress):
    progress: ClassVar = {"progress": 0.5, "rows": 3}


class TextProgress(OddProgress):
    progress: ClassVar = {"progress": "half"}


class OtherDescriptor(ScriptedServer):
    """Answers flight_info and GetFlightInfo for another table than asked for."""

    def _flight_info(self, request: dict[str, Any]) -> list[bytes]:
        name = f"people{len(self.seen)}"
        self.tables["demo", name] = PEOPLE
        return [self.info("db", "demo", name).serialize()]

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        return flight.FlightInfo(PEOPLE, flight.FlightDescriptor.for_path("other"), [])


class NoLocation(ScriptedServer):
    def endpoint(self, ticket: bytes) -> flight.FlightEndpoint:
        return flight.FlightEndpoint(ticket, [])


class UnknownLocation(ScriptedServer):
    def endpoint(self, ticket: bytes) -> flight.FlightEndpoint:
        return flight.FlightEndpoint(ticket, ["https://elsewhere", REUSE_CONNECTION])


class BadHash(ScriptedServer):
    def schema_contents(self, catalog: str, schema: str) -> dict[str, Any]:
        return super().schema_contents(catalog, schema) | {"sha256": hashlib.sha256(b"").hexdigest()}


class BadLength(ScriptedServer):
    def schema_contents(self, catalog: str, schema: str) -> dict[str, Any]:
        length, data = msgpack.unpackb(super().schema_contents(catalog, schema)["serialized"])
        packed = msgpack.packb([length + 1, data])
        return {"sha256": hashlib.sha256(packed).hexdigest(), "url": None, "serialized": packed}


class NoInfo(ScriptedServer):
    def schema_contents(self, catalog: str, schema: str) -> dict[str, Any]:
        packed = envelope(msgpack.packb([b"\xff\xff"]))
        return {"sha256": "", "url": None, "serialized": packed}


class NoMetadata(ScriptedServer):
    def schema_contents(self, catalog: str, schema: str) -> dict[str, Any]:
        return contents([flight.FlightInfo(PEOPLE, flight.FlightDescriptor.for_path("a"), [])])


class OtherCatalog(ScriptedServer):
    def app_metadata(self, catalog: str, schema: str, name: str) -> dict[str, Any]:
        return super().app_metadata("DB", schema, name)


class OtherSchema(ScriptedServer):
    def app_metadata(self, catalog: str, schema: str, name: str) -> dict[str, Any]:
        return super().app_metadata(catalog, schema.upper(), name)


class NoIsFixed(ScriptedServer):
    def version(self) -> dict[str, Any]:
        return {"catalog_version": 1}


class SignedVersion(ScriptedServer):
    def version(self) -> dict[str, Any]:
        return {"catalog_version": -1, "is_fixed": False}


class RowidFirst(ScriptedServer):
    def __init__(self) -> None:
        super().__init__()
        self.tables["demo", "people"] = pa.schema([ROWID, *list(PEOPLE)[:4]])


class TwoRowids(ScriptedServer):
    def __init__(self) -> None:
        super().__init__()
        self.tables["demo", "people"] = PEOPLE.insert(4, ROWID.with_name("rowid2"))


class RefusedType(ScriptedServer):
    def __init__(self) -> None:
        super().__init__()
        self.tables["demo", "people"] = PEOPLE.insert(0, pa.field("half", pa.float16()))


class NoResult(ScriptedServer):
    def _endpoints(self, request: dict[str, Any]) -> list[bytes]:
        return []


class TwoResults(ScriptedServer):
    def _create_transaction(self, request: dict[str, Any]) -> list[bytes]:
        return super()._create_transaction(request) * 2


@pytest.mark.parametrize(
    "kind",
    [
        WrongOrder,
        MissingColumn,
        WrongType,
        OddProgress,
        ForeignMetadata,
        TextProgress,
        NoLocation,
        UnknownLocation,
        BadHash,
        BadLength,
        NoInfo,
        NoMetadata,
        OtherCatalog,
        OtherSchema,
        NoIsFixed,
        SignedVersion,
        RowidFirst,
        TwoRowids,
        RefusedType,
        NoResult,
        TwoResults,
    ],
)
def test_a_server_that_would_break_the_client_is_found_out(
    serve: Callable[..., ScriptedServer], kind: type[ScriptedServer]
) -> None:
    with AirportClient(serve(kind).location, "db") as client, pytest.raises(ProtocolViolation):
        client.scan("demo", "people")


def test_a_descriptor_other_than_asked_for_is_found_out(serve: Callable[..., ScriptedServer]) -> None:
    with AirportClient(serve(OtherDescriptor).location, "db") as client:
        with pytest.raises(ProtocolViolation):
            client.scan("demo", "people", at=("VERSION", 1))
        with pytest.raises(ProtocolViolation):
            client.take_flight(["alt", "a1"])


def test_a_message_without_a_batch_is_found_out() -> None:
    class Reader:
        """pyarrow's own server cannot send such a message in DoGet; others can."""

        def read_chunk(self) -> Any:
            return SimpleNamespace(data=None, app_metadata=pa.py_buffer(b"x"))

    with pytest.raises(ProtocolViolation):
        list(read_chunks(Reader()))


def test_progress_in_range_is_collected(serve: Callable[..., ScriptedServer]) -> None:
    class Progress(OddProgress):
        progress: ClassVar = {"progress": 1}

    with AirportClient(serve(Progress).location, "db") as client:
        assert client.scan("demo", "people").progress == [1.0]


def test_an_endpoint_elsewhere_is_read_there(serve: Callable[..., ScriptedServer]) -> None:
    other = serve(ScriptedServer)

    class Referring(ScriptedServer):
        def endpoint(self, ticket: bytes) -> flight.FlightEndpoint:
            return flight.FlightEndpoint(ticket, [other.location, REUSE_CONNECTION])

    with AirportClient(serve(Referring).location, "db") as client:
        assert client.scan("demo", "people").num_rows == 4
    assert [each.method for each in other.seen] == ["DoGet"]


def test_a_limit_stops_reading(serve: Callable[..., ScriptedServer]) -> None:
    stopped = threading.Event()

    class Endless(ScriptedServer):
        def stream(self, schema: pa.Schema) -> Iterator[Any]:
            try:
                while True:
                    yield from super().stream(schema)
            finally:
                stopped.set()

    with AirportClient(serve(Endless).location, "db") as client:
        assert client.scan("demo", "people", limit=5).num_rows == 8
        assert stopped.wait(30)


STATISTICS = {
    "min": pa.array([25], pa.int32()),
    "max": pa.array([47], pa.int32()),
    "has_not_null": pa.array([True]),
    "has_null": pa.array([True]),
    "distinct_count": pa.array([4], pa.uint64()),
}


def test_statistics_of_the_columns_own_type_are_accepted() -> None:
    assert decode_statistics(ipc(pa.table(STATISTICS)), pa.field("age", pa.int32()))["max"] == 47


@pytest.mark.parametrize(
    "damage",
    [
        {"min": pa.array([1], pa.int64())},
        {"has_null": pa.array([None], pa.bool_())},
        {"distinct_count": pa.array(["four"])},
    ],
)
def test_statistics_of_another_type_are_refused(damage: dict[str, pa.Array]) -> None:
    with pytest.raises(ProtocolViolation):
        decode_statistics(ipc(pa.table(STATISTICS | damage)), pa.field("age", pa.int32()))


@pytest.mark.parametrize("copies", [0, 2])
def test_statistics_of_more_or_less_than_one_row_are_refused(copies: int) -> None:
    table = pa.concat_tables([pa.table(STATISTICS)] * 2).slice(0, copies)
    with pytest.raises(ProtocolViolation):
        decode_statistics(ipc(table), pa.field("age", pa.int32()))


def test_a_null_text_bound_and_a_missing_column_are_refused() -> None:
    row = {"min": pa.array([None], pa.string()), "max": ["z"], "has_not_null": [True], "has_null": [True]}
    for extra in ({"distinct_count": [4]}, {}):
        with pytest.raises(ProtocolViolation):
            decode_statistics(ipc(pa.table(row | extra)), pa.field("name", pa.string()))


def test_an_envelope_with_bytes_that_are_no_zstd_frame_is_refused() -> None:
    assert open_envelope(envelope(b"abc"), "x") == b"abc"
    for raw in (msgpack.packb([3, b"abc"]), msgpack.packb({}), b"\xc1", envelope(b"abc") + b"\x00"):
        with pytest.raises(ProtocolViolation):
            open_envelope(raw, "x")
