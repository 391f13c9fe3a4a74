"""Transactions over the service: the actions in both encodings, and what statements under one id see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import flight

from gateway.ops.lifecycle import Gateway
from gateway.settings import TransactionSettings
from tests.airport import AirportClient
from tests.airport import requests as bodies
from tests.builders import Lake
from tests.flight.conftest import MemoryService
from tests.flight.writing import NUMBERS, batch, numbers, refused, rows_of, version_of
from tests.refusals import refusal_of

ENCODINGS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "json": (lambda body: json.dumps(body).encode(), json.loads),
    "msgpack": (msgpack.packb, msgpack.unpackb),
}


class Caller:
    """A program that speaks the JSON dialect and names its transaction in a header."""

    def __init__(self, location: str, schema: str = "demo", table: str = "n") -> None:
        self._client = flight.connect(location)
        self._target = {"catalog_name": "lake", "schema_name": schema, "table_name": table}

    def close(self) -> None:
        self._client.close()

    def act(self, name: str, body: bytes = b"", **headers: str) -> bytes:
        options = self._options(headers)
        (reply,) = self._client.do_action(flight.Action(name, body), options)
        raw: bytes = reply.body.to_pybytes()
        return raw

    def said(self, name: str, **fields: object) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self.act(name, json.dumps(fields).encode()))
        return reply

    def begin(self, **fields: object) -> str:
        return str(self.said("create_transaction", **fields)["transaction_id"])

    def insert(self, rows: pa.RecordBatch, **headers: str) -> int:
        return self._put({"operation": "insert"}, rows, headers)

    def update(self, row_ids: list[int], rows: pa.RecordBatch, **headers: str) -> int:
        return self._put({"operation": "update", "row_ids": row_ids}, rows, headers)

    def delete(self, row_ids: list[int], **headers: str) -> int:
        body = json.dumps({**self._target, "row_ids": row_ids}).encode()
        return int(json.loads(self.act("delete", body, **headers))["affected_rows"])

    def _put(self, command: dict[str, Any], rows: pa.RecordBatch, headers: dict[str, str]) -> int:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({**self._target, **command}).encode())
        upload, replies = self._client.do_put(descriptor, rows.schema, self._options(headers))
        with upload:
            upload.write_batch(rows)
            upload.done_writing()
            reply = replies.read()
        return int(msgpack.unpackb(reply.to_pybytes())["affected_rows"])

    @staticmethod
    def _options(headers: dict[str, str]) -> flight.FlightCallOptions:
        named = {"contract": b"x-transaction-id", "airport": b"airport-transaction-id"}
        named["session"] = b"airport-client-session-id"
        return flight.FlightCallOptions(headers=[(named[name], value.encode()) for name, value in headers.items()])


def code_of(work: Callable[[], object]) -> tuple[str, str]:
    """The true code of a refused call, and its text."""
    refusal = refusal_of(work)
    assert refusal.reason is not None
    return refusal.reason, refusal.text


# The actions, over tables in memory.


@pytest.fixture
def caller(service: MemoryService) -> Iterator[Caller]:
    connected = Caller(service.location)
    yield connected
    connected.close()


def test_a_transaction_is_created_in_the_dialect_of_the_request(service: MemoryService, caller: Caller) -> None:
    packed = msgpack.unpackb(caller.act("create_transaction", bodies.create_transaction("lake")))
    assert service.transactions.issued_ms(packed["identifier"]) is not None
    for body in (b"", b"{}", b" {}", b'{"auto_commit": true, "catalog_name": "lake"}'):
        reply = json.loads(caller.act("create_transaction", body))
        assert reply["status"] == "success"
        assert service.transactions.issued_ms(reply["transaction_id"]) is not None


@pytest.mark.parametrize("body", [b'{"auto_commit": 1}', b'{"unknown": 1}', b"{", b'{"auto_commit": true'])
def test_a_body_that_is_not_understood_is_an_invalid_argument(caller: Caller, body: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid, match="create_transaction"):
        caller.act("create_transaction", body)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_commit_rollback_and_status_speak_both_encodings_and_may_be_said_again(caller: Caller, encoding: str) -> None:
    encode, decode = ENCODINGS[encoding]

    def said(action: str, transaction: str) -> Any:
        return decode(caller.act(action, encode({"transaction_id": transaction})))

    committed, rolled_back = caller.begin(), caller.begin()
    assert said("get_transaction_status", committed) == {"status": "active", "exists": True}
    for _ in range(2):
        reply = {"status": "success", "transaction_id": committed, "state": "committed"}
        assert said("commit_transaction", committed) == reply
        reply = {"status": "success", "transaction_id": rolled_back, "state": "aborted", "undone_by": []}
        assert said("rollback_transaction", rolled_back) == reply
    assert said("get_transaction_status", committed) == {"status": "committed", "exists": True}
    assert said("get_transaction_status", rolled_back) == {"status": "aborted", "exists": True}
    assert said("get_transaction_status", "x") == {"status": "", "exists": False}


@pytest.mark.parametrize("action", ["commit_transaction", "rollback_transaction"])
def test_ids_that_cannot_be_ended_are_refused_by_their_code(caller: Caller, action: str) -> None:
    for malformed in ("x", "é", "a-b-c-d"):
        with pytest.raises(pa.ArrowKeyError, match="not found"):
            caller.said(action, transaction_id=malformed)
    issued = caller.begin()
    forged = issued[:-1] + ("0" if issued[-1] != "0" else "1")
    code, text = code_of(lambda: caller.said(action, transaction_id=forged))
    assert (code, text) == ("FAILED_PRECONDITION", f"transaction {forged} is not known any more; start a new one")
    for body in (b'{"transaction_id": 7}', b'{"transaction_id": ""}', b'{"id": "x"}', b"{}"):
        with pytest.raises(pa.ArrowInvalid, match=r"transaction_id|'id' is unknown"):
            caller.act(action, body)
    # Only DuckDB's own client gets plain Flight errors, whatever the encoding.
    with pytest.raises(pa.ArrowInvalid, match="field 'transaction_id' is missing"):
        caller.act(action, msgpack.packb({}))


def test_what_was_aborted_cannot_be_committed(caller: Caller) -> None:
    identity = caller.begin()
    caller.said("rollback_transaction", transaction_id=identity)
    assert code_of(lambda: caller.said("commit_transaction", transaction_id=identity)) == (
        "FAILED_PRECONDITION",
        f"transaction {identity} is not active (state: aborted)",
    )


def test_an_empty_body_means_the_header_or_the_session(caller: Caller, service: MemoryService) -> None:
    identity = caller.begin()
    assert json.loads(caller.act("commit_transaction", contract=identity))["transaction_id"] == identity
    with pytest.raises(pa.ArrowInvalid, match="field 'transaction_id' is missing"):
        caller.act("commit_transaction")
    with pytest.raises(pa.ArrowKeyError, match="no transaction is remembered in which this session wrote"):
        caller.act("rollback_transaction", session="mine")


def test_without_a_manager_json_callers_are_refused_and_the_client_goes_on_without(
    start_service: Callable[..., MemoryService],
) -> None:
    service = start_service(transactions=TransactionSettings(enabled=False))
    service.add("demo", "people", pa.table({"id": [1, 2]}))
    caller = Caller(service.location)
    assert msgpack.unpackb(caller.act("create_transaction", bodies.create_transaction("lake"))) == {"identifier": None}
    body = b'{"transaction_id": "x"}'
    for action in ("create_transaction", "commit_transaction", "rollback_transaction", "get_transaction_status"):
        with pytest.raises(pa.ArrowNotImplementedError, match=r"^transaction manager not configured"):
            caller.act(action, b"{}" if action == "create_transaction" else body)
    caller.close()
    with AirportClient(service.location, "lake") as client, client.begin() as transaction:
        assert client.scan("demo", "people", transaction=transaction).num_rows == 2
        service.source.found["demo", "people"].versions.append(pa.table({"id": [1, 2, 3]}))  # type: ignore[union-attr]
        assert client.scan("demo", "people", transaction=transaction).num_rows == 3


# What statements see and do, over Delta tables.


@pytest.fixture
def on_delta(gateway: Gateway, lake: Lake) -> Iterator[Caller]:
    numbers(lake)
    connected = Caller(gateway.location, lake.schema)
    yield connected
    connected.close()


def foreign_append(lake: Lake, key: int) -> None:
    row = pa.table([[key], [key], ["theirs"]], schema=NUMBERS)
    write_deltalake(str(lake.path("n")), row, mode="append")


def test_scans_statistics_and_the_scan_of_an_update_read_one_version_whatever_others_commit(
    client: AirportClient, on_delta: Caller, lake: Lake
) -> None:
    transaction, seen = client.begin(), []

    def change(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(rows.column("k").to_pylist())
        return pa.record_batch({"v": pa.array(["mine"] * rows.num_rows), "rowid": rows.column("rowid")})

    for commit in (
        lambda: None,
        lambda: foreign_append(lake, 100),
        lambda: on_delta.insert(batch(k=[101], v=["theirs"])),
        lambda: lake.sql("OPTIMIZE {t}", "n"),
    ):
        commit()
        assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 4
        assert client.column_statistics(lake.schema, "n", "k", transaction=transaction)["max"] == 3
    updated = client.update_where(lake.schema, "n", change, sets=["v"], reads=["k"], transaction=transaction)
    assert (updated.total_changed, sorted(seen)) == (4, [0, 1, 2, 3])
    # From its own write on it sees the table as of that write.
    assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 6
    assert client.column_statistics(lake.schema, "n", "k", transaction=transaction)["max"] == 101
    foreign_append(lake, 102)
    assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 6
    assert client.scan(lake.schema, "n").num_rows == 7


def test_columns_that_others_change_during_a_transaction_stay_as_it_met_them(
    client: AirportClient, on_delta: Caller, lake: Lake
) -> None:
    transaction = client.begin()
    before = client.scan(lake.schema, "n", transaction=transaction).rows()
    lake.sql("ALTER TABLE {t} ADD COLUMNS (extra STRING)", "n")
    lake.sql("UPDATE {t} SET v = 'theirs', extra = 'new'", "n")
    assert client.scan(lake.schema, "n", transaction=transaction).rows() == before
    rows = batch(v=["mine"], rowid=[1])
    text = refused(lambda: client.update(lake.schema, "n", rows, sets=["v"], transaction=transaction))
    assert "conflict: " in text
    assert {row[1] for row in rows_of(client, lake)} == {"theirs"}


def test_a_table_that_others_replace_during_a_transaction_is_not_taken_for_the_first(
    client: AirportClient, on_delta: Caller, lake: Lake
) -> None:
    transaction = client.begin()
    client.scan(lake.schema, "n", transaction=transaction)
    shutil.rmtree(lake.path("n"))
    write_deltalake(str(lake.path("n")), pa.table([[9], [9], ["another"]], schema=NUMBERS))
    assert "'" in refused(lambda: client.scan(lake.schema, "n", transaction=transaction))
    rows = batch(v=["mine"], rowid=[9])
    assert "replaced" in refused(lambda: client.update(lake.schema, "n", rows, sets=["v"], transaction=transaction))
    assert rows_of(client, lake) == [(9, "another", 9)]


@pytest.mark.parametrize("header", ["airport", "contract"])
def test_a_json_change_in_a_transaction_conflicts_with_what_changed_since_it_read(
    client: AirportClient, on_delta: Caller, lake: Lake, header: str
) -> None:
    transaction = client.begin()
    client.scan(lake.schema, "n", transaction=transaction)
    assert transaction.id is not None
    on_delta.update([1], batch(v=["theirs"]))
    code, text = code_of(lambda: on_delta.update([1], batch(v=["mine"]), **{header: transaction.id}))
    assert (code, text.partition(":")[0]) == ("ABORTED", "conflict")
    assert on_delta.said("get_transaction_status", transaction_id=transaction.id)["status"] == "aborted"
    text = f"transaction {transaction.id} is not active (state: aborted)"
    assert code_of(lambda: on_delta.delete([2], **{header: transaction.id})) == ("FAILED_PRECONDITION", text)
    assert version_of(lake) == 1


def test_a_contract_transaction_is_one_operation_and_a_begin_block_is_not(on_delta: Caller) -> None:
    once, block = on_delta.begin(), on_delta.begin()
    for key in (10, 11):
        assert on_delta.insert(batch(k=[key], v=["x"]), airport=block) == 1
    assert on_delta.insert(batch(k=[12], v=["x"]), contract=once) == 1
    text = f"transaction {once} is not active (state: committed)"
    assert code_of(lambda: on_delta.insert(batch(k=[13], v=["x"]), contract=once)) == ("FAILED_PRECONDITION", text)
    # The headers have different rules, for the same id, too.
    assert on_delta.insert(batch(k=[13], v=["x"]), airport=once) == 1


def test_a_transaction_without_auto_commit_takes_operations_until_it_is_committed(
    client: AirportClient, on_delta: Caller, lake: Lake
) -> None:
    identity = on_delta.begin(auto_commit=False)
    assert on_delta.insert(batch(k=[10], v=["x"]), contract=identity) == 1
    assert on_delta.update([0, 4], batch(v=["y", "y"]), contract=identity) == 2
    assert on_delta.said("get_transaction_status", transaction_id=identity) == {"status": "active", "exists": True}
    assert on_delta.said("commit_transaction", transaction_id=identity)["state"] == "committed"
    text = f"transaction {identity} is not active (state: committed)"
    assert code_of(lambda: on_delta.delete([0], contract=identity)) == ("FAILED_PRECONDITION", text)
    assert [row[1] for row in rows_of(client, lake)] == ["y", "v1", "v2", "v3", "y"]


def test_a_rollback_takes_back_what_was_written_and_may_be_said_again(
    client: AirportClient, on_delta: Caller, start_gateway: Callable[..., Gateway], lake: Lake
) -> None:
    identity, session = on_delta.begin(), "a session of its own"
    assert on_delta.insert(batch(k=[10], v=["x"]), airport=identity, session=session) == 1
    assert on_delta.update([0, 4], batch(v=["y", "y"]), airport=identity, session=session) == 2
    assert on_delta.insert(batch(k=[11], v=["theirs"])) == 1
    reply = json.loads(on_delta.act("rollback_transaction", session=session))
    assert reply == {
        "status": "success",
        "transaction_id": identity,
        "state": "committed",
        "undone_by": [{"table": f"{lake.schema}.n", "version": 4, "rows": 2}],
    }
    assert [row[1] for row in rows_of(client, lake)] == ["v0", "v1", "v2", "v3", "theirs"]
    restarted = Caller(start_gateway(lake.warehouse).location)
    for caller in (on_delta, restarted):
        assert caller.said("rollback_transaction", transaction_id=identity) == reply
        status = caller.said("get_transaction_status", transaction_id=identity)
        assert status == {"status": "committed", "exists": True, "undone_by": reply["undone_by"]}
    restarted.close()
    assert version_of(lake) == 4


def test_a_rollback_after_others_changed_the_rows_is_a_conflict_and_changes_nothing(
    client: AirportClient, on_delta: Caller, lake: Lake
) -> None:
    identity = on_delta.begin(auto_commit=False)
    assert on_delta.update([0, 1], batch(v=["mine", "mine"]), contract=identity) == 2
    assert on_delta.update([1], batch(v=["theirs"])) == 1
    code, _ = code_of(lambda: on_delta.said("rollback_transaction", transaction_id=identity))
    assert code == "ABORTED"
    assert on_delta.said("get_transaction_status", transaction_id=identity) == {"status": "active", "exists": True}
    assert [row[1] for row in rows_of(client, lake)] == ["mine", "theirs", "v2", "v3"]


def test_another_gateway_finds_in_the_log_what_was_committed(
    on_delta: Caller, start_gateway: Callable[..., Gateway], lake: Lake
) -> None:
    wrote, only_read = on_delta.begin(), on_delta.begin()
    on_delta.insert(batch(k=[10], v=["x"]), contract=wrote)
    for key in (11, 12):
        foreign_append(lake, key)
    restarted = Caller(start_gateway(lake.warehouse).location)
    assert restarted.said("get_transaction_status", transaction_id=wrote) == {"status": "committed", "exists": True}
    assert restarted.said("get_transaction_status", transaction_id=only_read) == {"status": "", "exists": False}
    assert restarted.said("commit_transaction", transaction_id=wrote)["state"] == "committed"
    restarted.close()


def test_without_a_manager_statements_work(start_gateway: Callable[..., Gateway], lake: Lake) -> None:
    numbers(lake)
    other = start_gateway(lake.warehouse, transactions={"enabled": "false"})
    caller = Caller(other.location, lake.schema)
    assert caller.insert(batch(k=[10], v=["x"]), contract="any") == 1
    assert caller.update([1], batch(v=["x"]), contract="any") == 1
    caller.close()
    with AirportClient(other.location, "lake") as client:
        rows = batch(v=["y"], rowid=[2])
        assert client.update(lake.schema, "n", rows, sets=["v"]).total_changed == 1
        assert [row[1] for row in rows_of(client, lake)] == ["v0", "x", "y", "v3", "x"]
