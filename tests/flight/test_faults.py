"""Uploads that no honest client sends: refused in clear words, nothing written or left behind, and the next works."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from gateway.wire.tickets import TablePath, encode_path
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import batch, numbers, refused, rows_of, running_gateway, staged_files, version_of

# Arrow's own words for an upload that does not even begin.
UNREADABLE = re.compile("the upload cannot be read|no schema that can be read|not valid Arrow data|Invalid flatbuffers")
Send = Callable[[str, str, list[pa.RecordBatch]], object]


def by_exchange(location: str, schema: str, batches: list[pa.RecordBatch], operation: bytes = b"insert") -> bytes:
    headers = [(b"airport-operation", operation), (b"return-chunks", b"0"), (b"airport-catalog", b"lake")]
    with flight.connect(location) as client:
        descriptor = encode_path(TablePath(schema, "n"))
        writer, reader = client.do_exchange(descriptor, flight.FlightCallOptions(headers=headers))
        writer.begin(batches[0].schema)
        with writer:
            _ = reader.schema
            for each in batches:
                writer.write_batch(each)
            writer.done_writing()
            return reader.read_chunk().app_metadata.to_pybytes()  # type: ignore[no-any-return]


def by_put(location: str, schema: str, batches: list[pa.RecordBatch]) -> object:
    command = {"operation": "insert", "catalog_name": CATALOG, "schema_name": schema, "table_name": "n"}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    with flight.connect(location) as client:
        upload, replies = client.do_put(descriptor, batches[0].schema)
        with upload:
            for each in batches:
                upload.write_batch(each)
            upload.done_writing()
            return replies.read()


BOTH = pytest.mark.parametrize("send", [by_exchange, by_put])


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("staging")


@pytest.fixture(scope="module")
def spooling_gateway(warehouse: Path, lake_spark: Spark, staging: Path) -> Iterator[Gateway]:
    with running_gateway(warehouse, lake_spark, staging, memory_rows=2) as running:
        yield running


def text(offsets: list[int], data: bytes) -> pa.Array:
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(packed), pa.py_buffer(data)])


def keys(count: int) -> pa.Array:
    return pa.array(range(100, 100 + count), pa.int64())


INVALID = {
    "bad UTF-8": [keys(1), text([0, 1], b"\xff" + bytes(7))],
    "offsets that go back": [keys(3), text([0, 4, 2, 8], b"abcdefgh")],
    "negative offsets": [keys(2), text([0, -4, 4], b"abcdefgh")],
    "an index beyond the dictionary": [
        keys(1),
        pa.DictionaryArray.from_arrays(pa.array([7], pa.int32()), pa.array(["x"]), safe=False),
    ],
}


@BOTH
def test_invalid_arrow_buffers_are_refused_and_the_next_upload_works(
    send: Send, spooling_gateway: Gateway, lake: Lake, staging: Path
) -> None:
    numbers(lake)
    location = spooling_gateway.location
    honest = batch(k=[200, 201, 202, 203], v=["a", "b", "c", "d"])  # enough to be spooled before the bad one comes
    for arrays in INVALID.values():
        bad = pa.RecordBatch.from_arrays(arrays, names=["k", "v"])
        first = honest.cast(bad.schema) if bad.schema != honest.schema else honest
        words = refused(lambda: send(location, lake.schema, [first, bad]))  # noqa: B023 - called at once
        assert UNREADABLE.search(words), words
        assert staged_files(staging) == []
    assert version_of(lake) == 0
    send(location, lake.schema, [honest.slice(0, 1)])
    assert version_of(lake) == 1


@contextmanager
def corrupting(location: str, old: bytes, new: bytes) -> Iterator[str]:
    """A place that passes everything on to the gateway, with some bytes replaced by as many others."""
    assert len(old) == len(new)
    host, port = location.removeprefix("grpc://").split(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockets: list[socket.socket] = []

        def pump(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 20):
                    target.sendall(data.replace(old, new))
                target.shutdown(socket.SHUT_WR)

        def accept() -> None:
            with suppress(OSError):
                near, _ = listening.accept()
                far = socket.create_connection((host, int(port)))
                sockets.extend((near, far))
                back = threading.Thread(target=pump, args=(far, near))
                back.start()
                pump(near, far)
                back.join()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"grpc://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            for each in sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            accepting.join(60)
            for each in sockets:
                each.close()


def node(rows: int, nulls: int = 0) -> bytes:
    """How a record batch's header tells the length of a column."""
    return struct.pack("<qq", rows, nulls)


MALFORMED: dict[str, tuple[bytes, bytes]] = {
    "a column longer than its buffers": (node(77), node(1 << 40)),
    "a column of negative length": (node(77), node(-77)),
    "more nulls than rows": (node(77), node(77, 1 << 40)),
    "offsets beyond the data": (struct.pack("<ii", 76, 77), struct.pack("<ii", 76, 1 << 30)),
    "a buffer beyond the body": (struct.pack("<q", 77 * 8), struct.pack("<q", 1 << 50)),
    "a schema that is none": (b"\x01\x00\x00\x00k\x00\x00\x00", b"\xff\xff\xff\x7fk\x00\x00\x00"),
}


@BOTH
def test_malformed_messages_are_refused_and_the_next_upload_works(
    send: Send, spooling_gateway: Gateway, lake: Lake, staging: Path
) -> None:
    numbers(lake)
    rows = batch(k=list(range(1_000, 1_077)), v=["x"] * 77)
    for old, new in MALFORMED.values():
        with corrupting(spooling_gateway.location, old, new) as location:
            words = refused(lambda: send(location, lake.schema, [rows]))
        assert UNREADABLE.search(words), words
        assert spooling_gateway.service.gate.wait_empty(60)
        assert staged_files(staging) == []
    assert version_of(lake) == 0
    send(spooling_gateway.location, lake.schema, [rows.slice(0, 1)])
    assert version_of(lake) == 1


@BOTH
def test_a_row_larger_than_a_batch_may_be_is_refused_by_name(
    send: Send, spooling_gateway: Gateway, lake: Lake, staging: Path
) -> None:
    numbers(lake)
    large = batch(k=[100], v=["x" * 100_000_000])
    assert "one batch is larger than 67108864 bytes (limits.batch_bytes)" in refused(
        lambda: send(spooling_gateway.location, lake.schema, [large])
    )
    assert staged_files(staging) == []
    assert version_of(lake) == 0


def test_a_hundred_thousand_batches_of_one_row_are_one_statement(
    start_gateway: Callable[..., Gateway], lake: Lake
) -> None:
    numbers(lake)
    running = start_gateway(lake.warehouse, staging={"memory_rows": 100_000})
    values = [f"value {row}" for row in range(100_000)]
    whole = batch(v=values, rowid=[row % 4 for row in range(100_000)])
    batches = [whole.slice(row, 1) for row in range(whole.num_rows)]
    assert msgpack.unpackb(by_exchange(running.location, lake.schema, batches, b"update")) == {"total_changed": 4}
    with AirportClient(running.location, CATALOG) as client:
        assert [row[1] for row in rows_of(client, lake)] == values[-4:]
    assert version_of(lake) == 1
