"""What every call brings along: its headers, parsed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyarrow import flight

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


def headers_of(context: flight.ServerCallContext) -> CallHeaders:
    middleware = context.get_middleware(KEY)
    return CallHeaders() if middleware is None else middleware.headers


def check_headers(headers: CallHeaders) -> None:
    if headers.too_long is not None:
        raise RequestError(f"header {headers.too_long} is longer than {MAX_HEADER_CHARACTERS} characters")
