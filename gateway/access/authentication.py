"""Who calls: whoever the token stands for that a call shows, else anonymous where that is allowed.

A token that is shown and is not good is refused, never passed over. Callers whose token was good
before are never held up by others who guess from the same address; what is unknown waits.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from gateway.access.backoff import Backoff
from gateway.access.callers import ANONYMOUS, Caller
from gateway.access.policy_file import AccessRules
from gateway.access.tokens import Tokens, digest_of, find_token
from gateway.errors import UnauthenticatedError
from gateway.telemetry import metrics

_MOST_REMEMBERED = 10_000
# The only texts of a client that are ever sent back to it here.
_LOCATION = re.compile(r"grpc(\+[a-z]+)?://[A-Za-z0-9._\-\[\]:]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a call shows of itself. `location` is the address that the client says it called."""

    token: str | None = field(default=None, repr=False)
    peer: str = ""
    session: str | None = None
    location: str | None = None


class Authenticator(Protocol):
    def authenticate(self, shown: Credentials) -> Caller:
        """The caller, or an UnauthenticatedError. Thread-safe."""


class TrustEverybody:
    """Without access rules every caller is anonymous, and may do everything."""

    def authenticate(self, _shown: Credentials) -> Caller:
        return ANONYMOUS


class CheckCredentials:
    """Thread-safe: what is remembered is behind a lock of its own."""

    def __init__(
        self,
        rules: Callable[[], AccessRules],
        tokens: Callable[[], Tokens] = dict,
        backoff: Backoff | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._rules = rules
        self._tokens = tokens
        self._backoff = Backoff() if backoff is None else backoff
        self._now = now
        self._accepted = _Remembered()
        self._sessions_with_token = _Remembered()

    def authenticate(self, shown: Credentials) -> Caller:
        try:
            caller = self._caller(shown)
        except UnauthenticatedError:
            metrics.AUTHENTICATIONS.labels("refused").inc()
            raise
        metrics.AUTHENTICATIONS.labels(caller.method).inc()
        return caller

    def _caller(self, shown: Credentials) -> Caller:
        if shown.token is not None:
            caller = self._by_token(shown.token, shown.peer.rpartition(":")[0] or shown.peer)
            if shown.session is not None:
                self._sessions_with_token.add(shown.session)
            return caller
        rules = self._rules()
        # A client that has a token means to use it, even where others need none.
        if shown.session is not None and shown.session in self._sessions_with_token:
            raise UnauthenticatedError(
                "this call came without the token of your ATTACH, which DuckDB sends with catalog calls only; run "
                f"{_secret_statement(shown.location)} once, and try again"
            )
        if rules.anonymous is not None:
            return rules.anonymous
        raise UnauthenticatedError(f"this gateway needs a token: run {_secret_statement(shown.location)} first")

    def _by_token(self, token: str, peer: str) -> Caller:
        digest = digest_of(token)
        if digest not in self._accepted and (wait := self._backoff.wait_seconds(peer)) > 0:
            metrics.AUTHENTICATION_WAITS.inc()
            raise UnauthenticatedError(
                f"too many failed attempts from this address; try again in {math.ceil(wait)} s"
            )
        try:
            caller = self._verified(token)
        except UnauthenticatedError:
            self._accepted.discard(digest)
            self._backoff.failed(peer)
            raise
        self._accepted.add(digest)
        return caller

    def _verified(self, token: str) -> Caller:
        entry = find_token(self._tokens(), token)
        if entry is None:
            raise UnauthenticatedError("the token is not known")
        if entry.has_expired(self._now()):
            raise UnauthenticatedError("the token has expired")
        return entry.caller


class _Remembered:
    """A bounded set that forgets the longest unused. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: OrderedDict[str, None] = OrderedDict()

    def add(self, item: str) -> None:
        with self._lock:
            self._items[item] = None
            self._items.move_to_end(item)
            if len(self._items) > _MOST_REMEMBERED:
                self._items.popitem(last=False)

    def discard(self, item: str) -> None:
        with self._lock:
            self._items.pop(item, None)

    def __contains__(self, item: str) -> bool:
        with self._lock:
            return item in self._items


def _secret_statement(location: str | None) -> str:
    scope = location if location is not None and _LOCATION.fullmatch(location) else "grpc://HOST:PORT"
    return f"CREATE SECRET (TYPE airport, AUTH_TOKEN '...', SCOPE '{scope}')"
