"""What is acknowledged is what was stored, whatever pieces a client sends its rows in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.lake.writing import merge
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.test_groups import Together
from tests.flight.writing import batch, numbers, refused, rows_of, version_of

SIZES = [(1, 0, 2), (0, 0, 5), (3, 0), (0,), (2_000, 0, 3_000), (1, 0, 0, 1, 0, 1)]


def pieces(sizes: Sequence[int]) -> list[pa.RecordBatch]:
    keys = iter(range(100, 100 + sum(sizes)))
    return [batch(k=[next(keys) for _ in range(size)], v=["new"] * size) for size in sizes]


def exchanged(location: str, lake: Lake, sizes: Sequence[int], *, returning: bool = False) -> tuple[int, int]:
    """The count, and how many rows came back, of an INSERT that sends these batches as they are, the empty ones too."""
    headers = [(b"airport-operation", b"insert"), (b"airport-catalog", CATALOG.encode())]
    headers += [(b"return-chunks", b"1")] if returning else []
    with flight.connect(location) as client:
        descriptor = flight.FlightDescriptor.for_path(lake.schema, "n")
        writer, reader = client.do_exchange(descriptor, flight.FlightCallOptions(headers=headers))
        with writer:
            writer.begin(pieces([0])[0].schema)
            returned = 0
            for piece in pieces(sizes):
                writer.write_batch(piece)
                if returning:
                    returned += reader.read_chunk().data.num_rows
            writer.done_writing()
            count = msgpack.unpackb(reader.read_chunk().app_metadata.to_pybytes())["total_changed"]
        return count, returned


def put(location: str, lake: Lake, sizes: Sequence[int], **command: Any) -> dict[str, Any]:
    target = {"catalog_name": CATALOG, "schema_name": lake.schema, "table_name": "n", "operation": "insert"}
    with flight.connect(location) as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({**target, **command}).encode())
        writer, replies = client.do_put(descriptor, pieces([0])[0].schema)
        with writer:
            for piece in pieces(sizes):
                writer.write_batch(piece)
            writer.done_writing()
            reply: dict[str, Any] = msgpack.unpackb(replies.read().to_pybytes())
        return reply


def stored(client: AirportClient, lake: Lake) -> int:
    return sum(1 for row in rows_of(client, lake) if row[1] == "new")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_behind_an_empty_batch_are_stored(
    gateway: Gateway, client: AirportClient, lake: Lake, sizes: Sequence[int]
) -> None:
    numbers(lake)
    assert exchanged(gateway.location, lake, sizes) == (sum(sizes), 0)
    assert stored(client, lake) == sum(sizes)


def test_rows_behind_an_empty_batch_are_returned_and_stored(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    assert exchanged(gateway.location, lake, (1, 0, 2), returning=True) == (3, 3)
    reply = put(gateway.location, lake, (1, 0, 2), returning=True)
    assert reply["affected_rows"] == 3
    assert pa.ipc.open_stream(reply["returning_data"]).read_all().num_rows == 3
    assert stored(client, lake) == 6


def test_empty_batches_take_no_neighbours_rows_along(
    gateway: Gateway, client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    together = Together(gateway, lake, monkeypatch)

    def one_row_and_nothing(_client: AirportClient) -> int:
        return exchanged(gateway.location, lake, (1, 0))[0]

    assert [future.result() for future in together.run(*[one_row_and_nothing] * 12)] == [1] * 12
    assert stored(client, lake) == 12


def test_rows_that_do_not_reach_spark_are_no_success(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    monkeypatch.setattr(merge, "_check_complete", _one_less(merge._check_complete))
    text = refused(lambda: client.insert(lake.schema, "n", batch(k=[10, 11], v=["new", "new"])))
    assert text.startswith("Spark was given 2 of 3 rows; nothing was written")
    assert version_of(lake) == 0


def _one_less(check: Any) -> Any:
    return lambda frame, rows: check(frame, rows + 1)


@pytest.mark.parametrize("statement", ["insert", "update", "delete"])
def test_a_commit_that_holds_fewer_rows_than_it_should_is_taken_back(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    lake.numbers("n", 4, properties={"delta.enableDeletionVectors": "true"})
    before, version = rows_of(client, lake), version_of(lake)
    original = merge.rows_in_memory
    monkeypatch.setattr(merge, "rows_in_memory", lambda session, rows, types: original(session, rows.slice(1), types))
    works = {
        "insert": lambda: client.insert(lake.schema, "n", batch(k=[10, 11], v=["new", "new"])),
        "update": lambda: client.update(lake.schema, "n", batch(v=["x", "y"], rowid=[1, 2]), sets=["v"]),
        "delete": lambda: client.delete(lake.schema, "n", [1, 2]),
    }
    assert "Spark wrote other rows than it was given; that was taken back" in refused(works[statement])
    assert rows_of(client, lake) == before
    assert version_of(lake) == version + 2
    monkeypatch.undo()
    works[statement]()
    assert rows_of(client, lake) != before


def test_clients_that_send_empty_batches_at_once_are_all_counted_right(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    with ThreadPoolExecutor(6) as threads:
        counts = list(threads.map(lambda sizes: exchanged(gateway.location, lake, sizes)[0], [(1, 0), (0, 1)] * 3))
    assert counts == [1] * 6
    assert stored(client, lake) == 6
