"""Where a call begins: its headers are parsed once, and become a `Call`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyarrow import flight

from gateway.catalog.calls import ANONYMOUS, Call
from gateway.errors import RequestError
from gateway.wire.headers import MAX_HEADER_CHARACTERS, CallHeaders, parse_headers

KEY = "call"


class CallMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, headers: CallHeaders) -> None:
        self.headers = headers


class CallMiddlewareFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, _info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> CallMiddleware:
        # Nothing is refused here: an error of the middleware reaches every client as UNKNOWN.
        return CallMiddleware(parse_headers(headers))


def call_of(context: flight.ServerCallContext) -> Call:
    """The call, as every room below is handed it. Whoever authenticates callers says here who it is."""
    middleware = context.get_middleware(KEY)
    headers = CallHeaders() if middleware is None else middleware.headers
    return Call(headers, ANONYMOUS, context.peer(), context.is_cancelled)


def check_headers(call: Call) -> None:
    if call.headers.too_long is not None:
        raise RequestError(f"header {call.headers.too_long} is longer than {MAX_HEADER_CHARACTERS} characters")
