"""Header names, and what one call's headers say.

gRPC hands over lists because duplicates really occur (`airport-action-name`
comes twice on ALTER actions); the first one counts. A header that is too long is
noted and left out, so that the call itself can be refused by its own rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

AUTHORIZATION = "authorization"
LOCATION = "authority"
GRPC_CLIENT = "user-agent"
USER_AGENT = "airport-user-agent"
SESSION = "airport-client-session-id"
CATALOG = "airport-catalog"
TRACE = "airport-trace-id"
TRANSACTION = "airport-transaction-id"
CONTRACT_TRANSACTION = "x-transaction-id"
OPERATION = "airport-operation"
RETURN_CHUNKS = "return-chunks"
IDEMPOTENCY_KEY = "deltaport-idempotency-key"
LIST_CATALOG = "airport-list-flights-filter-catalog"
LIST_SCHEMA = "airport-list-flights-filter-schema"

# gRPC itself refuses calls whose headers take more than 8 KiB together, some of them at random.
MAX_HEADER_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class CallHeaders:
    """What the headers of one call say; absent is None, an empty catalog name is ''."""

    catalog: str | None = None
    transaction: str | None = None
    is_contract_transaction: bool = False  # came as x-transaction-id, which allows one operation
    trace: str | None = None
    session: str | None = None
    user_agent: str | None = None
    operation: str | None = None
    returning: bool = False
    idempotency_key: str | None = None
    list_catalog: str | None = None
    list_schema: str | None = None
    grpc_client: str | None = None
    too_long: str | None = None
    location: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def is_airport(self) -> bool:
        """Whether DuckDB's client calls: it names itself in every call."""
        return self.user_agent is not None

    @property
    def is_arrow_cpp(self) -> bool:
        """Whether the call comes through Arrow's C++ client, as those of pyarrow and DuckDB do."""
        return "grpc-c++" in (self.grpc_client or "")


def parse_headers(headers: Mapping[str, Sequence[str | bytes]]) -> CallHeaders:
    values = _Values(headers)
    airport, contract = values.first(TRANSACTION), values.first(CONTRACT_TRANSACTION)
    return CallHeaders(
        catalog=values.first(CATALOG),
        transaction=airport or contract,
        is_contract_transaction=not airport and bool(contract),
        trace=values.first(TRACE),
        session=values.first(SESSION),
        user_agent=values.first(USER_AGENT),
        operation=values.first(OPERATION),
        returning=values.first(RETURN_CHUNKS) == "1",
        idempotency_key=values.first(IDEMPOTENCY_KEY) or None,
        list_catalog=values.first(LIST_CATALOG),
        list_schema=values.first(LIST_SCHEMA),
        grpc_client=values.first(GRPC_CLIENT),
        location=values.first(LOCATION),
        token=_bearer(values.first(AUTHORIZATION)),
        too_long=values.too_long,  # last: the others are read by then
    )


def _bearer(authorization: str | None) -> str | None:
    """The token; what is there and is no bearer token is one that nobody knows."""
    if not authorization:
        return None
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class _Values:
    def __init__(self, headers: Mapping[str, Sequence[str | bytes]]) -> None:
        self._headers = headers
        self.too_long: str | None = None

    def first(self, name: str) -> str | None:
        values = self._headers.get(name)
        if not values:
            return None
        value = values[0]
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if len(text) <= MAX_HEADER_CHARACTERS:
            return text
        self.too_long = name
        return None
