"""Replaying captured statements."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from tests import captures
from tests.airport.scripted import ScriptedServer
from tests.captures import statement
from tests.replay import Replay, Substitutions, replay

TOKEN = "tok"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


READ_KINDS = (
    "attach",
    "first-use",
    "show-tables",
    "select",
    "prepared",
    "time-travel",
    "column-statistics",
    "take-flight",
    "flights",
    "multi-endpoint",
    "lazy-schema",
)


@pytest.mark.parametrize("kind", READ_KINDS)
def test_captured_statements_are_sent_unchanged(server: ScriptedServer, kind: str) -> None:
    with Replay(server.location) as session:
        # The first statement without a listing of its own makes the session ask for one.
        session.run(statement("first-use-1" if kind != "lazy-schema" else "lazy-schema-2"))
        for each in captures.statements(kind):
            server.seen.clear()
            replies = session.run(each)
            # Of a schema without contents the session learns by itself, too.
            sent = [call for call in server.seen if kind != "lazy-schema" or call.method != "ListFlights"]
            rpcs = [rpc for rpc in each.rpcs if kind != "lazy-schema" or rpc.method != "ListFlights"]
            assert [(call.method, call.action) for call in sent] == [(rpc.method, rpc.action) for rpc in rpcs]
            for call, rpc in zip(sent, rpcs, strict=True):
                assert rpc.method != "DoAction" or call.body == rpc.body
                names = {name for name, _ in rpc.headers}
                assert sorted(name for name, _ in call.headers if name in names) == [name for name, _ in rpc.headers]
            assert [reply.error is None for reply in replies] == [rpc.status == "OK" for rpc in each.rpcs]


def test_what_the_server_hands_out_is_put_in() -> None:
    class Numbered(ScriptedServer):
        """Hands out descriptors of its own making."""

        def info(self, catalog: str, schema: str, name: str) -> flight.FlightInfo:
            original = super().info(catalog, schema, name)
            descriptor = flight.FlightDescriptor.for_path(schema, name, "7")
            return flight.FlightInfo(original.schema, descriptor, [], app_metadata=original.app_metadata)

        def _schema_of(self, descriptor: flight.FlightDescriptor) -> pa.Schema:
            assert descriptor.path[2] == b"7"
            return super()._schema_of(flight.FlightDescriptor.for_path(*descriptor.path[:2]))

    with Numbered() as server:
        replies = replay(statement("select-1"), server.location)
        last = dict(server.seen[-1].headers)
        location = server.location
    assert replies[-1].value.num_rows == 4
    assert last["airport-flight-path"] == "demo/people/7"
    assert last["airport-transaction-id"].startswith("tx-")
    assert last["authority"] == location


def test_captured_rows_are_uploaded_under_other_names(server: ScriptedServer) -> None:
    substitutions = Substitutions(catalogs={"db": "lake"}, token=TOKEN)
    with Replay(server.location, substitutions) as session:
        replies = session.run(statement("insert-1"))
    assert replies[-1].value.total_changed == 2
    assert {dict(each.headers)["airport-catalog"] for each in server.seen} == {"lake"}
    assert {dict(each.headers)["authorization"] for each in server.seen} == {f"Bearer {TOKEN}"}
