"""One call of a client: who calls, with which headers, and whether it still waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.access.callers import ANONYMOUS, Caller
from gateway.wire.headers import CallHeaders


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a transaction is: the client's session, and the authenticated caller."""

    session: str | None
    caller: str


@dataclass(frozen=True, slots=True)
class Call:
    """Made once, where a call begins, and handed down as it is. `peer` is the client's address as Flight names it."""

    headers: CallHeaders = field(default_factory=CallHeaders)
    caller: Caller = ANONYMOUS
    peer: str = ""
    is_cancelled: Callable[[], bool] = _never

    @property
    def transaction(self) -> str | None:
        return self.headers.transaction

    @property
    def owner(self) -> Owner:
        return Owner(self.headers.session, self.caller.name)
