"""Uploads: frame by frame as captured, and judged where a server answers out of turn."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.airport import AirportClient, ProtocolViolation
from tests.airport.exchange import upload_schema
from tests.airport.replies import decode_exception
from tests.airport.scripted import ScriptedServer
from tests.airport_filters import column
from tests.captures import statement


@pytest.fixture
def serve() -> Iterator[Callable[[type[ScriptedServer]], ScriptedServer]]:
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(kind())


@pytest.fixture
def server(serve: Callable[..., ScriptedServer]) -> ScriptedServer:
    return serve(ScriptedServer)


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[AirportClient]:
    with AirportClient(server.location, "db") as attached:
        yield attached


def frames(server: ScriptedServer) -> list[str]:
    (seen,) = (each for each in server.seen if each.method == "DoExchange")
    return seen.frames


def captured_frames(statement_id: str) -> list[str]:
    """The captured order without what a pyarrow server is not shown: the message that is only a descriptor."""
    (rpc,) = (each for each in statement(statement_id).rpcs if each.method == "DoExchange")
    shown = [each.replace("descriptor+", "") for each in rpc.sequence if each != "client descriptor"]
    return [each for each in shown if not each.startswith("server metadata")]


def people(rows: int) -> pa.Table:
    return pa.table({"id": range(rows), "name": ["n"] * rows, "age": pa.array([1] * rows, pa.int32())})


@pytest.mark.parametrize(
    ("statement_id", "rows", "returning"),
    [
        ("insert-1", 2, False),
        ("insert-3", 5000, False),
        ("insert-4", 0, False),
        ("insert-returning-1", 2, True),
        ("insert-returning-2", 5000, True),
    ],
)
def test_uploads_have_the_captured_frames(
    server: ScriptedServer, client: AirportClient, statement_id: str, rows: int, returning: bool
) -> None:
    changed = client.insert("demo", "people", people(rows), returning=returning)
    assert changed.total_changed == rows
    assert (changed.returned is not None) == returning
    assert not returning or changed.returned.num_rows == rows
    assert frames(server) == captured_frames(statement_id)


def test_upload_schemas_are_the_captured_ones(server: ScriptedServer, client: AirportClient) -> None:
    table = client.table("demo", "people")
    for statement_id, names in (
        ("insert-1", table.column_names),
        ("update-2", ["city", "name", "rowid"]),
        ("delete-1", ["rowid"]),
    ):
        (rpc,) = (each for each in statement(statement_id).rpcs if each.method == "DoExchange")
        assert upload_schema(table, names).equals(rpc.upload[0], check_metadata=True)


def test_no_batch_leaves_before_the_servers_schema(serve: Callable[..., ScriptedServer]) -> None:
    begun = threading.Event()

    class Noting(ScriptedServer):
        def reply_schema(self, schema: pa.Schema) -> pa.Schema:
            begun.set()
            return schema

    def rows() -> Iterator[pa.RecordBatch]:
        assert begun.is_set()
        yield from people(3).to_batches()

    with AirportClient(serve(Noting).location, "db") as client:
        assert client.insert("demo", "people", rows()).total_changed == 3


def test_a_returning_upload_waits_for_each_answer(serve: Callable[..., ScriptedServer]) -> None:
    sent: list[str] = []

    class Noting(ScriptedServer):
        def answer(self, writer: flight.MetadataRecordBatchWriter, batch: pa.RecordBatch, schema: pa.Schema) -> None:
            sent.append("answer")
            super().answer(writer, batch, schema)

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in people(3).to_batches(max_chunksize=1):
            sent.append("batch")
            yield batch

    with AirportClient(serve(Noting).location, "db") as client:
        client.insert("demo", "people", rows(), returning=True)
    assert sent == ["batch", "answer"] * 3


def test_the_scan_below_an_update_runs_while_the_exchange_is_open(
    server: ScriptedServer, client: AirportClient
) -> None:
    def set_age(batch: pa.RecordBatch) -> pa.RecordBatch:
        age = pa.array([32], pa.int32())
        return pa.RecordBatch.from_pydict({"age": age, "rowid": batch.column("rowid").slice(0, 1)})

    is_first = column("id", "BIGINT").eq(1)
    changed = client.update_where("demo", "people", set_age, sets=["age"], reads=["id"], filters=[is_first])
    assert changed.total_changed == 1
    assert [each.method for each in server.seen][-3:] == ["DoExchange", "DoAction", "DoGet"]
    assert frames(server) == captured_frames("update-1")


def test_a_source_that_fails_ends_the_upload_as_a_success_would(server: ScriptedServer, client: AirportClient) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from people(2).to_batches()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.insert("demo", "people", rows())
    assert frames(server)[-2:] == ["client batch[2]", "client half-close"]


class NoCount(ScriptedServer):
    def finish(self, writer: flight.MetadataRecordBatchWriter, changed: int) -> None:
        pass


class CountWithoutKey(ScriptedServer):
    def finish(self, writer: flight.MetadataRecordBatchWriter, changed: int) -> None:
        writer.write_metadata(msgpack.packb({"changed": changed}))


class MoreAfterCount(ScriptedServer):
    def finish(self, writer: flight.MetadataRecordBatchWriter, changed: int) -> None:
        super().finish(writer, changed)
        super().finish(writer, changed)


class FailureAfterCount(ScriptedServer):
    def finish(self, writer: flight.MetadataRecordBatchWriter, changed: int) -> None:
        super().finish(writer, changed)
        raise flight.FlightServerError("the commit failed")


class TwoAnswers(ScriptedServer):
    def answer(self, writer: flight.MetadataRecordBatchWriter, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        super().answer(writer, batch, schema)
        super().answer(writer, batch, schema)


class NarrowAnswers(ScriptedServer):
    def _schema_of(self, descriptor: flight.FlightDescriptor) -> pa.Schema:
        return super()._schema_of(descriptor).remove(1)


@pytest.mark.parametrize(
    "kind", [NoCount, CountWithoutKey, MoreAfterCount, FailureAfterCount, TwoAnswers, NarrowAnswers]
)
def test_an_exchange_that_would_break_the_client_is_found_out(
    serve: Callable[..., ScriptedServer], kind: type[ScriptedServer]
) -> None:
    with AirportClient(serve(kind).location, "db") as client, pytest.raises(ProtocolViolation):
        client.insert("demo", "people", people(1), returning=True)


def test_an_error_of_the_server_arrives_as_it_is(serve: Callable[..., ScriptedServer]) -> None:
    detail = {"exception_type": "ConstraintException", "message": "no"}

    class Refusing(ScriptedServer):
        def finish(self, writer: flight.MetadataRecordBatchWriter, changed: int) -> None:
            raise flight.FlightServerError("no", msgpack.packb(detail))

    with AirportClient(serve(Refusing).location, "db") as client:
        with pytest.raises(flight.FlightServerError) as raised:
            client.insert("demo", "people", people(1))
        assert decode_exception(raised.value) == detail


# On the wire


class Relay:
    """Passes one connection through to a server and keeps what the client sent."""

    def __init__(self, port: int) -> None:
        self.sent = bytearray()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> str:
        self._thread.start()
        return f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=_pump, args=(server, client, bytearray()))
            back.start()
            _pump(client, server, self.sent)
            back.join()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            kept.extend(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def exchange_frames(sent: bytes) -> list[str]:
    """gRPC messages of the last call with data, named as in the captures."""
    streams: dict[int, tuple[bytearray, bool]] = {}
    rest = sent.partition(b"\r\n\r\nSM\r\n\r\n")[2]
    while rest:
        size, kind, flags = int.from_bytes(rest[:3], "big"), rest[3], rest[4]
        number, payload, rest = int.from_bytes(rest[5:9], "big"), rest[9 : 9 + size], rest[9 + size :]
        if kind == 0:
            data, _ = streams.get(number, (bytearray(), False))
            streams[number] = (data + payload, bool(flags & 1))
    data, is_closed = streams[max(streams)]
    found = []
    while data:
        size = int.from_bytes(data[1:5], "big")
        found.append(describe_flight_data(bytes(data[5 : 5 + size])))
        data = data[5 + size :]
    return [*found, "client half-close"] if is_closed else found


def describe_flight_data(message: bytes) -> str:
    """A FlightData message by its fields: 1 descriptor, 2 Arrow message, 1000 body."""
    fields: dict[int, bytes] = {}
    while message:
        tag, message = read_varint(message)
        size, message = read_varint(message)
        fields[tag >> 3], message = message[:size], message[size:]
    parts = ["descriptor"] if 1 in fields else []
    if 2 in fields:
        framed = b"\xff\xff\xff\xff" + len(fields[2]).to_bytes(4, "little") + fields[2] + fields.get(1000, b"")
        parts.append({"schema": "schema", "record batch": "batch"}[pa.ipc.read_message(framed).type])
    return "client " + "+".join(parts)


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, data[index + 1 :]
    raise ValueError("a number that does not end")


def test_the_frames_on_the_wire_are_the_captured_ones(server: ScriptedServer) -> None:
    relay = Relay(server.port)
    with relay as location, AirportClient(location, "db") as client:
        client.insert("demo", "people", people(2))
    (rpc,) = (each for each in statement("insert-1").rpcs if each.method == "DoExchange")
    captured = [each.partition("[")[0] for each in rpc.sequence if each.startswith("client")]
    assert exchange_frames(bytes(relay.sent)) == captured
