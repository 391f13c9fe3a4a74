"""What every call brings along: its headers, parsed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyarrow import flight

from gateway.flight.boundary import Path, errors_as_flight
from gateway.wire.headers import CallHeaders, parse_headers

KEY = "call"


class CallMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, headers: CallHeaders) -> None:
        self.headers = headers


class CallMiddlewareFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, _info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> CallMiddleware:
        with errors_as_flight(Path.ACTION):
            return CallMiddleware(parse_headers(headers))


def headers_of(context: flight.ServerCallContext) -> CallHeaders:
    middleware = context.get_middleware(KEY)
    return CallHeaders() if middleware is None else middleware.headers
