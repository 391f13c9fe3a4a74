"""Where a call begins: its headers are parsed once and become a `Call`, which the gate admits unless it is closed."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyarrow import flight

from gateway.access.authentication import Authenticator, Credentials
from gateway.catalog.calls import Call
from gateway.errors import RequestError, UnavailableError
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
    """The call as it came: nobody has asked yet who calls. Nothing is refused here, so that errors leave as all do."""
    middleware = context.get_middleware(KEY)
    headers = CallHeaders() if middleware is None else middleware.headers
    return Call(headers, peer=context.peer(), is_cancelled=context.is_cancelled)


def authenticated(call: Call, authenticator: Authenticator) -> Call:
    """The call with its caller, as every room below gets it; or an UnauthenticatedError."""
    headers = call.headers
    check_headers(call)
    shown = Credentials(headers.token, call.peer, headers.session, headers.location)
    return replace(call, caller=authenticator.authenticate(shown))


def check_headers(call: Call) -> None:
    if call.headers.too_long is not None:
        raise RequestError(f"header {call.headers.too_long} is longer than {MAX_HEADER_CHARACTERS} characters")


class Gate:
    """Admits calls until the gateway drains, and counts the admitted by the peer they come from. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._admitted: Counter[str] = Counter()
        self._closed = False

    def close(self) -> None:
        with self._changed:
            self._closed = True

    def wait_empty(self, timeout_seconds: float, besides: int = 0) -> bool:
        """Wait until only `besides` admitted calls are left: those that a drain does not wait for."""
        with self._changed:
            return self._changed.wait_for(lambda: self._admitted.total() <= besides, timeout_seconds)

    def call_count(self, peer: str) -> int:
        with self._changed:
            return self._admitted[peer]

    def peers(self) -> list[str]:
        """The peers that have admitted calls."""
        with self._changed:
            return list(self._admitted)

    @contextlib.contextmanager
    def admit(self, peer: str = "") -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise UnavailableError("the gateway is shutting down; try again later")
            self._admitted[peer] += 1
        try:
            yield
        finally:
            with self._changed:
                self._admitted[peer] -= 1
                if not self._admitted[peer]:
                    del self._admitted[peer]
                self._changed.notify_all()
