"""How each of our errors reaches a client: gRPC code, text and extra information, byte for byte."""

from __future__ import annotations

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
from gateway.flight.boundary import ActionError, CodedError, ErrorForm, errors_as_flight, outcome_of, to_flight
from gateway.wire.status import encode_status
from tests.refusals import decode_status

LEAKS = re.compile(r"/|Traceback|File \"|\.py|line \d")
TEXT = "row_id 99 not found in table 'é'"

# Our class; what pyarrow raises at the client; the gRPC code; the detail; its number; the true code.
CODES = [
    (NotFoundError, pa.ArrowKeyError, "NOT_FOUND", "Python exception: NOT_FOUND", 5, "NOT_FOUND"),
    (RequestError, pa.ArrowInvalid, "INVALID_ARGUMENT", "Python exception: INVALID_ARGUMENT", 3, "INVALID_ARGUMENT"),
    (
        MalformedTicketError,
        pa.ArrowInvalid,
        "INVALID_ARGUMENT",
        "Python exception: INVALID_ARGUMENT",
        3,
        "INVALID_ARGUMENT",
    ),
    (
        UnsupportedError,
        pa.ArrowNotImplementedError,
        "UNIMPLEMENTED",
        "Python exception: UNIMPLEMENTED",
        12,
        "UNIMPLEMENTED",
    ),
    (PreconditionError, flight.FlightServerError, "UNKNOWN", "Failed", 2, "FAILED_PRECONDITION"),
    (ConstraintError, flight.FlightServerError, "UNKNOWN", "Failed", 2, "FAILED_PRECONDITION"),
    (ConflictError, flight.FlightServerError, "UNKNOWN", "Failed", 2, "ABORTED"),
    (OutcomeUnknownError, flight.FlightServerError, "UNKNOWN", "Failed", 2, "UNKNOWN"),
    (UnavailableError, flight.FlightUnavailableError, "UNAVAILABLE", "Unavailable", 14, "UNAVAILABLE"),
    (CancelledError, flight.FlightUnavailableError, "UNAVAILABLE", "Unavailable", 14, "UNAVAILABLE"),
    (DeniedError, flight.FlightUnauthorizedError, "PERMISSION_DENIED", "Unauthorized", 7, "PERMISSION_DENIED"),
    (InternalError, flight.FlightInternalError, "INTERNAL", "Internal", 13, "INTERNAL"),
]


class FailingServer(flight.FlightServerBase):
    """Fails every call with the error it was given."""

    error: BaseException = RequestError("not set")
    has_details = False

    def do_action(self, context: flight.ServerCallContext, _action: flight.Action) -> list[bytes]:
        return self._fail(context)

    def do_put(self, context: flight.ServerCallContext, *_arguments: object) -> None:
        self._fail(context)

    def _fail(self, context: flight.ServerCallContext) -> Any:
        add_trailer = context.add_trailer if self.has_details else None
        with errors_as_flight(ErrorForm.CODED, add_trailer), errors_as_flight(ErrorForm.CODED, add_trailer):
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


@pytest.mark.parametrize(("ours", "theirs", "code", "detail", "number", "truth"), CODES)
def test_each_error_has_a_code_a_text_and_details(
    server: FailingServer,
    client: flight.FlightClient,
    trailers: Trailers,
    ours: type[GatewayError],
    theirs: type[Exception],
    code: str,
    detail: str,
    number: int,
    truth: str,
) -> None:
    """Byte for byte, as a pyarrow client sees them; one of another make reads `grpc-status-details-bin`."""
    server.error = ours(TEXT)
    expected = f"{TEXT}. Detail: {detail}"
    acted = failure_of(act, client)
    assert type(acted) is theirs
    assert str(acted) == expected
    assert trailers.seen["x-arrow-status-message-bin"] == [TEXT.encode()]
    assert trailers.seen["x-arrow-status-detail-bin"] == [detail.encode()]
    sent = failure_of(put, client)
    assert type(sent) is theirs
    assert str(sent) == f"{expected}. gRPC client debug context: {code}:{expected}. Client context: OK"
    # A pyarrow client would take a NOT_FOUND with details for an internal error: it gets none.
    has_own = issubclass(theirs, flight.FlightError)
    assert ("grpc-status-details-bin" in trailers.seen) == has_own
    server.has_details = True
    for call in (act, put):
        trailers.seen.clear()
        failure_of(call, client)
        (details,) = trailers.seen["grpc-status-details-bin"]
        assert decode_status(details) == (number, TEXT, truth)


def test_details_are_what_protobuf_makes_of_them() -> None:
    # Printed by Google's own library for Status{code: 9, message: "é", details: [ErrorInfo{"R", "deltaport"}]}.
    expected = bytes.fromhex(
        "08091202c3a91a3a0a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e4572726f72496e666f"
        "120e0a01521209" + b"deltaport".hex()
    )
    assert encode_status(9, "é", "R") == expected
    long = "x" * 20_000
    assert decode_status(encode_status(2, long, "R")) == (2, long, "R")


@pytest.mark.parametrize("fault", [KeyError("/etc/secret.py"), RuntimeError("/etc/secret.py"), BaseException("x")])
def test_a_fault_is_sent_as_a_reference_only(
    server: FailingServer, client: flight.FlightClient, fault: BaseException
) -> None:
    server.error = fault
    failure = failure_of(act, client)
    assert type(failure) is flight.FlightInternalError
    assert re.fullmatch(r"internal error \(reference [0-9a-f]{8}\)\. Detail: Internal", str(failure))


def test_tracebacks_of_other_errors_stay_as_they_are() -> None:
    coded = to_flight(NotFoundError("gone"), ErrorForm.CODED)
    assert isinstance(coded, CodedError)
    assert traceback.format_exception(coded) == ["NOT_FOUND"]
    assert traceback.format_exception(type(coded), coded, None) == ["NOT_FOUND"]
    try:
        raise KeyError("other")
    except KeyError as other:
        assert "Traceback" in "".join(traceback.format_exception(other))
        assert "Traceback" in "".join(traceback.format_exception(type(other), other, other.__traceback__))


def test_tracebacks_are_wrapped_once() -> None:
    to_flight(NotFoundError("gone"), ErrorForm.CODED)
    wrapped = traceback.format_exception
    to_flight(RequestError("bad"), ErrorForm.CODED)
    assert traceback.format_exception is wrapped


@pytest.mark.parametrize("kind", [PreconditionError, ConflictError, RequestError, NotFoundError, UnsupportedError])
def test_in_streams_sql_sees_the_text_as_invalid_input(kind: type[GatewayError]) -> None:
    sent = to_flight(kind(TEXT), ErrorForm.STREAM)
    assert type(sent) is flight.FlightServerError
    assert str(sent) == TEXT
    assert msgpack.unpackb(sent.extra_info) == {"exception_type": "InvalidInputException", "message": TEXT}


@pytest.mark.parametrize("kind", [PreconditionError, ConflictError, RequestError, NotFoundError, UnsupportedError])
def test_in_actions_sql_sees_the_text_at_once(kind: type[GatewayError]) -> None:
    sent = to_flight(kind(TEXT), ErrorForm.ACTION)
    assert type(sent) is ActionError
    assert str(sent) == TEXT


@pytest.mark.parametrize("form", list(ErrorForm))
def test_an_error_that_was_translated_is_not_translated_again(form: ErrorForm) -> None:
    sent = to_flight(NotFoundError(TEXT), ErrorForm.CODED)
    with pytest.raises(CodedError) as passed, errors_as_flight(form):
        raise sent
    assert passed.value is sent


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (PreconditionError("x"), "refused"),
        (to_flight(NotFoundError("x"), ErrorForm.CODED), "refused"),
        (ConflictError("x"), "retry"),
        (CancelledError("x"), "cancelled"),
        (InternalError("x"), "fault"),
        (KeyError("x"), "fault"),
    ],
)
def test_outcomes_of_calls(error: BaseException | None, outcome: str) -> None:
    assert outcome_of(error) == outcome
