"""The test client against what the real client was captured sending and accepting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

from tests import captures
from tests.airport import AirportClient, Flight, UnknownNameError, requests, upload_type
from tests.airport.arrow_types import TIME_ZONE
from tests.airport.packing import Pairs, pack, unpack_request
from tests.airport.replies import (
    decode_catalog_version,
    decode_contents,
    decode_flight,
    decode_info,
    decode_transaction,
    open_contents,
)
from tests.airport.scripted import PEOPLE, ScriptedServer
from tests.airport_filters import column
from tests.captures import Rpc, statement


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[AirportClient]:
    with AirportClient(server.location, "db") as attached:
        yield attached


# Requests, byte for byte


def build_request(rpc: Rpc) -> bytes:
    """A captured request made anew from its decoded values."""
    if rpc.action == "echo":
        return rpc.decoded.get("raw_text", "").encode()
    raw = {key.decode(): value for key, value in unpack_request(rpc.body)}
    body = {key: value for key, value in rpc.decoded.items() if key not in ("descriptor", "flight_descriptor")}
    for key in {"arrow_schema", "column_schema"} & body.keys():
        body[key] = pa.ipc.read_schema(pa.py_buffer(raw[key]))
    # Padding inside the client's IPC bytes is whatever lay in its memory: taken as captured.
    body |= {key: raw[key] for key in ("parameters", "table_input_schema") if key in raw}
    return BUILDERS.get(rpc.action, build_alter)(rpc, body)


def build_endpoints(rpc: Rpc, body: dict[str, Any]) -> bytes:
    parameters = {key.decode(): value for key, value in body["parameters"]}
    parameters |= {key: parameters[key].decode() for key in ("json_filters", "at_unit", "at_value")}
    return requests.endpoints(rpc.descriptor, **parameters)


def build_create_table(_rpc: Rpc, body: dict[str, Any]) -> bytes:
    names = (body.pop("catalog_name"), body.pop("schema_name"), body.pop("table_name"))
    return requests.create_table(*names, body.pop("arrow_schema"), **body)


def build_alter(rpc: Rpc, body: dict[str, Any]) -> bytes:
    names = (body.pop("catalog"), body.pop("schema"), body.pop("name"))
    alter = requests.Alter(*names, ignore_not_found=body.pop("ignore_not_found"))
    if "column_schema" in body:
        field = body.pop("column_schema").field(0)
        body |= {"field_type": field.type} if rpc.action == "add_field" else {"field": field}
    if "removed_column" in body:
        body["column"] = body.pop("removed_column")
    return getattr(alter, rpc.action)(**body)


BUILDERS: dict[str, Callable[[Rpc, dict[str, Any]], bytes]] = {
    "list_schemas": lambda _rpc, body: requests.list_schemas(body["catalog_name"]),
    "catalog_version": lambda _rpc, body: requests.catalog_version(body["catalog_name"]),
    "create_transaction": lambda _rpc, body: requests.create_transaction(body["catalog_name"]),
    "endpoints": build_endpoints,
    "flight_info": lambda rpc, body: requests.flight_info(rpc.descriptor, **body),
    "column_statistics": lambda rpc, body: requests.column_statistics(rpc.descriptor, *body.values()),
    "table_function_flight_info": lambda rpc, body: requests.table_function_flight_info(rpc.descriptor, **body),
    "create_schema": lambda _rpc, body: requests.create_schema(body["catalog_name"], body["schema"]),
    "create_table": build_create_table,
    "drop_schema": lambda _rpc, body: requests.drop_schema(
        body["catalog_name"], body["name"], ignore_not_found=body["ignore_not_found"]
    ),
    "drop_table": lambda _rpc, body: requests.drop_table(
        body["catalog_name"], body["schema_name"], body["name"], ignore_not_found=body["ignore_not_found"]
    ),
}


@pytest.mark.parametrize("action", sorted({rpc.action for rpc in captures.rpcs("DoAction")}))
def test_requests_are_the_captured_bytes(action: str) -> None:
    for rpc in captures.rpcs("DoAction", action):
        assert build_request(rpc) == rpc.body, rpc.statement


def test_every_captured_request_survives_unpacking_and_packing() -> None:
    for rpc in captures.rpcs("DoAction"):
        if rpc.action != "echo":
            assert pack(unpack_request(rpc.body)) == rpc.body, rpc.statement


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65535, 65536])
def test_binary_is_packed_as_msgpack_str(size: int) -> None:
    text = "x" * size
    assert pack(text.encode()) == pack(text) == msgpack.packb(text)
    assert unpack_request(pack({"k": b"\xff" * size})) == Pairs([(b"k", b"\xff" * size)])


# Statements: calls in captured order, with the captured headers and bodies

PEOPLE_FLIGHT = Flight(flight.FlightDescriptor.for_path("demo", "people"), PEOPLE)
ID, AGE, CITY = (PEOPLE_FLIGHT.ref(name) for name in ("id", "age", "city"))
TOKEN = "tok"
NEW_PEOPLE = pa.table({"id": [10, 11], "name": ["Eva", "Fay"], "age": pa.array([18, 18], pa.int32())})


def captured_filters(statement_id: str) -> str:
    rpc = next(rpc for rpc in statement(statement_id).rpcs if rpc.action == "endpoints")
    return rpc.decoded["parameters"]["json_filters"]


def in_begin_block(client: AirportClient) -> None:
    with client.begin() as block:
        client.scan("demo", "people", [], transaction=block)
        client.insert("demo", "people", NEW_PEOPLE.slice(0, 1), transaction=block)
        client.scan("demo", "people", ["name"], [ID.eq(30)], transaction=block)


def set_age(batch: pa.RecordBatch) -> pa.RecordBatch:
    matching = batch.slice(0, 1)
    return pa.RecordBatch.from_pydict({"age": pa.array([32], pa.int32()), "rowid": matching.column("rowid")})


def set_city_and_name(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"city": ["Bern"], "name": ["Bo"], "rowid": batch.column("rowid").slice(0, 1)})


SAID: dict[str, Callable[[AirportClient], object]] = {
    "first-use-1": lambda c: c.scan("demo", "people", ["name"], [ID.eq(1)]),
    "show-tables-3": lambda c: c.describe("demo", "people"),
    "select-1": lambda c: c.scan("demo", "people"),
    "select-2": lambda c: c.scan("demo", "people", ["city", "name"]),
    "select-3": lambda c: c.scan("demo", "people", ["name"], captured_filters("select-3")),
    "select-4": lambda c: c.scan("demo", "people", []),
    "select-6": lambda c: c.scan("demo", "people", ["rowid", "id"]),
    "select-11": lambda c: c.scan("demo", "people", [], captured_filters("select-11")),
    "prepared-2": lambda c: c.scan("demo", "people", ["name"], [ID.eq(2)]),
    "begin-commit-2,begin-commit-3,begin-commit-4": in_begin_block,
    "time-travel-1": lambda c: c.scan("demo", "people", at=("VERSION", 1)),
    "time-travel-2": lambda c: c.scan("demo", "people", ["name"], [ID.eq(1)], at=("VERSION", 0)),
    "time-travel-3": lambda c: c.scan("demo", "people", [], at=("TIMESTAMP", "2030-01-02 03:04:05")),
    "column-statistics-1": lambda c: c.scan("demo", "people_stats", ["name"], captured_filters("column-statistics-1")),
    "column-statistics-2": lambda c: c.scan("demo", "people_stats", []),
    "take-flight-1": lambda c: c.take_flight(["alt", "a1"]),
    "take-flight-2": lambda c: c.take_flight(
        ["alt", "a1"], ["name"], captured_filters("take-flight-2"), headers={"x-custom": "[v1, v2]"}, token=TOKEN
    ),
    "take-flight-3": lambda c: c.take_flight("some command"),
    "take-flight-4": lambda c: c.databases(),
    "flights-1": lambda c: c.flights(),
    "flights-2": lambda c: c.flights(b"abc", [column("total_records", "BIGINT").gt(3)]),
    "multi-endpoint-1": lambda c: c.scan("demo", "parts", []),
    "action-1": lambda c: c.action("echo", b"hello"),
    "action-2": lambda c: c.action("echo"),
    "insert-1": lambda c: c.insert("demo", "people", NEW_PEOPLE),
    "insert-4": lambda c: c.insert("demo", "people", NEW_PEOPLE.slice(0, 0)),
    "insert-returning-1": lambda c: c.insert("demo", "people", NEW_PEOPLE, returning=True),
    "update-1": lambda c: c.update_where("demo", "people", set_age, sets=["age"], filters=captured_filters("update-1")),
    "update-2": lambda c: c.update_where(
        "demo", "people", set_city_and_name, sets=["city", "name"], filters=captured_filters("update-2")
    ),
    "delete-1": lambda c: c.delete_where(
        "demo", "people", lambda batch: batch.slice(0, 1), filters=captured_filters("delete-1")
    ),
    "delete-returning-1": lambda c: c.delete_where(
        "demo",
        "people",
        lambda batch: batch.slice(0, 1),
        filters=captured_filters("delete-returning-1"),
        returning=True,
    ),
    "create-schema-1": lambda c: c.ddl.create_schema("s1"),
    "create-table-1": lambda c: c.ddl.create_table("s1", "t", pa.schema({"id": pa.int32(), "name": pa.string()})),
    "create-table-2": lambda c: c.ddl.create_table(
        "s1", "t", pa.schema({"id": pa.int32(), "name": pa.string()}), if_not_exists=True
    ),
    "create-table-6": lambda c: c.ddl.create_table(
        "s1",
        "mk",
        pa.schema({"a": pa.int32(), "b": pa.int32(), "c": pa.string()}),
        not_null=statement("create-table-6").rpcs[-1].decoded["not_null_constraints"],
        multi_key_primary_keys=["a", "b"],
        extra_constraints=["UNIQUE(b, c)"],
    ),
    "create-table-as-1": lambda c: c.ddl.create_table_as(
        "s1", "fresh", pa.table({"id": [0, 1, 2], "name": ["n0", "n1", "n2"]})
    ),
    "alter-1": lambda c: c.ddl.add_column("s1", "nested", pa.field("extra", pa.int32())),
    "alter-2": lambda c: c.ddl.add_column("s1", "nested", pa.field("extra", pa.int32()), if_not_exists=True),
    "alter-4": lambda c: c.ddl.rename_column("s1", "nested", "extra", "extra_r"),
    "alter-5": lambda c: c.ddl.set_default("s1", "nested", "extra_r", "42"),
    "alter-7": lambda c: c.ddl.set_not_null("s1", "nested", "extra_r"),
    "alter-8": lambda c: c.ddl.drop_not_null("s1", "nested", "extra_r"),
    "alter-9": lambda c: c.ddl.change_column_type("s1", "nested", pa.field("extra_r", pa.int64())),
    "alter-10": lambda c: c.ddl.change_column_type(
        "s1", "nested", pa.field("extra_r", pa.string()), using="concat('x', extra_r)"
    ),
    "alter-12": lambda c: c.ddl.remove_column("s1", "nested", "nosuch", if_exists=True),
    "alter-13": lambda c: c.ddl.remove_column("s1", "nested", "extra2", cascade=True),
    "alter-14": lambda c: c.ddl.add_field("s1", "nested", ["st"], pa.float64()),
    "alter-15": lambda c: c.ddl.rename_field("s1", "nested", ["st", "b"], "bb"),
    "alter-16": lambda c: c.ddl.remove_field("s1", "nested", ["st", "a"]),
    "alter-18": lambda c: c.ddl.rename_table("s1", "nested", "nested2"),
    "alter-20": lambda c: c.ddl.if_exists().add_column("s1", "t", pa.field("q", pa.int32())),
    "drop-1": lambda c: c.delete_where("s1", "ctas"),
    "drop-2": lambda c: c.ddl.drop_table("s1", "ctas"),
    "drop-3": lambda c: c.ddl.drop_table("s1", "ctas0", if_exists=True),
    "drop-4": lambda c: c.ddl.drop_table("s1", "nosuch", if_exists=True),
    "drop-6": lambda c: c.ddl.drop_schema("s1"),
    "drop-9": lambda c: c.ddl.drop_schema("s2", if_exists=True),
}
_OWN_HEADERS = ("airport-", "authority", "authorization", "return-chunks", "x-")


def names_of(headers: Any) -> Counter[str]:
    return Counter(name for name, _ in headers if name.startswith(_OWN_HEADERS))


def assert_sent_as_captured(server: ScriptedServer, rpcs: list[Rpc], *, bodies: bool = True) -> None:
    seen = server.seen
    assert [(each.method, each.action) for each in seen] == [(rpc.method, rpc.action) for rpc in rpcs]
    for each, rpc in zip(seen, rpcs, strict=True):
        assert names_of(each.headers) == names_of(rpc.headers), (rpc.statement, rpc.method, rpc.action)
        for name in ("airport-catalog", "airport-user-agent", "airport-operation", "return-chunks", "authorization"):
            assert dict(each.headers).get(name) == rpc.header(name), (rpc.statement, name)
        if bodies:
            assert dict(each.headers).get("airport-flight-path") == rpc.header("airport-flight-path"), rpc.statement
        if rpc.method == "DoAction" and bodies:
            assert each.body == rpc.body, (rpc.statement, rpc.action)
    for name in ("airport-trace-id", "airport-transaction-id"):
        assert shared(seen, name) == shared(rpcs, name)


def shared(calls: list[Any], name: str) -> list[int | None]:
    """Which calls have the same value of a header: the index of the first one that has it."""
    values = [dict(call.headers).get(name) for call in calls]
    return [None if value is None else values.index(value) for value in values]


@pytest.mark.parametrize("ids", SAID)
def test_statement_sends_the_captured_calls(server: ScriptedServer, client: AirportClient, ids: str) -> None:
    rpcs = [rpc for each in ids.split(",") for rpc in statement(each).rpcs]
    if "list_schemas" not in {rpc.action for rpc in rpcs}:
        client.tables()
        server.seen.clear()
    SAID[ids](client)
    # The table made here has another name, so that the scripted server does not know it yet.
    assert_sent_as_captured(server, rpcs, bodies=ids != "create-table-as-1")


@pytest.mark.parametrize(
    ("statement_id", "tokens"),
    [("auth-3", {"attach_token": "attach-token"}), ("auth-9", {"token": "secret-token"})],
)
def test_attach_tokens_stay_off_data_calls_and_scoped_ones_do_not(
    server: ScriptedServer, statement_id: str, tokens: dict[str, str]
) -> None:
    with AirportClient(server.location, "db", **tokens) as client:
        client.scan("alt", "a1", [])
    assert_sent_as_captured(server, list(statement(statement_id).rpcs))


def test_a_schema_without_contents_is_loaded_by_list_flights(server: ScriptedServer) -> None:
    with AirportClient(server.location, "lazy") as client:
        client.scan("alt", "a1", [])
    assert_sent_as_captured(server, list(statement("lazy-schema-2").rpcs))


def test_one_session_id_on_every_call_and_the_location_as_authority(
    server: ScriptedServer, client: AirportClient
) -> None:
    client.scan("demo", "people")
    client.flights()
    assert {dict(each.headers)["airport-client-session-id"] for each in server.seen} == {client.identity.session}
    assert {dict(each.headers)["authority"] for each in server.seen} == {server.location}


def test_without_a_transaction_id_no_header_is_sent() -> None:
    class Untransacted(ScriptedServer):
        def _create_transaction(self, _request: dict[str, Any]) -> list[bytes]:
            return [msgpack.packb({"identifier": None})]

    with Untransacted() as server, AirportClient(server.location, "db") as client:
        client.scan("demo", "people")
    assert all("airport-transaction-id" not in dict(each.headers) for each in server.seen)


def test_a_fixed_catalog_is_not_asked_for_its_version() -> None:
    class Fixed(ScriptedServer):
        def version(self) -> dict[str, Any]:
            return {"catalog_version": 1, "is_fixed": True}

    with Fixed() as server, AirportClient(server.location, "db") as client:
        client.scan("demo", "people")
    assert "catalog_version" not in {each.action for each in server.seen}


def test_unknown_names_are_answered_from_the_clients_own_list(server: ScriptedServer, client: AirportClient) -> None:
    client.tables()
    server.seen.clear()
    for schema, table in (("nosuch", "t"), ("demo", "nosuch"), ("main", "t")):
        with pytest.raises(UnknownNameError):
            client.scan(schema, table)
    assert [each.action for each in server.seen] == ["create_transaction"] * 3


def test_a_scan_gives_the_requested_columns_and_keeps_the_full_width(client: AirportClient) -> None:
    scanned = client.scan("demo", "people", ["rowid", "name"])
    assert scanned.rows()[0] == {"rowid": 0, "name": "Ann"}
    assert scanned.batches[0].schema.names == PEOPLE.names
    assert (scanned.num_rows, scanned.endpoints, scanned.progress) == (4, 1, [])


def test_a_scan_asks_for_statistics_and_reports_them(client: AirportClient) -> None:
    scanned = client.scan("demo", "people_stats", ["age"])
    assert scanned.statistics["age"]["max"] == 47
    assert client.column_statistics("demo", "people_stats", "name")["min"] == "Ann"


def test_endpoints_may_be_read_by_several_threads(server: ScriptedServer) -> None:
    with AirportClient(server.location, "db", threads=3) as client:
        assert client.scan("demo", "parts").num_rows == 12


def test_own_ddl_is_seen_without_another_listing(server: ScriptedServer, client: AirportClient) -> None:
    client.tables()
    client.ddl.rename_table("s1", "nested", "nested2")
    client.ddl.drop_table("s1", "t")
    client.ddl.create_schema("s2")
    client.ddl.create_table("s2", "made", pa.schema({"a": pa.int32()}))
    names = {(table.schema_name, table.name) for table in client.tables()}
    assert names.isdisjoint({("s1", "nested"), ("s1", "t")})
    assert names.issuperset({("s1", "nested2"), ("s2", "made")})
    assert [each.action for each in server.seen].count("list_schemas") == 1


# Captured replies


def test_captured_replies_are_accepted() -> None:
    decoded = Counter[str]()
    for rpc in captures.rpcs("DoAction"):
        for raw in rpc.result_bytes:
            captured = rpc.results[0]
            if rpc.action == "catalog_version":
                assert decode_catalog_version(raw).catalog_version == captured["msgpack"]["catalog_version"]
            elif rpc.action == "create_transaction":
                assert decode_transaction(raw) == captured["msgpack"]["identifier"]
            elif rpc.action == "create_schema":
                found = decode_contents(msgpack.unpackb(raw, raw=True), rpc.action)
                assert open_contents(found, "db", "s1") == []
            elif "FlightInfo" in captured:
                metadata = captured["FlightInfo"]["app_metadata"]["msgpack"]
                found = decode_flight(decode_info(raw, rpc.action), "db", metadata["schema"])
                assert (found.kind, found.name) == (metadata["type"], metadata["name"])
                assert found.schema.names == [each["name"] for each in captured["FlightInfo"]["schema"]["fields"]]
            else:
                continue
            decoded[rpc.action] += 1
    assert decoded.keys() >= {"catalog_version", "create_transaction", "create_schema", "create_table", "add_column"}


def test_types_uploaded_by_default_are_the_captured_ones() -> None:
    checked = 0
    for line in captures.types():
        mode = line.get("default_into_lossless_column", {})
        declared = line.get("lossless", {}).get("insert", {}).get("upload_ipc_hex")
        if line["settings"] or "insert" not in mode or declared is None or "upload_ipc_hex" not in mode["insert"]:
            continue
        column_type = captures.decode_upload(declared)[0].field(0).type
        uploaded = captures.decode_upload(mode["insert"]["upload_ipc_hex"])[0].field(0).type
        found = upload_type(column_type)
        # The zone is the capturing process's own: Etc/UTC in some, UTC in others.
        assert str(found).replace(TIME_ZONE, "UTC") == str(uploaded).replace(TIME_ZONE, "UTC"), line["duckdb_type"]
        checked += 1
    assert checked == 48
