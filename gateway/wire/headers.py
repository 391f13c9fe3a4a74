"""Header names, and what one call's headers say.

gRPC hands over lists because duplicates really occur (`airport-action-name`
comes twice on ALTER actions); the first one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import RequestError

AUTHORIZATION = "authorization"
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

MAX_HEADER_CHARACTERS = 8_192


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


def parse_headers(headers: Mapping[str, Sequence[str | bytes]]) -> CallHeaders:
    airport, contract = _first(headers, TRANSACTION), _first(headers, CONTRACT_TRANSACTION)
    return CallHeaders(
        catalog=_first(headers, CATALOG),
        transaction=airport or contract,
        is_contract_transaction=not airport and bool(contract),
        trace=_first(headers, TRACE),
        session=_first(headers, SESSION),
        user_agent=_first(headers, USER_AGENT),
        operation=_first(headers, OPERATION),
        returning=_first(headers, RETURN_CHUNKS) == "1",
        idempotency_key=_first(headers, IDEMPOTENCY_KEY) or None,
        list_catalog=_first(headers, LIST_CATALOG),
        list_schema=_first(headers, LIST_SCHEMA),
    )


def _first(headers: Mapping[str, Sequence[str | bytes]], name: str) -> str | None:
    values = headers.get(name)
    if not values:
        return None
    value = values[0]
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if len(text) > MAX_HEADER_CHARACTERS:
        raise RequestError(f"header {name} is longer than {MAX_HEADER_CHARACTERS} characters")
    return text
