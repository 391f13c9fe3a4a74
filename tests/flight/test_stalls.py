"""Uploads whose client falls silent: they hold nothing, block nobody, and end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.editing import Editors
from gateway.catalog.names import TableName
from gateway.catalog.registry import Catalogs
from gateway.errors import CancelledError
from gateway.flight.exchanges import Exchanges
from gateway.flight.pending_creations import PendingCreations
from gateway.flight.statements import Statements
from gateway.flight.upload_watch import UploadWatch
from gateway.settings import LimitSettings, TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.wire.headers import CallHeaders
from gateway.wire.tickets import TablePath, encode_path
from tests.airport import AirportClient
from tests.doubles import MemorySource, memory_catalog
from tests.flight.conftest import MemoryService
from tests.flight.memory_changes import BatchForms, Inserts, NoScans
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
        assert service.uploads.stalled_count() == 1
        assert not service.gate.wait_empty(0, besides=1)
        assert service.gate.wait_empty(0, besides=1 + service.uploads.stalled_count())  # a drain does not wait for it
        with AirportClient(service.location, "lake") as other:  # nor does another writer
            assert other.insert("demo", "people", BATCH).total_changed == 3
        assert refused(lambda: finish(writer, reader)) == TEXT
        wait_until(lambda: service.uploads.stalled_count() == 0)
    assert people.commits == 1


def test_a_client_that_stays_silent_loses_its_connection_and_the_call_ends(start_service: Start) -> None:
    service = start_service(LimitSettings(idle_upload_seconds=0.2, returned_bytes=1 << 30))
    people = people_of(service)
    with flight.connect(service.location) as client, exchange(client) as (writer, reader):
        assert service.gate.wait_empty(60)
        with pytest.raises((pa.ArrowException, flight.FlightError, OSError)):
            finish(writer, reader)
    assert (people.aborts, people.commits) == (1, 0)


# Clients that send, and do not read the rows that come back

WIDE = pa.table({"id": pa.array(range(64), pa.int64()), "text": ["x" * (1 << 20)] * 64})
RETURNING = [(b"return-chunks", b"1"), (b"airport-catalog", b"lake")]


@contextmanager
def unread_answers(
    service: MemoryService,
    client: flight.FlightClient,
    operation: str,
    upload: pa.Schema,
    batches: list[pa.RecordBatch],
) -> Iterator[tuple[Any, Any]]:
    """A client that sends all its batches, says that these were all, and reads nothing but the schema."""
    options = flight.FlightCallOptions(headers=[*RETURNING, (b"airport-operation", operation.encode())])
    writer, reader = client.do_exchange(encode_path(TablePath("demo", "wide")), options)
    writer.begin(upload)
    assert reader.schema is not None

    def send() -> None:
        with suppress(pa.ArrowException, flight.FlightError, OSError):
            for batch in batches:
                writer.write_batch(batch)
            writer.done_writing()

    sender = threading.Thread(target=send)
    sender.start()
    yield writer, reader
    sender.join()
    with suppress(pa.ArrowException, flight.FlightError, OSError):
        writer.close()


@pytest.mark.parametrize("operation", ["insert", "delete"])
def test_a_client_that_does_not_read_the_rows_it_asked_for_changes_nothing_and_the_call_ends(
    start_service: Start, operation: str
) -> None:
    service = start_service(QUICK)
    wide = service.source.add(BatchForms(TableName("lake", "demo", "wide"), WIDE))
    assert isinstance(wide, BatchForms)
    ids = pa.table({"rowid": pa.array(wide.rows, pa.int64())})
    upload = WIDE if operation == "insert" else ids
    with (
        flight.connect(service.location) as client,
        unread_answers(service, client, operation, upload.schema, upload.to_batches(max_chunksize=1)),
    ):
        wait_until(lambda: wide.aborts == 1)
        assert service.gate.wait_empty(60)
    assert (wide.aborts, wide.commits) == (1, 0)
    assert len(wide.rows) == 64
    with AirportClient(service.location, "lake") as other:
        assert other.delete("demo", "wide", [1, 2]).total_changed == 2


def test_a_put_whose_answer_is_not_read_has_its_one_effect_and_the_call_ends(start_service: Start) -> None:
    service = start_service(LimitSettings(idle_upload_seconds=0.2, returned_bytes=1 << 30))
    wide = service.source.add(BatchForms(TableName("lake", "demo", "wide"), WIDE))
    assert isinstance(wide, BatchForms)
    table = {"catalog_name": "lake", "schema_name": "demo", "table_name": "wide"}
    command = {"operation": "insert", "returning": True, **table}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    with flight.connect(service.location) as client:
        upload, _replies = client.do_put(descriptor, WIDE.schema)
        upload.write_table(WIDE, max_chunksize=8)
        upload.done_writing()
        wait_until(lambda: wide.commits == 1)
        assert service.gate.wait_empty(60)
        with suppress(pa.ArrowException, flight.FlightError, OSError):
            upload.close()
    assert (wide.aborts, wide.commits, len(wide.rows)) == (0, 1, 128)


class DeafClient:
    """The server's end of an exchange whose client takes nothing from it until its connection is cut."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.schema = batches[0].schema
        self._left = iter([SimpleNamespace(data=batch) for batch in batches])
        self._was_cut = threading.Event()

    def read_chunk(self) -> Any:
        return next(self._left)

    def begin(self, schema: pa.Schema) -> None: ...

    def write_metadata(self, _count: bytes) -> None:
        assert self._was_cut.wait(60)
        raise OSError("the connection is gone")

    def disconnect_if_alone(self, _peer: str) -> None:
        self._was_cut.set()


def test_an_exchange_whose_count_is_not_taken_has_its_one_effect_and_ends() -> None:
    source = MemorySource()
    people = source.add(Inserts(TableName("lake", "demo", "people"), PEOPLE))
    assert isinstance(people, Inserts)
    uploads, client = UploadWatch(QUICK, NoScans()), DeafClient([BATCH])
    catalogs, transactions = Catalogs([memory_catalog(source)], "lake"), TransactionManager(TransactionSettings())
    creations = PendingCreations(Editors(catalogs), transactions)
    exchanges = Exchanges(catalogs, Statements(transactions, QUICK), uploads, creations)
    call = Call(CallHeaders(catalog="lake", operation="insert"), peer="peer")
    uploads.start(client)
    try:
        with pytest.raises(CancelledError, match="before its answer; the change is made"):
            exchanges.run(call, encode_path(TablePath("demo", "people")), client, client)
    finally:
        uploads.stop()
    assert (people.aborts, people.commits, len(people.rows)) == (0, 1, 6)


def test_a_client_that_reads_slowly_but_reads_is_served(start_service: Start) -> None:
    service = start_service(LimitSettings(idle_upload_seconds=5))
    wide = service.source.add(BatchForms(TableName("lake", "demo", "wide"), WIDE))
    assert isinstance(wide, BatchForms)
    ids = pa.table({"rowid": pa.array(wide.rows, pa.int64())})
    with (
        flight.connect(service.location) as client,
        unread_answers(service, client, "delete", ids.schema, ids.to_batches(max_chunksize=1)) as (_, reader),
    ):
        rows, reply = 0, b""
        while not reply:
            time.sleep(0.01)
            chunk = reader.read_chunk()
            rows += 0 if chunk.data is None else chunk.data.num_rows
            reply = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
    assert (rows, wide.commits, wide.rows) == (64, 1, {})


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
