"""The RPC layer over in-memory tables: what each call answers, and how it fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.catalog.capabilities import ColumnStatistics
from gateway.errors import ConstraintError, DeniedError, GatewayError, InternalError, UnavailableError
from gateway.settings import LimitSettings
from gateway.wire.tickets import TablePath, encode_path
from tests.airport import AirportClient, decode_exception
from tests.airport import requests as bodies
from tests.flight.conftest import MemoryService

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": pa.array(["Ann", "Bob", None], pa.string_view())})
LEAKS = re.compile(r"/|Traceback|File \"|\.py|SELECT|0x[0-9a-f]{6}")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    gave_up = threading.Event()
    for _ in range(200):
        if condition():
            return
        gave_up.wait(0.05)
    pytest.fail(f"never came: {what}")


@pytest.fixture
def plain(service: MemoryService) -> Iterator[flight.FlightClient]:
    with flight.connect(service.location) as connected:
        yield connected


def call(client: flight.FlightClient, action: str, body: bytes = b"") -> bytes:
    (result,) = client.do_action(flight.Action(action, body))
    return result.body.to_pybytes()


def refusal(work: Callable[[], object]) -> str:
    """The message of a refused call, checked to be short and to leak nothing."""
    with pytest.raises((flight.FlightError, pa.ArrowException)) as refused:
        work()
    message = str(refused.value).split(". gRPC client debug context")[0]
    assert len(message) < 250, message
    assert not LEAKS.search(message.replace("grpc://", "")), message
    return message


def test_a_listed_table_is_scanned_in_full_width(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE)
    scanned = memory_client.scan("demo", "people", ["name"])
    assert scanned.rows() == [{"name": "Ann"}, {"name": "Bob"}, {"name": None}]
    assert scanned.batches[0].schema.names == ["id", "name", "rowid"]
    assert scanned.batches[0].column("id").null_count == 3
    assert scanned.progress == [0.5]


def test_counting_asks_for_the_rowid_alone(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE)
    assert memory_client.scan("demo", "people", []).num_rows == 3


def test_every_endpoint_is_read(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE).endpoints = 3
    scanned = memory_client.scan("demo", "people")
    assert (scanned.endpoints, scanned.num_rows) == (3, 9)


def test_a_table_without_rows_to_read_has_no_endpoint(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE).endpoints = 0
    assert memory_client.scan("demo", "people").num_rows == 0


def test_scans_of_one_transaction_read_one_version(service: MemoryService, memory_client: AirportClient) -> None:
    people = service.add("demo", "people", PEOPLE)
    with memory_client.begin() as transaction:
        assert memory_client.scan("demo", "people", transaction=transaction).num_rows == 3
        people.versions.append(PEOPLE.slice(0, 1))
        assert memory_client.scan("demo", "people", transaction=transaction).num_rows == 3
    assert memory_client.scan("demo", "people").num_rows == 1


def test_time_travel_reads_the_old_rows_in_the_old_shape(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE.select(["id"]), PEOPLE)
    old = memory_client.flight_info("demo", "people", ("VERSION", 0))
    assert old.column_names == ["id"]
    assert not old.has_statistics
    assert memory_client.scan("demo", "people", ["id"], at=("VERSION", 0)).num_rows == 3


def test_a_client_with_the_old_schema_gets_rows_of_the_old_shape(service: MemoryService) -> None:
    people = service.add("demo", "people", PEOPLE)
    with AirportClient(service.location, "lake") as old, AirportClient(service.location, "lake") as new:
        assert old.table("demo", "people").column_names == ["id", "name"]
        people.versions.append(PEOPLE.select(["name"]).append_column("x", pa.array([1, 2, 3])))
        assert old.scan("demo", "people", ["name"]).batches[0].schema.names == ["id", "name", "rowid"]
        assert new.scan("demo", "people", ["x"]).rows() == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_a_stamp_nobody_can_explain_says_to_attach_again(service: MemoryService, plain: flight.FlightClient) -> None:
    service.add("demo", "people", PEOPLE)
    descriptor = flight.FlightDescriptor.for_path("demo", "people", ".0-0123456789abcdef")
    body = bodies.endpoints(descriptor, [0], "")
    assert "attach again" in refusal(lambda: call(plain, "endpoints", body))


def test_statistics_are_of_the_columns_own_type(service: MemoryService, memory_client: AirportClient) -> None:
    people = service.add("demo", "people", PEOPLE)
    people.known["id"] = ColumnStatistics(pa.scalar(1, pa.int64()), pa.scalar(3, pa.int64()), may_have_null=False)
    known = memory_client.column_statistics("demo", "people", "id")
    assert (known["min"], known["max"], known["has_null"]) == (1, 3, False)
    unknown = memory_client.column_statistics("demo", "people", "name")
    assert (unknown["min"], unknown["max"]) == ("", "\U0010ffff" * 2)
    assert unknown["has_null"]


def test_flight_alone_is_enough_to_read_a_table(service: MemoryService, plain: flight.FlightClient) -> None:
    service.add("demo", "people", PEOPLE)
    descriptor = encode_path(TablePath("demo", "people"))
    info = plain.get_flight_info(descriptor)
    assert info.descriptor == descriptor
    assert info.total_records == 3
    read = plain.do_get(info.endpoints[0].ticket).read_all()
    assert read.column("name").to_pylist() == ["Ann", "Bob", None]
    assert plain.get_schema(descriptor).schema.names == ["id", "name", "rowid"]


def test_flights_are_listed_and_can_be_narrowed(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE)
    service.add("sales", "orders", PEOPLE)
    assert len(memory_client.flights()) == 2
    (found,) = memory_client.flights(b"SALES.")
    assert memory_client.take_flight(found.descriptor, ["id"]).num_rows == 3


def test_catalogs_are_listed_as_databases(service: MemoryService, memory_client: AirportClient) -> None:
    service.add("demo", "people", PEOPLE)
    assert memory_client.databases().rows() == [{"database_name": "lake", "description": "", "schemas": 1, "tables": 1}]


def test_actions_are_listed(plain: flight.FlightClient) -> None:
    listed = {action.type for action in plain.list_actions()}
    assert {"list_schemas", "catalog_version", "create_transaction", "endpoints", "flight_info"} <= listed


@pytest.mark.parametrize(
    ("action", "body", "words"),
    [
        ("nonsense", b"", "unknown action 'nonsense'"),
        ("list_schemas", b"\xc1", "not valid msgpack"),
        ("list_schemas", b"", "not valid msgpack"),
        ("list_schemas", msgpack.packb([1]), "must be a msgpack map"),
        ("list_schemas", msgpack.packb({"catalog_name": "nope"}), "catalog 'nope' not found; this gateway has: lake"),
        ("list_schemas", msgpack.packb({"catalog_name": 7}), "field 'catalog_name' must be text"),
        ("catalog_version", msgpack.packb({"catalog_name": "x" * 10_000}), "not found"),
        ("endpoints", msgpack.packb({}), "field 'parameters' must be a map"),
        ("endpoints", msgpack.packb({"descriptor": b"\xff\xff", "parameters": {}}), "descriptor cannot be read"),
        ("flight_info", msgpack.packb({"descriptor": b"x"}), "descriptor cannot be read"),
        ("column_statistics", msgpack.packb({"column_name": "x"}), "field 'flight_descriptor' is missing"),
    ],
)
def test_a_bad_request_is_refused_at_once_for_its_defect(
    plain: flight.FlightClient, action: str, body: bytes, words: str
) -> None:
    assert words in refusal(lambda: call(plain, action, body))


@pytest.mark.parametrize(
    ("schema", "table", "words"),
    [
        ("demo", "nope", "table 'demo.nope' not found"),
        ("nope", "people", "schema 'nope' not found"),
        ("..", "people", "must not start with a dot"),
        ("demo", "a\0b", "control characters"),
        ("demo", "peo\\ple", "must not hold a slash"),
        ("demo", "_delta_log", "must not start with a dot or an underscore"),
    ],
)
def test_a_bad_name_is_refused_by_its_rule(
    service: MemoryService, plain: flight.FlightClient, schema: str, table: str, words: str
) -> None:
    service.add("demo", "people", PEOPLE)
    body = bodies.endpoints(flight.FlightDescriptor.for_path(schema, table), [0], "")
    assert words in refusal(lambda: call(plain, "endpoints", body))
    assert words in refusal(lambda: plain.get_flight_info(flight.FlightDescriptor.for_path(schema, table)))


@pytest.mark.parametrize(
    ("filters", "columns", "at", "words"),
    [
        ("not json", [0], ("", ""), "filter"),
        ('{"filters": 3}', [0], ("", ""), "filter"),
        ("", [2], ("", ""), "column_ids goes beyond the table's 2 columns"),
        ("", [0], ("VERSION", "7"), "no version 7"),
        ("", [0], ("VERSION", "tag"), "'tag' is not a version"),
        ("", [0], ("EPOCH", "1"), "AT takes VERSION or TIMESTAMP"),
    ],
)
def test_a_bad_scan_is_refused_for_its_defect(
    service: MemoryService,
    plain: flight.FlightClient,
    filters: str,
    columns: list[int],
    at: tuple[str, str],
    words: str,
) -> None:
    service.add("demo", "people", PEOPLE)
    body = bodies.endpoints(encode_path(TablePath("demo", "people")), columns, filters, at_unit=at[0], at_value=at[1])
    assert words in refusal(lambda: call(plain, "endpoints", body))


@pytest.mark.parametrize("ticket", [b"", b"\xc1", b"databases2", msgpack.packb([1, 2]), b"x" * 100_000])
def test_a_foreign_ticket_is_refused(plain: flight.FlightClient, ticket: bytes) -> None:
    assert "ticket" in refusal(lambda: plain.do_get(flight.Ticket(ticket)).read_all())


def test_a_body_over_the_limit_is_refused(start_service: Callable[..., MemoryService]) -> None:
    small = start_service(limits=LimitSettings(action_bytes=100))
    with flight.connect(small.location) as plain:
        assert "larger than 100 bytes" in refusal(lambda: call(plain, "list_schemas", b"x" * 101))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ConstraintError("no"), "ConstraintException", "no"),
        (DeniedError("you may not read this"), "PermissionException", "you may not read this"),
        (InternalError("table 'demo.people': broken"), "InvalidInputException", "table 'demo.people': broken"),
        (UnavailableError("later"), "InvalidInputException", "later"),
    ],
)
def test_a_failing_stream_gives_sql_the_class_and_the_text(
    service: MemoryService, memory_client: AirportClient, error: GatewayError, kind: str, text: str
) -> None:
    def fail(_stream: object) -> None:
        raise error

    service.add("demo", "people", PEOPLE).before_batch = fail
    with pytest.raises(flight.FlightError) as failed:
        memory_client.scan("demo", "people")
    assert decode_exception(failed.value) == {"exception_type": kind, "message": text}


def test_a_fault_is_sent_as_a_reference_and_nothing_else(service: MemoryService, memory_client: AirportClient) -> None:
    class PanicException(BaseException):
        """As the native reader's panics are."""

    def fail(_stream: object) -> None:
        raise PanicException("secret detail in /var/lib/secret.py")

    service.add("demo", "people", PEOPLE).before_batch = fail
    message = refusal(lambda: memory_client.scan("demo", "people"))
    assert re.search(r"internal error \(reference [0-9a-f]{8}\)", message)
    assert memory_client.describe("demo", "people").column_names == ["id", "name"]


def test_a_client_that_walks_away_releases_its_scan(service: MemoryService, memory_client: AirportClient) -> None:
    people = service.add("demo", "people", pa.concat_tables([PEOPLE] * 1000))
    people.rows_per_batch = 1
    assert memory_client.scan("demo", "people", limit=5).num_rows >= 5
    wait_for(lambda: len(service.streams) == 0, "the end of the scan")
    assert people.opened[0].closed.is_set()


def test_a_cancelled_scan_that_blocks_is_closed(service: MemoryService) -> None:
    people = service.add("demo", "people", PEOPLE)
    blocked = threading.Event()

    def block(stream: object) -> None:
        blocked.set()
        stream.closed.wait(20)  # type: ignore[attr-defined]

    people.before_batch = block
    with flight.connect(service.location) as plain:
        info = plain.get_flight_info(encode_path(TablePath("demo", "people")))
        reader = plain.do_get(info.endpoints[0].ticket)
        assert blocked.wait(20)
        reader.cancel()
    wait_for(lambda: len(service.streams) == 0, "the end of the scan")
    assert people.opened[0].closed.is_set()


def test_a_client_that_stops_reading_loses_its_scan(start_service: Callable[..., MemoryService]) -> None:
    service = start_service(idle_reader_seconds=0.2)
    wide = pa.table({"text": pa.array(["x" * 1_000_000] * 200, pa.string_view())})
    people = service.add("demo", "people", wide)
    people.rows_per_batch = 1
    with flight.connect(service.location) as plain:
        info = plain.get_flight_info(encode_path(TablePath("demo", "people")))
        reader = plain.do_get(info.endpoints[0].ticket)
        reader.read_chunk()
        wait_for(lambda: bool(people.opened and people.opened[0].closed.is_set()), "the idle scan's end")
        with pytest.raises(flight.FlightUnavailableError, match="no batch was taken"):
            reader.read_all()


def test_beyond_the_slots_scans_wait_and_then_are_refused_as_unavailable(
    start_service: Callable[..., MemoryService],
) -> None:
    service = start_service(concurrent=1, wait_seconds=0.3)
    people = service.add("demo", "people", PEOPLE)
    go_on = threading.Event()
    people.before_batch = lambda _stream: go_on.wait(20) and None  # type: ignore[assignment,func-returns-value]
    with flight.connect(service.location) as plain:
        ticket = plain.get_flight_info(encode_path(TablePath("demo", "people"))).endpoints[0].ticket
        first = plain.do_get(ticket)
        wait_for(lambda: len(people.opened) == 1, "the first scan")
        with pytest.raises(flight.FlightUnavailableError, match="all 1 scans are taken"):
            plain.do_get(ticket).read_all()
        go_on.set()
        assert first.read_all().num_rows == 3
        assert plain.do_get(ticket).read_all().num_rows == 3


def test_other_calls_are_answered_while_a_scan_blocks(service: MemoryService, memory_client: AirportClient) -> None:
    go_on = threading.Event()
    people = service.add("demo", "people", PEOPLE)
    people.before_batch = lambda _stream: go_on.wait(20) and None  # type: ignore[assignment,func-returns-value]
    with flight.connect(service.location) as plain:
        ticket = plain.get_flight_info(encode_path(TablePath("demo", "people"))).endpoints[0].ticket
        reader = plain.do_get(ticket)
        wait_for(lambda: len(people.opened) == 1, "the scan")
        assert memory_client.describe("demo", "people").column_names == ["id", "name"]
        go_on.set()
        assert reader.read_all().num_rows == 3


def test_a_draining_gateway_refuses_new_calls_and_lets_running_ones_end(
    service: MemoryService, memory_client: AirportClient
) -> None:
    go_on = threading.Event()
    people = service.add("demo", "people", PEOPLE)
    people.before_batch = lambda _stream: go_on.wait(20) and None  # type: ignore[assignment,func-returns-value]
    with flight.connect(service.location) as plain:
        ticket = plain.get_flight_info(encode_path(TablePath("demo", "people"))).endpoints[0].ticket
        reader = plain.do_get(ticket)
        wait_for(lambda: len(people.opened) == 1, "the scan")
        service.gate.close()
        assert "shutting down" in refusal(lambda: memory_client.describe("demo", "people"))
        assert not service.gate.wait_empty(0.01)
        go_on.set()
        assert reader.read_all().num_rows == 3
        assert service.gate.wait_empty(20)


def test_a_table_dropped_by_others_is_not_found_and_forgotten(
    service: MemoryService, memory_client: AirportClient
) -> None:
    people = service.add("demo", "people", PEOPLE)
    memory_client.table("demo", "people")
    people.gone = True
    del service.source.found["demo", "people"]
    assert "table 'demo.people' not found" in refusal(lambda: memory_client.scan("demo", "people"))
    assert service.catalog.listing().tables == {}


def test_a_table_without_any_ability_to_change_refuses_writes(
    service: MemoryService, memory_client: AirportClient
) -> None:
    service.add("demo", "people", PEOPLE)
    rows = PEOPLE.to_batches()[0]
    assert "table 'people' does not support INSERT operations" in refusal(
        lambda: memory_client.insert("demo", "people", rows)
    )
    assert "table does not support DELETE operations" in refusal(lambda: memory_client.delete("demo", "people", [1]))
