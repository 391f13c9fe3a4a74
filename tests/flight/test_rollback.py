"""Rollbacks over Delta tables: beside statements that run, on old tables, and where what they need is gone."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from gateway.lake.writing import merge
from gateway.ops.lifecycle import Gateway
from gateway.transactions.ids import TransactionIds
from tests.airport import AirportClient
from tests.builders import Lake, age
from tests.conftest import CATALOG
from tests.flight.test_transactions import Caller, code_of, foreign_append
from tests.flight.writing import NUMBERS, batch, before_the_next_merge, numbers, refused, rows_of, version_of
from tests.refusals import decode_status

WEEKS_AGO = 16


@pytest.fixture
def caller(gateway: Gateway, lake: Lake) -> Iterator[Caller]:
    numbers(lake)
    connected = Caller(gateway.location, lake.schema)
    yield connected
    connected.close()


@pytest.fixture
def restarted(start_gateway: Callable[..., Gateway], lake: Lake) -> Iterator[Callable[..., Caller]]:
    """Callers of further gateways, which know of the past what the log tells."""
    callers: list[Caller] = []

    def start(**sections: dict[str, Any]) -> Caller:
        callers.append(Caller(start_gateway(lake.warehouse, **sections).location, lake.schema))
        return callers[-1]

    yield start
    for each in callers:
        each.close()


def status_of(caller: Caller, identity: str) -> dict[str, Any]:
    return caller.said("get_transaction_status", transaction_id=identity)


def roll_back(caller: Caller, identity: str) -> dict[str, Any]:
    return caller.said("rollback_transaction", transaction_id=identity)


def undone_by(lake: Lake, version: int, rows: int, table: str = "n") -> list[dict[str, Any]]:
    return [{"table": f"{lake.schema}.{table}", "version": version, "rows": rows}]


# Beside statements that run.


@pytest.mark.parametrize("header", ["airport", "contract"])
def test_a_rollback_while_its_insert_is_written_takes_the_row_back(
    caller: Caller, gateway: Gateway, client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    identity = caller.begin()
    other = Caller(gateway.location, lake.schema)
    transactions = gateway.service.lake.transactions
    with ThreadPoolExecutor(1) as threads:
        rolled_back = []

        def begin_rollback() -> None:
            rolled_back.append(threads.submit(roll_back, other, identity))
            wait_until(lambda: "rolled back" in transactions.refusal(identity, once=False).message)
            assert status_of(caller, identity) == {"status": "active", "exists": True}

        with before_the_next_merge(monkeypatch, begin_rollback):
            assert caller.insert(batch(k=[10], v=["x"]), **{header: identity}) == 1
        reply = rolled_back[0].result(120)
    other.close()
    assert (reply["state"], reply["undone_by"]) == ("committed", undone_by(lake, 2, 1))
    assert len(rows_of(client, lake)) == 4
    assert roll_back(caller, identity) == reply
    assert status_of(caller, identity) == {"status": "committed", "exists": True, "undone_by": reply["undone_by"]}
    refusal = f"transaction {identity} is not active (state: committed)"
    assert code_of(lambda: caller.insert(batch(k=[11], v=["x"]), **{header: identity})) == (
        "FAILED_PRECONDITION",
        refusal,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_rollback_during_the_upload_leaves_nothing_to_be_written(
    caller: Caller, gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    identity, rows = caller.begin(), batch(k=[10], v=["x"])
    command = {"operation": "insert", "catalog_name": CATALOG, "schema_name": lake.schema, "table_name": "n"}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    options = flight.FlightCallOptions(headers=[(b"x-transaction-id", identity.encode())])
    connection = flight.connect(gateway.location)
    upload, replies = connection.do_put(descriptor, rows.schema, options)
    upload.write_batch(rows)
    transactions = gateway.service.lake.transactions
    wait_until(lambda: "one is running" in transactions.refusal(identity, once=True).message)
    assert roll_back(caller, identity)["state"] == "aborted"

    def finish() -> None:
        upload.done_writing()
        replies.read()
        upload.close()

    assert "was rolled back meanwhile; nothing was written" in refused(finish)
    connection.close()
    assert status_of(caller, identity) == {"status": "aborted", "exists": True}
    assert version_of(lake) == 0
    assert len(rows_of(client, lake)) == 4


def test_one_contract_transaction_lets_one_of_four_parallel_inserts_through(
    caller: Caller, gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    identity, barrier = caller.begin(), threading.Barrier(4)

    def insert(key: int) -> str:
        own = Caller(gateway.location, lake.schema)
        barrier.wait(60)
        try:
            return str(own.insert(batch(k=[key], v=["x"]), contract=identity))
        except flight.FlightError as error:
            (_, _, code) = decode_status(error.extra_info)
            return code
        finally:
            own.close()

    with ThreadPoolExecutor(4) as threads:
        outcomes = sorted(threads.map(insert, range(10, 14)))
    assert outcomes == ["1"] + ["FAILED_PRECONDITION"] * 3
    assert len(rows_of(client, lake)) == 5
    assert status_of(caller, identity) == {"status": "committed", "exists": True}
    assert roll_back(caller, identity)["undone_by"] == undone_by(lake, 2, 1)
    assert len(rows_of(client, lake)) == 4


# Ids that were never issued here.


def test_an_id_that_is_not_known_here_writes_nothing_in_either_dialect_and_reads(
    caller: Caller, client: AirportClient, lake: Lake, restarted: Callable[..., Caller]
) -> None:
    issued = caller.begin()
    forged = issued[:-1] + ("0" if issued[-1] != "0" else "1")
    before_restart = restarted().begin()
    for header in ("airport", "contract"):
        for unknown in ("not a tx", forged, before_restart):
            refusal = "FAILED_PRECONDITION", f"transaction {unknown} is not known; start a new one"
            assert code_of(lambda: caller.insert(batch(k=[9], v=["x"]), **{header: unknown})) == refusal  # noqa: B023
            assert code_of(lambda: caller.update([0], batch(v=["x"]), **{header: unknown})) == refusal  # noqa: B023
            assert code_of(lambda: caller.delete([0], **{header: unknown})) == refusal  # noqa: B023
    stale = client.begin()
    stale.id, stale.has_begun = before_restart, True
    assert client.scan(lake.schema, "n", transaction=stale).num_rows == 4
    for change in (
        lambda: client.insert(lake.schema, "n", batch(k=[9], v=["x"]), transaction=stale),
        lambda: client.update(lake.schema, "n", batch(v=["x"], rowid=[1]), sets=["v"], transaction=stale),
        lambda: client.delete(lake.schema, "n", [1], transaction=stale),
    ):
        assert "is not known; start a new one" in refused(change)
    assert version_of(lake) == 0
    # Outside of BEGIN the client asks for a new id with each statement, and so goes on by itself.
    assert client.insert(lake.schema, "n", batch(k=[9], v=["x"])).total_changed == 1


def test_an_id_that_outlives_a_restart_by_its_secret_is_settled_from_the_log_and_takes_no_statement(
    caller: Caller, client: AirportClient, lake: Lake, restarted: Callable[..., Caller]
) -> None:
    secret = {"transactions": {"secret": "s3cret"}}
    first = restarted(**secret)
    wrote, idle = first.begin(), first.begin()
    assert first.insert(batch(k=[9], v=["x"]), airport=wrote) == 1
    second = restarted(**secret)
    for identity in (wrote, idle):
        code, text = code_of(lambda: second.insert(batch(k=[10], v=["x"]), airport=identity))  # noqa: B023
        assert (code, text) == ("FAILED_PRECONDITION", f"transaction {identity} is not known any more; start a new one")
    assert status_of(second, wrote) == {"status": "committed", "exists": True}
    assert status_of(second, idle) == {"status": "", "exists": False}
    assert roll_back(second, wrote)["undone_by"] == undone_by(lake, 2, 1)
    assert len(rows_of(client, lake)) == 4


# Old tables.


def test_on_a_table_that_nobody_wrote_for_weeks_undo_repeatable_reads_and_history_work_by_both_routes(
    caller: Caller,
    client: AirportClient,
    lake: Lake,
    restarted: Callable[..., Caller],
    start_gateway: Callable[..., Gateway],
) -> None:
    first, second = caller.begin(), caller.begin()
    assert caller.insert(batch(k=[10], v=["x"]), airport=first) == 1
    assert caller.update([0], batch(v=["y"]), airport=second) == 1
    assert caller.insert(batch(k=[11], v=["z"])) == 1
    issued_then = TransactionIds(None).issue(int((time.time() - WEEKS_AGO * 86_400) * 1000), manual=False)
    age(lake, "n", WEEKS_AGO, {second: issued_then})
    with AirportClient(start_gateway(lake.warehouse, scan={"engine": "spark"}).location, CATALOG) as by_spark:
        for reading in (client, by_spark):
            at = [reading.scan(lake.schema, "n", at=("VERSION", str(version))).num_rows for version in range(4)]
            assert at == [4, 5, 5, 6]
            old = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - (WEEKS_AGO - 1) * 86_400))
            assert reading.scan(lake.schema, "n", at=("TIMESTAMP", old)).num_rows == 6
        blocks = [(reading, reading.begin()) for reading in (client, by_spark)]
        for reading, block in blocks:
            assert reading.scan(lake.schema, "n", transaction=block).num_rows == 6
        foreign_append(lake, 100)
        for reading, block in blocks:
            assert reading.scan(lake.schema, "n", transaction=block).num_rows == 6
    assert roll_back(caller, first)["undone_by"] == undone_by(lake, 5, 1)
    assert roll_back(restarted(), issued_then)["undone_by"] == undone_by(lake, 6, 1)
    assert [row[:2] for row in rows_of(client, lake)] == [
        (0, "v0"),
        (1, "v1"),
        (2, "v2"),
        (3, "v3"),
        (11, "z"),
        (100, "theirs"),
    ]


# What an undo needs is gone, or elsewhere.


def test_a_rollback_where_early_commits_are_out_of_the_log_changes_nothing(
    caller: Caller, client: AirportClient, lake: Lake, restarted: Callable[..., Caller]
) -> None:
    identity, other = caller.begin(), caller.begin()
    assert caller.insert(batch(k=[10], v=["x"]), airport=identity) == 1
    assert caller.insert(batch(k=[11], v=["y"]), airport=other) == 1
    assert caller.insert(batch(k=[12], v=["x"]), airport=identity) == 1
    DeltaTable(str(lake.path("n"))).create_checkpoint()
    before = rows_of(client, lake)
    cut_log(lake, 2)
    text = f"table '{lake.schema}.n': not all that transaction {identity} wrote is in its log any more"
    assert text in code_of(lambda: roll_back(caller, identity))[1]
    code, text = code_of(lambda: roll_back(restarted(), identity))
    assert code == "FAILED_PRECONDITION"
    assert text == (
        f"transaction {identity} cannot be rolled back as a whole:"
        f" the log of table '{lake.schema}.n' does not reach back to its beginning"
    )
    assert rows_of(client, lake) == before
    assert version_of(lake) == 3
    # A log that was cut so lately leaves open, for a minute, what any other transaction wrote.
    shutil.rmtree(lake.path("n"))


def cut_log(lake: Lake, first: int) -> None:
    """What Delta's clean-up of the log does."""
    for file in (lake.path("n") / "_delta_log").iterdir():
        if file.name.lstrip(".")[:20].isdecimal() and int(file.name.lstrip(".")[:20]) < first:
            file.unlink()


def test_after_a_vacuum_a_rollback_says_that_files_are_gone(caller: Caller, client: AirportClient, lake: Lake) -> None:
    identity = caller.begin()
    assert caller.update([0, 1], batch(v=["y", "y"]), airport=identity) == 2
    assert caller.update([0, 1, 2, 3], batch(v=["z", "z", "z", "z"])) == 4
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    lake.sql("VACUUM {t} RETAIN 0 HOURS", "n")
    lake.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    before, version = rows_of(client, lake), version_of(lake)
    code, text = code_of(lambda: roll_back(caller, identity))
    assert (code, "are gone, so it cannot be undone" in text) == ("FAILED_PRECONDITION", True), text
    assert (rows_of(client, lake), version_of(lake)) == (before, version)


def test_what_an_append_only_table_took_stays(caller: Caller, client: AirportClient, lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')", "n")
    identity = caller.begin()
    assert caller.insert(batch(k=[10], v=["x"]), contract=identity) == 1
    text = f"table '{lake.schema}.n' is append-only: what was written into it cannot be undone"
    assert code_of(lambda: roll_back(caller, identity)) == ("FAILED_PRECONDITION", text)
    assert len(rows_of(client, lake)) == 5


def test_a_rollback_follows_a_renamed_table_and_leaves_the_new_one_of_its_name_alone(
    caller: Caller, client: AirportClient, lake: Lake
) -> None:
    identity = caller.begin()
    assert caller.insert(batch(k=[10], v=["x"]), airport=identity) == 1
    client.ddl.rename_table(lake.schema, "n", "old")
    client.ddl.create_table(lake.schema, "n", pa.schema([("k", pa.int64()), ("v", pa.string())]))
    assert caller.insert(batch(k=[20], v=["new"])) == 1
    reply = roll_back(caller, identity)
    assert reply["undone_by"] == undone_by(lake, 2, 1, "old")
    assert len(rows_of(client, lake, "old")) == 4
    assert [row[:2] for row in rows_of(client, lake)] == [(20, "new")]
    assert roll_back(caller, identity) == reply


def test_a_rollback_does_not_take_another_table_for_the_one_that_was_replaced(
    caller: Caller, client: AirportClient, lake: Lake
) -> None:
    identity = caller.begin()
    assert caller.insert(batch(k=[10], v=["x"]), airport=identity) == 1
    shutil.rmtree(lake.path("n"))
    for key in range(3):
        write_deltalake(str(lake.path("n")), pa.table([[key], [key], ["new"]], schema=NUMBERS), mode="append")
    code, text = code_of(lambda: roll_back(caller, identity))
    assert code == "FAILED_PRECONDITION"
    assert text == (
        f"table '{lake.schema}.n' was replaced by another one:"
        f" what transaction {identity} wrote into it cannot be undone"
    )
    assert status_of(caller, identity) == {"status": "committed", "exists": True}
    assert len(rows_of(client, lake)) == 3


# With idempotency keys.


class KeyedCaller(Caller):
    def keyed(self, rows: pa.RecordBatch, key: str, **headers: str) -> dict[str, Any]:
        command = {"operation": "insert", "idempotency_key": key, "returning": True}
        descriptor = flight.FlightDescriptor.for_command(json.dumps({**self._target, **command}).encode())
        upload, replies = self._client.do_put(descriptor, rows.schema, self._options(headers))
        with upload:
            upload.write_batch(rows)
            upload.done_writing()
            reply: dict[str, Any] = msgpack.unpackb(replies.read().to_pybytes())
        return reply


def test_a_key_whose_write_was_rolled_back_writes_again(
    caller: Caller, gateway: Gateway, client: AirportClient, lake: Lake, start_gateway: Callable[..., Gateway]
) -> None:
    identity, rows = caller.begin(), batch(k=[10], v=["x"])
    own = KeyedCaller(gateway.location, lake.schema)
    assert own.keyed(rows, "a", contract=identity)["affected_rows"] == 1
    assert roll_back(own, identity)["undone_by"] == undone_by(lake, 2, 1)
    text = f"transaction {identity} is not active (state: committed)"
    assert code_of(lambda: own.keyed(rows, "a", contract=identity)) == ("FAILED_PRECONDITION", text)
    assert own.keyed(rows, "a", contract=own.begin())["affected_rows"] == 1
    next_gateway = KeyedCaller(start_gateway(lake.warehouse).location, lake.schema)
    assert next_gateway.keyed(rows, "a")["affected_rows"] == 1
    assert (len(rows_of(client, lake)), version_of(lake)) == (5, 3)
    for each in (own, next_gateway):
        each.close()


def test_a_commit_that_the_gateway_took_back_itself_counts_neither_for_its_transaction_nor_for_its_key(
    caller: Caller, gateway: Gateway, client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, identity, original = batch(k=[10, 11], v=["x", "x"]), caller.begin(), merge.rows_in_memory
    own = KeyedCaller(gateway.location, lake.schema)
    with monkeypatch.context() as patch:
        patch.setattr(merge, "rows_in_memory", lambda session, rows, types: original(session, rows.slice(1), types))
        assert "that was taken back" in refused(lambda: own.keyed(rows, "a", contract=identity))
    assert version_of(lake) == 2
    assert status_of(own, identity) == {"status": "aborted", "exists": True}
    assert roll_back(own, identity)["undone_by"] == []
    assert own.keyed(rows, "a", contract=own.begin())["affected_rows"] == 2
    own.close()
    assert (len(rows_of(client, lake)), version_of(lake)) == (6, 3)


def test_the_same_request_under_a_contract_transaction_gets_its_first_answer_also_after_a_restart(
    caller: Caller, gateway: Gateway, client: AirportClient, lake: Lake, start_gateway: Callable[..., Gateway]
) -> None:
    identity, rows = caller.begin(), batch(k=[10], v=["x"])
    own = KeyedCaller(gateway.location, lake.schema)
    first = own.keyed(rows, "a", contract=identity)
    next_gateway = KeyedCaller(start_gateway(lake.warehouse).location, lake.schema)
    for each in (own, own, next_gateway):
        assert each.keyed(rows, "a", contract=identity) == first
    text = f"transaction {identity} is not active (state: committed)"
    assert code_of(lambda: own.keyed(rows, "b", contract=identity)) == ("FAILED_PRECONDITION", text)
    other = own.begin()
    assert own.keyed(rows, "a", contract=other) == first
    assert roll_back(own, other) == {
        "status": "success",
        "transaction_id": other,
        "state": "committed",
        "undone_by": [],
    }
    nothing = batch(k=[], v=[])
    last = own.begin()
    for _ in range(2):
        assert own.keyed(nothing, "c", contract=last)["affected_rows"] == 0
    assert (len(rows_of(client, lake)), version_of(lake)) == (5, 1)
    for each in (own, next_gateway):
        each.close()
