"""The Flight server: forwards each call to its room, decides nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pyarrow as pa
import structlog
from pyarrow import flight

from gateway.access.authentication import Authenticator, TrustEverybody
from gateway.catalog.calls import Call
from gateway.flight.actions import Actions
from gateway.flight.admission import KEY, CallMiddlewareFactory, Gate, authenticated, call_of
from gateway.flight.boundary import AddTrailer, ErrorForm, as_python_error, errors_as_flight, outcome_of
from gateway.flight.browsing import DATABASES_SHAPE, Browsing
from gateway.flight.connections import close_connection
from gateway.flight.exchanges import Exchanges, operation_label
from gateway.flight.puts import Puts
from gateway.flight.scans import Scans
from gateway.telemetry import metrics
from gateway.wire.tickets import DATABASES_TICKET

log = structlog.get_logger(__name__)


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(
        self,
        location: str,
        actions: Actions,
        browsing: Browsing,
        scans: Scans,
        exchanges: Exchanges,
        puts: Puts,
        gate: Gate,
        authenticator: Authenticator | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        """With a certificate and its key, both PEM texts, the location is one of TLS."""
        certificates = None if certificate is None else [certificate]
        super().__init__(location, tls_certificates=certificates, middleware={KEY: CallMiddlewareFactory()})
        self._actions = actions
        self._browsing = browsing
        self._scans = scans
        self._exchanges = exchanges
        self._puts = puts
        self._gate = gate
        self._authenticator = authenticator or TrustEverybody()

    def disconnect(self, peer: str) -> None:
        """End a peer's connection, and with it its calls: those that wait for their client end in no other way."""
        log.warning("connection_closed", peer=peer, found=close_connection(self.port, peer))

    def disconnect_if_alone(self, peer: str) -> None:
        """The same for a peer with one call; others on the connection would end with it."""
        if self._gate.call_count(peer) == 1:
            self.disconnect(peer)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._answering("list_flights", context) as call:
            return iter(list(self._browsing.flights(call, criteria)))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with self._answering("get_flight_info", context) as call:
            return self._browsing.describe_flight(call, descriptor)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        try:
            with self._answering("get_schema", context) as call:
                return flight.SchemaResult(self._browsing.schema(call, descriptor))
        except flight.FlightError as error:
            raise as_python_error(error) from None

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        if ticket.ticket == DATABASES_TICKET:
            with self._answering("do_get", context) as call:
                return flight.GeneratorStream(DATABASES_SHAPE, iter([self._browsing.databases(call)]))
        call = call_of(context)
        with _errors_translated(call, context.add_trailer), _recorded("do_get", call, failures_only=True):
            call = authenticated(call, self._authenticator)
            schema, options, batches = self._scans.stream(call, ticket.ticket)
        return flight.GeneratorStream(schema, self._streaming(call, context, batches), options)

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        with self._answering("list_actions", context):
            return self._actions.descriptions()

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        body = b"" if action.body is None else action.body.to_pybytes()
        with self._answering("do_action", context, self._actions.label(action.type), ErrorForm.ACTION) as call:
            return [self._actions.run(call, action.type, body)]

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with self._answering("do_put", context, form=ErrorForm.CODED) as call:
            self._puts.put(call, descriptor, reader, writer)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        operation = operation_label(call_of(context).headers.operation)
        with self._answering("do_exchange", context, operation) as call:
            self._exchanges.run(call, descriptor, reader, writer)

    @contextlib.contextmanager
    def _answering(
        self, method: str, context: flight.ServerCallContext, action: str = "", form: ErrorForm = ErrorForm.STREAM
    ) -> Iterator[Call]:
        """Around one call that is not a stream."""
        call = call_of(context)
        with _errors_translated(call, context.add_trailer, form), _recorded(method, call, action):
            call = authenticated(call, self._authenticator)
            with self._gate.admit(call.peer):
                yield call

    def _streaming(
        self, call: Call, context: flight.ServerCallContext, batches: Iterator[tuple[pa.RecordBatch, bytes]]
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """The batches, which record themselves how they end."""
        is_read = True

        def add_trailer(name: str, value: bytes) -> None:
            if is_read:  # a stream may be closed after its call, and the context ends with the call
                context.add_trailer(name, value)

        with (
            _errors_translated(call, add_trailer),
            self._gate.admit(call.peer),
            contextlib.closing(batches),  # type: ignore[type-var]
        ):
            for batch in batches:
                try:
                    yield batch
                except GeneratorExit:
                    is_read = False
                    raise


def _errors_translated(
    call: Call, add_trailer: AddTrailer, form: ErrorForm = ErrorForm.STREAM
) -> contextlib.AbstractContextManager[None]:
    """Errors as the client reads them; `form` is how they travel to DuckDB's."""
    # Arrow's C++ client makes an internal error of every error with details that is not one of Flight's own.
    reads_details = not call.headers.is_arrow_cpp
    return errors_as_flight(
        form if call.headers.is_airport else ErrorForm.CODED, add_trailer if reads_details else None
    )


@contextlib.contextmanager
def _recorded(method: str, call: Call, action: str = "", *, failures_only: bool = False) -> Iterator[None]:
    """Record how a call ended; a stream that has begun records the rest itself."""
    started = time.monotonic()
    try:
        yield
    except BaseException as error:
        _record(method, action, call, error, time.monotonic() - started)
        raise
    if not failures_only:
        _record(method, action, call, None, time.monotonic() - started)


def _record(method: str, action: str, call: Call, failure: BaseException | None, seconds: float) -> None:
    outcome = outcome_of(failure)
    metrics.CALLS.labels(method, action, outcome).inc()
    metrics.CALL_SECONDS.labels(method, action).observe(seconds)
    log.info(
        "call_ended",
        method=method,
        action=action,
        outcome=outcome,
        seconds=round(seconds, 4),
        catalog=call.headers.catalog,
        trace=call.headers.trace,
        transaction=call.transaction,
        caller=call.caller.name,
        error=str(failure) if failure is not None else None,
    )
