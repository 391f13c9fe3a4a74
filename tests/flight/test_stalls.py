"""Uploads whose client falls silent: they hold nothing, block nobody, and end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.catalog.names import TableName
from gateway.settings import LimitSettings
from gateway.wire.tickets import TablePath, encode_path
from tests.airport import AirportClient
from tests.flight.conftest import MemoryService
from tests.flight.memory_changes import Inserts
from tests.flight.writing import refused

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
BATCH = PEOPLE.to_batches()[0]
QUICK = LimitSettings(idle_upload_seconds=0.2)
TEXT = "no batch came for 0.2 s, so the upload was ended; nothing was written"
INSERT = [(b"airport-operation", b"insert"), (b"return-chunks", b"0"), (b"airport-catalog", b"lake")]
Start = Callable[..., MemoryService]


def people_of(service: MemoryService) -> Inserts:
    return service.source.add(Inserts(TableName("lake", "demo", "people"), PEOPLE))  # type: ignore[return-value]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@contextmanager
def exchange(client: flight.FlightClient, *headers: tuple[bytes, bytes]) -> Iterator[tuple[Any, Any]]:
    """An upload that has sent one batch."""
    options = flight.FlightCallOptions(headers=[*INSERT, *headers])
    writer, reader = client.do_exchange(encode_path(TablePath("demo", "people")), options)
    writer.begin(BATCH.schema)
    assert reader.schema is not None
    writer.write_batch(BATCH)
    yield writer, reader
    with suppress(pa.ArrowException, flight.FlightError, OSError):
        writer.close()


def finish(writer: Any, reader: Any) -> bytes:
    writer.done_writing()
    return reader.read_chunk().app_metadata.to_pybytes()  # type: ignore[no-any-return]


@contextmanager
def blocked_scan(people: Inserts, client: flight.FlightClient, *headers: tuple[bytes, bytes]) -> Iterator[None]:
    """A scan on the client's connection that runs until the block ends."""
    go_on = threading.Event()
    people.before_batch = lambda _stream: go_on.wait(60) and None  # type: ignore[assignment,func-returns-value]
    ticket = client.get_flight_info(encode_path(TablePath("demo", "people"))).endpoints[0].ticket
    scan = client.do_get(ticket, flight.FlightCallOptions(headers=list(headers)))
    try:
        wait_until(lambda: len(people.opened) == 1)
        yield
    finally:
        go_on.set()
    assert scan.read_all().num_rows == 3


def test_a_stalled_upload_lets_go_of_its_rows_and_is_refused_when_its_client_wakes(start_service: Start) -> None:
    service = start_service(QUICK)
    people = people_of(service)
    with (
        flight.connect(service.location) as client,
        blocked_scan(people, client),  # another call on the connection, which therefore stays
        exchange(client) as (writer, reader),
    ):
        wait_until(lambda: people.aborts == 1)
        assert service.uploads.stalled() == 1
        assert not service.gate.wait_empty(0, besides=1)
        assert service.gate.wait_empty(0, besides=1 + service.uploads.stalled())  # a drain does not wait for it
        with AirportClient(service.location, "lake") as other:  # nor does another writer
            assert other.insert("demo", "people", BATCH).total_changed == 3
        assert refused(lambda: finish(writer, reader)) == TEXT
        wait_until(lambda: service.uploads.stalled() == 0)
    assert people.commits == 1


def test_a_client_that_stays_silent_loses_its_connection_and_the_call_ends(start_service: Start) -> None:
    service = start_service(QUICK)
    people = people_of(service)
    with flight.connect(service.location) as client, exchange(client) as (writer, reader):
        assert service.gate.wait_empty(60)
        with pytest.raises((pa.ArrowException, flight.FlightError, OSError)):
            finish(writer, reader)
    assert (people.aborts, people.commits) == (1, 0)


def test_an_upload_is_not_idle_while_its_transaction_scans(start_service: Start) -> None:
    service = start_service(QUICK)
    people = people_of(service)
    transaction = service.transactions.begin()
    header = (b"airport-transaction-id", transaction.encode())
    with flight.connect(service.location) as client, blocked_scan(people, client, header):
        with exchange(client, header) as (writer, reader):
            time.sleep(1)  # five times what an idle one is given
            assert people.aborts == 0
            finish(writer, reader)
        assert people.commits == 1
    wait_until(lambda: not service.streams.is_scanning(transaction))


def test_a_stalled_put_is_ended_too(start_service: Start) -> None:
    service = start_service(QUICK)
    people = people_of(service)
    command = {"operation": "insert", "catalog_name": "lake", "schema_name": "demo", "table_name": "people"}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    with flight.connect(service.location) as client:
        upload, _replies = client.do_put(descriptor, BATCH.schema)
        upload.write_batch(BATCH)
        wait_until(lambda: people.aborts == 1)
        assert service.gate.wait_empty(60)
        with pytest.raises((pa.ArrowException, flight.FlightError, OSError)):
            upload.close()
    assert people.commits == 0


@pytest.mark.parametrize("returning", [False, True])
def test_a_batch_over_the_limit_is_refused_by_name(start_service: Start, returning: bool) -> None:
    service = start_service(LimitSettings(batch_bytes=1_000))
    people = people_of(service)
    large = pa.record_batch({"id": pa.array(range(1_000), pa.int64())})
    text = "one batch is larger than 1000 bytes (limits.batch_bytes)"
    with AirportClient(service.location, "lake") as client:
        for uploaded in ([large], [BATCH, large, *[BATCH] * 200]):
            assert text in refused(lambda: client.insert("demo", "people", uploaded, returning=returning))  # noqa: B023
        assert (people.aborts, people.commits) == (2, 0)
        assert client.insert("demo", "people", BATCH).total_changed == 3


def test_a_put_of_a_batch_over_the_limit_is_refused(start_service: Start) -> None:
    service = start_service(LimitSettings(batch_bytes=1_000))
    people = people_of(service)
    command = {"operation": "insert", "catalog_name": "lake", "schema_name": "demo", "table_name": "people"}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    large = pa.record_batch({"id": pa.array(range(1_000), pa.int64())})

    def put() -> None:
        with flight.connect(service.location) as client:
            upload, replies = client.do_put(descriptor, large.schema)
            with upload:
                upload.write_batch(large)
                upload.done_writing()
                replies.read()

    assert "one batch is larger than 1000 bytes" in refused(put)
    assert (people.aborts, people.commits) == (1, 0)
