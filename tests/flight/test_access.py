"""What callers see and may do over real connections, and that no way around the rules is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.access.tokens import new_token
from gateway.ops.assembly import access_of
from gateway.settings import AccessSettings
from tests.airport import AirportClient
from tests.airport.ddl import Ddl
from tests.flight.conftest import MemoryService
from tests.flight.test_rpc import refusal

RULES = """
roles:
  reader: {allow: [{actions: [read], tables: ["lake.open.*"]}]}
  filler: {allow: [{actions: [insert], tables: ["lake.open.people"]}]}
  owner: {allow: [{actions: [all], tables: ["*.*.*"]}]}
"""
CALLERS = {"rita": "reader", "fred": "filler", "olga": "owner", "nina": ""}
PEOPLE = pa.table({"id": pa.array([1, 2], pa.int64())})


class Secured:
    """A service with rules, and clients of it by the names of their callers."""

    def __init__(self, service: MemoryService, tokens: dict[str, str], file: Path, stack: ExitStack) -> None:
        self.service = service
        self.tokens = tokens
        self.file = file
        self._stack = stack

    def client(self, name: str | None, **more: Any) -> AirportClient:
        token = None if name is None else self.tokens[name]
        return self._stack.enter_context(AirportClient(self.service.location, "lake", token=token, **more))

    def plain(self, name: str | None = None) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
        headers = [] if name is None else [(b"authorization", f"Bearer {self.tokens[name]}".encode())]
        client = self._stack.enter_context(flight.connect(self.service.location))
        return client, flight.FlightCallOptions(headers=headers)


@pytest.fixture
def secured(start_service: Callable[..., MemoryService], tmp_path: Path) -> Iterator[Secured]:
    made = {name: new_token(name, frozenset(role.split())) for name, role in CALLERS.items()}
    rules, tokens = tmp_path / "access.yaml", tmp_path / "tokens"
    rules.write_text(RULES)
    tokens.write_text("\n".join(entry.line() for _, entry in made.values()))
    access, authenticator = access_of(AccessSettings(file=str(rules), tokens=str(tokens)))
    service = start_service(access=access, authenticator=authenticator)
    service.add("open", "people", PEOPLE)
    service.add("hidden", "people", PEOPLE)
    with ExitStack() as stack:
        yield Secured(service, {name: token for name, (token, _) in made.items()}, tokens, stack)


def _put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(b"{}"), PEOPLE.schema, options)
    writer.done_writing()
    reader.read()
    writer.close()


def _exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("open", "people"), options)
    writer.done_writing()
    reader.read_all()


PATH = flight.FlightDescriptor.for_path("open", "people")
EVERY_RPC: dict[str, Callable[[flight.FlightClient, flight.FlightCallOptions], object]] = {
    "list_flights": lambda client, options: list(client.list_flights(b"", options)),
    "get_flight_info": lambda client, options: client.get_flight_info(PATH, options),
    "get_schema": lambda client, options: client.get_schema(PATH, options),
    "do_get": lambda client, options: client.do_get(flight.Ticket(b"x"), options).read_all(),
    "databases": lambda client, options: client.do_get(flight.Ticket(b"databases"), options).read_all(),
    "list_actions": lambda client, options: client.list_actions(options),
    "do_put": _put,
    "do_exchange": _exchange,
}


@pytest.mark.parametrize("rpc", EVERY_RPC)
def test_nobody_is_answered_without_a_token(secured: Secured, rpc: str) -> None:
    client, options = secured.plain()
    # Arrow's GetSchema sends every error as UNKNOWN.
    kind = pa.ArrowException if rpc == "get_schema" else flight.FlightUnauthenticatedError
    with pytest.raises(kind, match="needs a token"):
        EVERY_RPC[rpc](client, options)


def test_no_action_is_answered_without_a_token(secured: Secured) -> None:
    client, options = secured.plain("olga")
    names = [action.type for action in client.list_actions(options)]
    assert len(names) > 20
    stranger, nothing = secured.plain()
    for name in names:
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(stranger.do_action(flight.Action(name, b"{}"), nothing))


def test_a_token_that_nobody_knows_is_refused_and_not_shown(secured: Secured) -> None:
    client = secured.plain()[0]
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer planted-secret")])
    with pytest.raises(flight.FlightUnauthenticatedError) as refused:
        list(client.list_flights(b"", options))
    assert "planted-secret" not in str(refused.value)


def test_what_one_may_not_read_is_not_listed(secured: Secured) -> None:
    def listed(name: str) -> list[str]:
        client, options = secured.plain(name)
        return sorted(b"/".join(info.descriptor.path[:2]).decode() for info in client.list_flights(b"", options))

    assert [len(listed(name)) for name in ("olga", "rita", "fred", "nina")] == [2, 1, 0, 0]
    assert [table.name for table in secured.client("rita").tables()] == ["people"]


def test_a_hidden_table_looks_like_one_that_is_not_there(secured: Secured) -> None:
    client, options = secured.plain("rita")

    def answer(schema: str, table: str) -> str:
        path = flight.FlightDescriptor.for_path(schema, table)
        return refusal(lambda: client.get_schema(path, options)).replace(schema, "SCHEMA").replace(table, "TABLE")

    assert answer("hidden", "people") == answer("absent", "people")
    assert secured.client("rita").scan("open", "people").rows() == PEOPLE.to_pylist()


def test_a_ticket_grants_nothing_to_another_caller(secured: Secured) -> None:
    olga = secured.client("olga")
    scan = olga.open_scan("hidden", "people")
    client, options = secured.plain("rita")
    assert "not found" in refusal(lambda: client.do_get(scan.endpoints[0].ticket, options).read_all())


def test_who_may_read_is_told_what_it_may_not_change(secured: Secured) -> None:
    rita = secured.client("rita")
    message = refusal(lambda: rita.insert("open", "people", PEOPLE.to_batches()))
    assert "caller 'rita' has no right to insert on table 'open.people'" in message
    for work in (lambda: Ddl(rita).create_schema("new"), lambda: Ddl(rita).drop_table("open", "people")):
        assert "no right to ddl" in refusal(work)


def test_returning_needs_the_right_to_read(secured: Secured) -> None:
    olga = secured.client("olga")
    table = olga.table("open", "people")
    fred = secured.client("fred")
    message = refusal(lambda: fred.insert_into(table, PEOPLE.to_batches(), None, returning=True))
    assert "not found" in message


def test_a_transaction_belongs_to_its_caller(secured: Secured) -> None:
    rita = secured.client("rita")
    transaction = rita.begin()
    rita.scan("open", "people", transaction=transaction)
    other, foreign = secured.plain("fred")
    body = f'{{"transaction_id": "{transaction.id}"}}'.encode()
    assert "not found" in refusal(lambda: list(other.do_action(flight.Action("commit_transaction", body), foreign)))
    boss, admin = secured.plain("olga")
    assert list(boss.do_action(flight.Action("commit_transaction", body), admin))


def test_a_token_of_attach_alone_is_answered_with_the_statement_that_mends_it(secured: Secured) -> None:
    rita = secured.client(None, attach_token=secured.tokens["rita"])
    assert [table.name for table in rita.tables()] == ["people"]
    with pytest.raises((flight.FlightError, pa.ArrowException)) as refused:
        rita.scan("open", "people")
    assert f"CREATE SECRET (TYPE airport, AUTH_TOKEN '...', SCOPE '{secured.service.location}')" in str(refused.value)


def test_a_token_whose_line_is_removed_is_refused_soon(secured: Secured) -> None:
    client, options = secured.plain("rita")
    assert list(client.list_flights(b"", options))
    lines = [line for line in secured.file.read_text().splitlines() if not line.startswith("rita")]
    secured.file.write_text("\n".join(lines))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            list(client.list_flights(b"", options))
        except flight.FlightUnauthenticatedError:
            return
        time.sleep(0.05)
    pytest.fail("the token was still good")
