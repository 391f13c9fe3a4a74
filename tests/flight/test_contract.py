"""The JSON dialect over Delta tables: what only a real table can show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG, settings_for
from tests.flight.writing import JsonClient, batch, numbers, rows_of, sql_error, version_of
from tests.refusals import Refusal, refusal_of


@pytest.fixture
def json_client(gateway: Gateway, lake: Lake) -> Iterator[JsonClient]:
    numbers(lake)
    connected = JsonClient(gateway.location, lake.schema)
    yield connected
    connected.close()


def test_rows_are_inserted_updated_and_deleted(json_client: JsonClient, client: AirportClient, lake: Lake) -> None:
    assert json_client.insert(batch(v=["a", None], k=[10, 11])) == {"status": "success", "affected_rows": 2}
    assert json_client.update([1, 4], batch(v=["x", "y"]))["affected_rows"] == 2
    assert json_client.delete([0, 5])["affected_rows"] == 2
    assert rows_of(client, lake) == [(1, "x", 1), (2, "v2", 2), (3, "v3", 3), (10, "y", 4)]


def test_returning_gives_whole_rows(json_client: JsonClient) -> None:
    inserted = json_client.insert(batch(k=[10], v=["a"]), returning=True)
    assert inserted["returning_data"] == [{"k": 10, "v": "a", "rowid": None}]
    updated = json_client.update([2, 1], batch(v=["x", "y"]), returning=True)
    assert updated["returning_data"] == [{"k": 2, "v": "x", "rowid": 2}, {"k": 1, "v": "y", "rowid": 1}]
    narrow = json_client.update([2], batch(v=["z"]), returning=True, returning_columns=["rowid", "k"])
    assert narrow["returning_data"] == [{"rowid": 2, "k": 2}]
    deleted = json_client.delete([2, 0], returning=True)
    assert sorted(deleted["returning_data"], key=str) == [
        {"k": 0, "v": "v0", "rowid": 0},
        {"k": 2, "v": "z", "rowid": 2},
    ]


def test_an_unknown_row_id_is_not_found_and_changes_nothing(
    json_client: JsonClient, client: AirportClient, lake: Lake
) -> None:
    missing = Refusal("NOT_FOUND", "row_id 99 not found in table")
    assert refusal_of(lambda: json_client.update([1, 99, 98], batch(v=["x", "y", "z"]))) == missing
    assert refusal_of(lambda: json_client.delete([1, 99])) == missing
    empty = Refusal("INVALID_ARGUMENT", "row_ids cannot be empty for DELETE")
    assert refusal_of(lambda: json_client.delete([])) == empty
    assert version_of(lake) == 0


def test_an_unknown_row_id_among_more_than_memory_holds_is_not_found(
    start_gateway: Callable[..., Gateway], lake: Lake, tmp_path: Path
) -> None:
    numbers(lake)
    other = start_gateway(lake.warehouse, staging={"folder": tmp_path, "memory_rows": 2})
    spooling = JsonClient(other.location, lake.schema)
    missing = Refusal("NOT_FOUND", "row_id 7 not found in table")
    assert refusal_of(lambda: spooling.delete([1, 2, 7, 3, 6])) == missing
    assert refusal_of(lambda: spooling.update([1, 2, 7], batch(v=["x", "y", "z"]))) == missing
    spooling.close()
    assert version_of(lake) == 0


def test_a_row_changed_since_the_read_version_is_a_conflict(
    json_client: JsonClient, client: AirportClient, lake: Lake
) -> None:
    json_client.update([1], batch(v=["theirs"]))
    for stale in (
        lambda: json_client.update([0, 1], batch(v=["mine", "mine"]), read_version=0),
        lambda: json_client.delete([1], read_version=0),
    ):
        refusal = refusal_of(stale)
        assert (refusal.code, refusal.reason) == ("UNKNOWN", "ABORTED")
        assert refusal.text.startswith("conflict: ")
    assert version_of(lake) == 1
    # A row that nobody changed may be changed, though the table moved on; without a version the last write wins.
    assert json_client.update([2], batch(v=["mine"]), read_version=0)["affected_rows"] == 1
    assert json_client.update([1], batch(v=["mine"]))["affected_rows"] == 1
    assert [row[1] for row in rows_of(client, lake)] == ["v0", "mine", "mine", "v3"]


def test_a_read_version_that_does_not_exist_is_not_found(json_client: JsonClient, lake: Lake) -> None:
    refusal = refusal_of(lambda: json_client.update([1], batch(v=["x"]), read_version=7))
    name = f"{lake.schema}.n"
    assert refusal == Refusal("NOT_FOUND", f"table '{name}' has no version 7; it has 0 to 0")


def test_a_broken_constraint_is_a_failed_precondition(json_client: JsonClient, lake: Lake) -> None:
    refusal = refusal_of(lambda: json_client.insert(batch(k=[None], v=["x"])))
    assert refusal == Refusal("UNKNOWN", "NOT NULL constraint failed: column 'k'", reason="FAILED_PRECONDITION")
    assert version_of(lake) == 0


def test_a_table_without_row_ids_or_for_appending_only_says_what_it_cannot(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    lake.create("plain", "k BIGINT, v STRING")
    numbers(lake, "log", delta__appendOnly="true")
    for table, why in (("plain", "no rowid"), ("log", "append-only")):
        own = JsonClient(gateway.location, lake.schema, table)
        for verb, work in (
            ("UPDATE", lambda own=own: own.update([1], batch(v=["x"]))),
            ("DELETE", lambda own=own: own.delete([1])),
        ):
            assert refusal_of(work) == precondition(f"table '{table}' does not support {verb} ({why})")
        assert own.insert(batch(k=[50], v=["x"]))["affected_rows"] == 1
        own.close()
        assert abilities_of(gateway, lake, table) == ("read", "insert")
    assert rows_of(client, lake, "log")[-1] == (50, "x", 4)


def test_a_table_whose_writers_must_do_something_unknown_is_read_only(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "fromTheFuture"]}
    commit = lake.path("n") / "_delta_log" / f"{1:020d}.json"
    commit.write_text(json.dumps({"protocol": protocol}) + "\n")
    refuses_every_change(gateway, lake)
    assert len(rows_of(client, lake)) == 4
    rows = batch(k=[50], v=["x"])
    expected = ("InvalidInputException", "table 'n' does not support INSERT operations")
    assert sql_error(lambda: client.insert(lake.schema, "n", rows)) == expected


def test_without_spark_every_table_is_read_only(lake: Lake) -> None:
    numbers(lake)
    settings = settings_for(lake.warehouse, spark={"enabled": False})
    alone = Gateway(settings, Spark(settings.spark))
    alone.start()
    try:
        refuses_every_change(alone, lake)
    finally:
        alone.stop()


def refuses_every_change(gateway: Gateway, lake: Lake) -> None:
    own = JsonClient(gateway.location, lake.schema)
    rows = batch(k=[50], v=["x"])
    for verb, why, work in (
        ("INSERT", "operations", lambda: own.insert(rows)),
        ("UPDATE", "(read-only)", lambda: own.update([1], batch(v=["x"]))),
        ("DELETE", "(read-only)", lambda: own.delete([1])),
    ):
        assert refusal_of(work) == precondition(f"table 'n' does not support {verb} {why}")
    own.close()
    assert abilities_of(gateway, lake, "n") == ("read",)


def precondition(text: str) -> Refusal:
    return Refusal("UNKNOWN", text, reason="FAILED_PRECONDITION")


def abilities_of(gateway: Gateway, lake: Lake, table: str) -> tuple[str, ...]:
    """What listings say."""
    found = gateway.service.lake.catalogs.get(CATALOG).table(lake.schema, table)
    found.refresh()
    return found.describe().abilities
