"""How each of our errors reaches a client: gRPC code, text and extra information, byte for byte."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    DeniedError,
    GatewayError,
    InternalError,
    MalformedTicketError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    RequestError,
    UnavailableError,
    UnsupportedError,
)
from gateway.flight.boundary import ActionError, CodedError, Path, errors_as_flight, outcome_of, to_flight

LEAKS = re.compile(r"/|Traceback|File \"|\.py|line \d")
TEXT = "row_id 99 not found in table 'é'"

# Our class; what pyarrow raises at the client; the gRPC code; the detail; the code in the extra information.
PLAIN = [
    (NotFoundError, pa.ArrowKeyError, "NOT_FOUND", "2"),
    (RequestError, pa.ArrowInvalid, "INVALID_ARGUMENT", "4"),
    (MalformedTicketError, pa.ArrowInvalid, "INVALID_ARGUMENT", "4"),
    (UnsupportedError, pa.ArrowNotImplementedError, "UNIMPLEMENTED", "10"),
]
NAMED = [
    (PreconditionError, flight.FlightServerError, "UNKNOWN", "Failed", "FAILED_PRECONDITION"),
    (ConstraintError, flight.FlightServerError, "UNKNOWN", "Failed", "FAILED_PRECONDITION"),
    (ConflictError, flight.FlightServerError, "UNKNOWN", "Failed", "ABORTED"),
    (OutcomeUnknownError, flight.FlightServerError, "UNKNOWN", "Failed", "UNKNOWN"),
    (UnavailableError, flight.FlightUnavailableError, "UNAVAILABLE", "Unavailable", "UNAVAILABLE"),
    (CancelledError, flight.FlightUnavailableError, "UNAVAILABLE", "Unavailable", "UNAVAILABLE"),
    (DeniedError, flight.FlightUnauthorizedError, "PERMISSION_DENIED", "Unauthorized", "PERMISSION_DENIED"),
    (InternalError, flight.FlightInternalError, "INTERNAL", "Internal", "INTERNAL"),
]


class FailingServer(flight.FlightServerBase):
    """Fails every call with the error it was given."""

    error: BaseException = RequestError("not set")

    def do_action(self, _context: flight.ServerCallContext, _action: flight.Action) -> list[bytes]:
        return self._fail()

    def do_put(self, *_arguments: object) -> None:
        self._fail()

    def _fail(self) -> Any:
        with errors_as_flight(Path.JSON), errors_as_flight(Path.JSON):
            raise self.error


class Trailers(flight.ClientMiddlewareFactory, flight.ClientMiddleware):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[str | bytes]] = {}

    def start_call(self, _info: flight.CallInfo) -> Trailers:
        return self

    def received_headers(self, headers: dict[str, list[str | bytes]]) -> None:
        self.seen.update(headers)


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer("grpc://127.0.0.1:0") as running:
        yield running


@pytest.fixture
def trailers() -> Trailers:
    return Trailers()


@pytest.fixture
def client(server: FailingServer, trailers: Trailers) -> Iterator[flight.FlightClient]:
    with flight.connect(f"grpc://127.0.0.1:{server.port}", middleware=[trailers]) as connected:
        yield connected


def act(client: flight.FlightClient) -> None:
    list(client.do_action(flight.Action("delete", b"{}")))


def put(client: flight.FlightClient) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"{}"), pa.schema([("a", pa.int64())]))
    writer.close()


def failure_of(call: Callable[[flight.FlightClient], None], client: flight.FlightClient) -> Exception:
    with pytest.raises((flight.FlightError, pa.ArrowException)) as failed:
        call(client)
    assert not LEAKS.search(str(failed.value)), str(failed.value)
    return failed.value


@pytest.mark.parametrize(("ours", "theirs", "code", "status"), PLAIN)
def test_a_code_that_python_can_raise_arrives_as_that_code(
    server: FailingServer,
    client: flight.FlightClient,
    trailers: Trailers,
    ours: type[GatewayError],
    theirs: type[Exception],
    code: str,
    status: str,
) -> None:
    server.error = ours(TEXT)
    expected = f"{TEXT}. Detail: Python exception: {code}"
    acted = failure_of(act, client)
    assert type(acted) is theirs
    assert acted.args == (expected,)
    assert trailers.seen["x-arrow-status"] == [status]
    assert trailers.seen["x-arrow-status-message-bin"] == [TEXT.encode()]
    assert trailers.seen["x-arrow-status-detail-bin"] == [f"Python exception: {code}".encode()]
    sent = failure_of(put, client)
    assert type(sent) is theirs
    assert sent.args == (f"{expected}. gRPC client debug context: {code}:{expected}. Client context: OK",)


@pytest.mark.parametrize(("ours", "theirs", "code", "detail", "named"), NAMED)
def test_other_codes_are_named_in_the_extra_information(
    server: FailingServer,
    client: flight.FlightClient,
    trailers: Trailers,
    ours: type[GatewayError],
    theirs: type[flight.FlightError],
    code: str,
    detail: str,
    named: str,
) -> None:
    server.error = ours(TEXT)
    expected = f"{TEXT}. Detail: {detail}"
    acted = failure_of(act, client)
    assert type(acted) is theirs
    assert str(acted) == expected
    assert json.loads(acted.extra_info) == {"code": named, "message": TEXT}
    assert trailers.seen["x-arrow-status-message-bin"] == [TEXT.encode()]
    sent = failure_of(put, client)
    assert type(sent) is theirs
    assert str(sent) == f"{expected}. gRPC client debug context: {code}:{expected}. Client context: OK"
    assert json.loads(sent.extra_info) == {"code": named, "message": TEXT}


@pytest.mark.parametrize("fault", [KeyError("/etc/secret.py"), RuntimeError("/etc/secret.py"), BaseException("x")])
def test_a_fault_is_told_as_a_reference_only(
    server: FailingServer, client: flight.FlightClient, fault: BaseException
) -> None:
    server.error = fault
    told = failure_of(act, client)
    assert type(told) is flight.FlightInternalError
    assert re.fullmatch(r"internal error \(reference [0-9a-f]{8}\)\. Detail: Internal", str(told))


def test_tracebacks_of_other_errors_stay_as_they_are() -> None:
    coded = to_flight(NotFoundError("gone"), Path.JSON)
    assert isinstance(coded, CodedError)
    assert traceback.format_exception(coded) == ["NOT_FOUND"]
    assert traceback.format_exception(type(coded), coded, None) == ["NOT_FOUND"]
    try:
        raise KeyError("other")
    except KeyError as other:
        assert "Traceback" in "".join(traceback.format_exception(other))
        assert "Traceback" in "".join(traceback.format_exception(type(other), other, other.__traceback__))


def test_tracebacks_are_wrapped_once() -> None:
    to_flight(NotFoundError("gone"), Path.JSON)
    wrapped = traceback.format_exception
    to_flight(RequestError("bad"), Path.JSON)
    assert traceback.format_exception is wrapped


@pytest.mark.parametrize("kind", [PreconditionError, ConflictError, RequestError, NotFoundError, UnsupportedError])
def test_in_streams_sql_sees_the_text_as_invalid_input(kind: type[GatewayError]) -> None:
    told = to_flight(kind(TEXT), Path.STREAM)
    assert type(told) is flight.FlightServerError
    assert str(told) == TEXT
    assert msgpack.unpackb(told.extra_info) == {"exception_type": "InvalidInputException", "message": TEXT}


@pytest.mark.parametrize("kind", [PreconditionError, ConflictError, RequestError, NotFoundError, UnsupportedError])
def test_in_actions_sql_sees_the_text_at_once(kind: type[GatewayError]) -> None:
    told = to_flight(kind(TEXT), Path.ACTION)
    assert type(told) is ActionError
    assert str(told) == TEXT


@pytest.mark.parametrize("path", list(Path))
def test_an_error_that_was_told_is_not_told_again(path: Path) -> None:
    told = to_flight(NotFoundError(TEXT), Path.JSON)
    with pytest.raises(CodedError) as passed, errors_as_flight(path):
        raise told
    assert passed.value is told


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (PreconditionError("x"), "refused"),
        (to_flight(NotFoundError("x"), Path.JSON), "refused"),
        (ConflictError("x"), "retry"),
        (CancelledError("x"), "cancelled"),
        (InternalError("x"), "fault"),
        (KeyError("x"), "fault"),
    ],
)
def test_outcomes_of_calls(error: BaseException | None, outcome: str) -> None:
    assert outcome_of(error) == outcome
