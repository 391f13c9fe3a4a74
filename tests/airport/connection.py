"""The gRPC side of the client: which headers go where, and a record of every call.

`Connection` sends; it decides nothing about the order of calls. `Identity` knows
the headers. Every call is noted in `Connection.calls` before it is made, so a
test can compare what was sent with what was captured.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyarrow import flight

USER_AGENT = "airport/20250723"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Call:
    """One RPC as it was sent."""

    method: str
    headers: Headers
    action: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class Identity:
    """Who calls. Without a catalog these are the headers of the ad-hoc `airport_*()` functions.

    `token` is a scoped secret and goes on every call; `attach_token` was given in
    ATTACH, and the client uses such a token for catalog calls only.
    """

    location: str
    catalog: str = ""
    token: str | None = None
    attach_token: str | None = None
    session: str = field(default_factory=lambda: str(uuid.uuid4()))
    extra: Mapping[str, str] = field(default_factory=dict)

    def headers(
        self,
        *,
        action: str | None = None,
        repeat: int = 1,
        path: str | None = None,
        trace: str | None = None,
        transaction: str | None = None,
        data: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> Headers:
        """Headers of one call; `data` marks those that look the token up by scope only."""
        token = self.token if data else self.attach_token or self.token
        optional = {
            "airport-catalog": self.catalog,
            "airport-trace-id": trace,
            "airport-flight-path": path,
            "airport-transaction-id": transaction,
            "authorization": f"Bearer {token}" if token else None,
            **(more or {}),
            **self.extra,
        }
        return (
            ("airport-user-agent", USER_AGENT),
            ("authority", self.location),
            ("airport-client-session-id", self.session),
            *((name, value) for name, value in optional.items() if value),
            *((("airport-action-name", action),) * repeat if action else ()),
        )


class Connection:
    """One Flight client for one location. Not thread-safe beyond what pyarrow is."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.calls: list[Call] = []
        self._client = flight.FlightClient(location)

    def close(self) -> None:
        self._client.close()

    def action(self, name: str, body: bytes, headers: Headers) -> list[bytes]:
        self.calls.append(Call("DoAction", headers, name, body))
        results = self._client.do_action(flight.Action(name, body), _options(headers))
        return [result.body.to_pybytes() for result in results]

    @contextmanager
    def get(
        self, ticket: flight.Ticket, headers: Headers, location: str | None = None
    ) -> Iterator[flight.FlightStreamReader]:
        """A DoGet here, or on a fresh connection to `location`; left early, it is cancelled."""
        self.calls.append(Call("DoGet", headers))
        other = None if location is None else flight.FlightClient(location)
        try:
            reader = (other or self._client).do_get(ticket, _options(headers))
            try:
                yield reader
            finally:
                reader.cancel()
        finally:
            if other is not None:
                other.close()

    def exchange(
        self, descriptor: flight.FlightDescriptor, headers: Headers
    ) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader]:
        self.calls.append(Call("DoExchange", headers))
        return self._client.do_exchange(descriptor, _options(headers))

    def flight_info(self, descriptor: flight.FlightDescriptor, headers: Headers) -> flight.FlightInfo:
        self.calls.append(Call("GetFlightInfo", headers))
        return self._client.get_flight_info(descriptor, _options(headers))

    def list_flights(self, criteria: bytes, headers: Headers) -> list[flight.FlightInfo]:
        self.calls.append(Call("ListFlights", headers, body=criteria))
        return list(self._client.list_flights(criteria, _options(headers)))


def _options(headers: Headers) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(name.encode(), value.encode()) for name, value in headers])
