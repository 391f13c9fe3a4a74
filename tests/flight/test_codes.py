"""Who asks decides how an error travels: DuckDB's client by SQL class, every other client by gRPC code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import structlog
from pyarrow import flight

from gateway.catalog.names import TableName
from gateway.errors import (
    ConflictError,
    GatewayError,
    InternalError,
    NotFoundError,
    PreconditionError,
    RequestError,
    UnavailableError,
)
from gateway.telemetry import metrics
from gateway.wire.headers import MAX_HEADER_CHARACTERS
from gateway.wire.tickets import TablePath, encode_path
from tests.flight.conftest import MemoryService
from tests.flight.memory_changes import Inserts
from tests.flight.test_rpc import wait_for
from tests.refusals import Refusal, refusal_of

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
PATH = encode_path(TablePath("demo", "people"))
AIRPORT = (b"airport-user-agent", b"airport/20250723")
TEXT = "the table 'people' is in no mood"
Headers = list[tuple[bytes, bytes]]
Rpc = Callable[[flight.FlightClient, Headers], object]

CODES = {
    NotFoundError: ("NOT_FOUND", None),
    RequestError: ("INVALID_ARGUMENT", None),
    PreconditionError: ("UNKNOWN", "FAILED_PRECONDITION"),
    ConflictError: ("UNKNOWN", "ABORTED"),
    UnavailableError: ("UNAVAILABLE", "UNAVAILABLE"),
    InternalError: ("INTERNAL", "INTERNAL"),
}


def options(headers: Headers) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=headers)


def act(client: flight.FlightClient, headers: Headers) -> object:
    body = b'{"schema_name": "demo", "table_name": "people", "row_ids": [1]}'
    return list(client.do_action(flight.Action("delete", body), options(headers)))


def put(client: flight.FlightClient, headers: Headers) -> object:
    command = b'{"operation": "insert", "schema_name": "demo", "table_name": "people"}'
    writer, replies = client.do_put(flight.FlightDescriptor.for_command(command), PEOPLE.schema, options(headers))
    with writer:
        writer.write_table(PEOPLE)
        writer.done_writing()
        return replies.read()


def exchange(client: flight.FlightClient, headers: Headers) -> object:
    operation = [(b"airport-operation", b"insert"), (b"return-chunks", b"0"), *headers]
    writer, reader = client.do_exchange(PATH, options(operation))
    with writer:
        writer.begin(PEOPLE.schema)
        writer.done_writing()
        return reader.read_all()


RPCS: dict[str, Rpc] = {
    "get_flight_info": lambda client, headers: client.get_flight_info(PATH, options(headers)),
    "get_schema": lambda client, headers: client.get_schema(PATH, options(headers)),
    "do_action": act,
    "do_put": put,
    "do_exchange": exchange,
}


class Moody(Inserts):
    """Fails whenever it is looked at."""

    error: GatewayError | None = None

    def current(self) -> Any:
        if self.error is not None:
            raise self.error
        return super().current()

    def insert(self, *arguments: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().insert(*arguments)


@pytest.fixture
def people(service: MemoryService) -> Moody:
    return service.source.add(Moody(TableName("lake", "demo", "people"), PEOPLE))  # type: ignore[return-value]


@pytest.fixture
def plain(service: MemoryService) -> Iterator[flight.FlightClient]:
    with flight.connect(service.location) as connected:
        yield connected


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("rpc", RPCS)
def test_any_client_gets_code_and_text_from_every_call(
    people: Moody, plain: flight.FlightClient, rpc: str, kind: type[GatewayError]
) -> None:
    people.error = kind(TEXT)
    refusal = refusal_of(lambda: RPCS[rpc](plain, []))
    if rpc == "get_schema" and issubclass(kind, PreconditionError | ConflictError | UnavailableError | InternalError):
        # pyarrow knows no Flight errors there; the text is all that it sends.
        assert refusal == Refusal("UNKNOWN", TEXT)
    else:
        assert refusal == Refusal(CODES[kind][0], TEXT, reason=CODES[kind][1])


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("rpc", [name for name in RPCS if name != "do_put"])
def test_duckdb_gets_the_text_in_its_own_ways(
    people: Moody, plain: flight.FlightClient, rpc: str, kind: type[GatewayError]
) -> None:
    people.error = kind(TEXT)
    refusal = refusal_of(lambda: RPCS[rpc](plain, [AIRPORT]))
    assert refusal.text == TEXT
    if rpc in ("do_exchange", "get_flight_info"):
        assert refusal.sql_class == "InvalidInputException"
    else:
        assert (refusal.code, refusal.sql_class) == ("UNKNOWN", None)


@pytest.mark.parametrize("airport", [[], [AIRPORT]])
def test_a_stream_that_fails_reports_it_in_the_same_way(
    people: Moody, plain: flight.FlightClient, airport: Headers
) -> None:
    def fail(_stream: object) -> None:
        raise NotFoundError(TEXT)

    people.before_batch = fail
    ticket = plain.get_flight_info(PATH).endpoints[0].ticket
    refusal = refusal_of(lambda: plain.do_get(ticket, options(airport)).read_all())
    if airport:
        assert refusal == Refusal("UNKNOWN", TEXT, sql_class="InvalidInputException")
    else:
        assert refusal == Refusal("NOT_FOUND", TEXT)


@pytest.mark.parametrize("rpc", RPCS)
@pytest.mark.parametrize("header", [b"airport-catalog", b"x-transaction-id", b"airport-trace-id"])
def test_a_header_that_is_too_long_is_an_invalid_argument(
    people: Moody, plain: flight.FlightClient, rpc: str, header: bytes
) -> None:
    refusal = refusal_of(lambda: RPCS[rpc](plain, [(header, b"x" * (MAX_HEADER_CHARACTERS + 1))]))
    text = f"header {header.decode()} is longer than {MAX_HEADER_CHARACTERS} characters"
    assert refusal == Refusal("INVALID_ARGUMENT", text)
    assert people.commits == 0


def test_an_exchange_with_an_unknown_table_aborts_its_transaction(
    service: MemoryService, plain: flight.FlightClient
) -> None:
    transaction = service.transactions.begin()
    refusal = refusal_of(lambda: exchange(plain, [(b"airport-transaction-id", transaction.encode())]))
    assert refusal == Refusal("NOT_FOUND", "schema 'demo' not found")
    status = service.transactions.status(transaction)
    assert status is not None
    assert status.state.value == "aborted"


def cancelled_exchanges() -> float:
    labels = {"method": "do_exchange", "action": "insert", "outcome": "cancelled"}
    return metrics.REGISTRY.get_sample_value("deltaport_calls_total", labels) or 0


def test_an_exchange_whose_client_left_before_the_answer_is_no_fault(people: Moody, plain: flight.FlightClient) -> None:
    """The commit stands; the call ends as cancelled, and nothing is logged as unexpected."""
    headers = [(b"airport-operation", b"insert"), (b"return-chunks", b"0")]
    writer, reader = plain.do_exchange(PATH, options(headers))
    writer.begin(PEOPLE.schema)
    assert reader.schema is not None

    def leave() -> None:
        reader.cancel()
        wait_for(people.contexts[-1].is_cancelled, "the end of the caller")

    people.after_commit = leave
    before = cancelled_exchanges()
    with structlog.testing.capture_logs() as logged:  # tests log errors alone
        writer.write_table(PEOPLE)
        writer.done_writing()
        wait_for(lambda: cancelled_exchanges() == before + 1, "the end of the call")
    assert logged == []
    assert people.commits == 1
