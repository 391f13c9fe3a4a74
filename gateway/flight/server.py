"""The Flight server: forwards each call to its room, decides nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog
from pyarrow import flight

from gateway.flight.actions import Actions
from gateway.flight.boundary import AddTrailer, Path, as_python_error, errors_as_flight, outcome_of
from gateway.flight.browsing import DATABASES_SHAPE, DATABASES_TICKET, Browsing
from gateway.flight.connections import cut_connection
from gateway.flight.exchanges import Exchanges, known_operation
from gateway.flight.gate import Gate
from gateway.flight.middleware import KEY, CallMiddlewareFactory, check_headers, headers_of
from gateway.flight.puts import Puts
from gateway.flight.scans import Scans
from gateway.telemetry import metrics
from gateway.wire.headers import CallHeaders

log = structlog.get_logger(__name__)
Reply = TypeVar("Reply")


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
    ) -> None:
        super().__init__(location, middleware={KEY: CallMiddlewareFactory()})
        self._actions = actions
        self._browsing = browsing
        self._scans = scans
        self._exchanges = exchanges
        self._puts = puts
        self._gate = gate

    def cut(self, peer: str) -> None:
        """End a peer's connection, and with it its calls: those that wait for their client end in no other way."""
        log.warning("connection_cut", peer=peer, found=cut_connection(self.port, peer))

    def cut_if_alone(self, peer: str) -> None:
        """The same for a peer with one call; others on the connection would end with it."""
        if self._gate.calls_of(peer) == 1:
            self.cut(peer)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        headers = headers_of(context)
        return iter(self._answer("list_flights", context, lambda: list(self._browsing.flights(headers, criteria))))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        headers = headers_of(context)
        return self._answer("get_flight_info", context, lambda: self._browsing.describe_flight(headers, descriptor))

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        headers = headers_of(context)
        try:
            schema = self._answer("get_schema", context, lambda: self._browsing.schema(headers, descriptor))
        except flight.FlightError as error:
            raise as_python_error(error) from None
        return flight.SchemaResult(schema)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        headers = headers_of(context)
        if ticket.ticket == DATABASES_TICKET:
            batch = self._answer("do_get", context, self._browsing.databases)
            return flight.GeneratorStream(DATABASES_SHAPE, iter([batch]))
        with self._told(context, Path.STREAM), self._recorded_failure("do_get", headers):
            check_headers(headers)
            facts = {"trace": headers.trace, "transaction": headers.transaction}
            schema, batches = self._scans.stream(ticket.ticket, context.is_cancelled, **facts)
        return flight.GeneratorStream(schema, self._inside_gate(batches, context))

    def list_actions(self, _context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return self._actions.names()

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        headers = headers_of(context)
        body = b"" if action.body is None else action.body.to_pybytes()
        label = self._actions.known(action.type)

        def work() -> bytes:
            return self._actions.run(action.type, headers, body, context.is_cancelled)

        return [self._answer("do_action", context, work, label, Path.ACTION)]

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        headers = headers_of(context)

        def work() -> None:
            self._puts.put(headers, descriptor, reader, writer, context.is_cancelled, context.peer())

        self._answer("do_put", context, work, path=Path.CODED)

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        headers = headers_of(context)

        def work() -> None:
            self._exchanges.run(headers, descriptor, reader, writer, context.is_cancelled, context.peer())

        self._answer("do_exchange", context, work, known_operation(headers.operation))

    def _answer(
        self,
        method: str,
        context: flight.ServerCallContext,
        work: Callable[[], Reply],
        action: str = "",
        path: Path = Path.STREAM,
    ) -> Reply:
        """Run one call that is not a stream, and record how it ended."""
        started, failure = time.monotonic(), None
        try:
            with self._told(context, path):
                try:
                    check_headers(headers_of(context))
                    with self._gate.inside(context.peer()):
                        return work()
                except BaseException as error:
                    failure = error
                    raise
        finally:
            _record(method, action, headers_of(context), failure, time.monotonic() - started)

    @staticmethod
    def _told(
        context: flight.ServerCallContext, path: Path, add_trailer: AddTrailer | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Errors as the client reads them; `path` is how they travel to DuckDB's."""
        headers = headers_of(context)
        # Arrow's C++ client makes an internal error of every error with details that is not one of Flight's own.
        reads_details = not headers.is_arrow_cpp
        return errors_as_flight(
            path if headers.is_airport else Path.CODED, (add_trailer or context.add_trailer) if reads_details else None
        )

    @contextlib.contextmanager
    def _recorded_failure(self, method: str, headers: CallHeaders) -> Iterator[None]:
        """For calls whose stream records the rest: only what goes wrong before the stream."""
        started = time.monotonic()
        try:
            yield
        except BaseException as error:
            _record(method, "", headers, error, time.monotonic() - started)
            raise

    def _inside_gate(self, batches: Iterator[Reply], context: flight.ServerCallContext) -> Iterator[Reply]:
        is_read = True

        def add_trailer(name: str, value: bytes) -> None:
            if is_read:  # a stream may be closed after its call, and the context ends with the call
                context.add_trailer(name, value)

        with (
            self._told(context, Path.STREAM, add_trailer),
            self._gate.inside(context.peer()),
            contextlib.closing(batches),  # type: ignore[type-var]
        ):
            for batch in batches:
                try:
                    yield batch
                except GeneratorExit:
                    is_read = False
                    raise


def _record(method: str, action: str, headers: CallHeaders, failure: BaseException | None, seconds: float) -> None:
    outcome = outcome_of(failure)
    metrics.CALLS.labels(method, action, outcome).inc()
    metrics.CALL_SECONDS.labels(method, action).observe(seconds)
    log.info(
        "call_ended",
        method=method,
        action=action,
        outcome=outcome,
        seconds=round(seconds, 4),
        catalog=headers.catalog,
        trace=headers.trace,
        transaction=headers.transaction,
        error=str(failure) if failure is not None else None,
    )
