"""What the real client sent, sent again byte for byte: the gateway's answers mean the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.captures import Statement, statements
from tests.conftest import settings_for
from tests.replay import Replay

PEOPLE = (
    "VALUES (0, 1, 'Ann', 31, 'Oslo'), (1, 2, 'Bob', 25, 'Rome'), (2, 3, 'Cid', 47, NULL), (3, 4, 'Dee', NULL, 'Rome')"
)
TABLES = [
    ("demo", "people"),
    ("demo", "people_stats"),
    ("demo", "parts"),
    ("demo", "strict"),
    ("demo", "locked"),
    ("alt", "a1"),
]
NAMES = ["id", "name", "age", "city"]


@pytest.fixture(scope="module")
def captured_gateway(spark: Any, lake_spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The tables of the captures, as Spark makes them, in catalogs named as there."""
    warehouse = tmp_path_factory.mktemp("captured")
    first = warehouse / "demo" / "people"
    columns = "_rowid BIGINT, id BIGINT NOT NULL COMMENT 'key', name STRING, age INT DEFAULT 18, city STRING"
    spark.sql(
        f"CREATE TABLE delta.`{first}` ({columns}) USING delta COMMENT 'some people' "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    spark.sql(f"INSERT INTO delta.`{first}` {PEOPLE}")
    spark.sql(f"DELETE FROM delta.`{first}` WHERE id = 99")
    for _ in range(2):  # the captures travel to version 2
        spark.sql(f"ALTER TABLE delta.`{first}` SET TBLPROPERTIES ('user.touched' = 'yes')")
    for schema, table in TABLES[1:]:
        copied = spark.read.format("delta").load(str(first)).repartition(1)
        copied.write.format("delta").save(str(warehouse / schema / table))
    settings = settings_for(
        warehouse,
        catalogs={
            "db__warehouse": warehouse,
            "db__default": "true",
            "lake__default": "false",
            "lazy__warehouse": warehouse,
        },
    )
    running = Gateway(settings, lake_spark)
    running.start()
    yield running
    running.stop()


def replayed(gateway: Gateway, statement: Statement) -> list[Any]:
    with Replay(gateway.location) as replay:
        return replay.run(statement)


def rows_of(replies: list[Any]) -> list[dict[str, Any]]:
    scans = [reply.value for reply in replies if reply.rpc.method == "DoGet" and reply.value is not None]
    return [row for scan in scans for row in scan.to_pylist()]


def ids(found: list[Statement]) -> list[Any]:
    return [pytest.param(statement, id=statement.id) for statement in found]


WITH_ROWS = [
    statement
    for statement in statements("first-use", "select", "prepared", "column-statistics")
    if "error" not in statement.result and any(rpc.method == "DoGet" for rpc in statement.rpcs)
]


@pytest.mark.parametrize("statement", ids(WITH_ROWS))
def test_a_captured_select_gets_the_rows_its_user_saw(captured_gateway: Gateway, statement: Statement) -> None:
    rows = rows_of(replayed(captured_gateway, statement))
    shown = statement.result["columns"]
    if shown == ["count_star()"]:
        # With a filter the client counts what it keeps of what it is sent.
        assert len(rows) >= int(statement.result["rows"][0][0])
        return
    if not set(shown) <= {*NAMES, "rowid"}:
        assert rows  # a join: the client makes the result of two full scans
        return
    sent = [[None if row[name] is None else str(row[name]) for name in shown] for row in rows]
    assert all(kept in sent for kept in statement.result["rows"])


@pytest.mark.parametrize("statement", ids(statements("show-tables", "lazy-schema", "multi-endpoint", "attach")))
def test_a_captured_statement_about_the_catalog_is_answered(captured_gateway: Gateway, statement: Statement) -> None:
    replies = replayed(captured_gateway, statement)
    assert [reply.error for reply in replies] == [None] * len(replies)


@pytest.mark.parametrize("statement", ids(statements("time-travel")))
def test_a_captured_time_travel_is_answered(captured_gateway: Gateway, statement: Statement) -> None:
    replies = replayed(captured_gateway, statement)
    if "error" in statement.result:
        assert "'tag' is not a version" in str(replies[-1].error)
    else:
        rows = rows_of(replies)
        assert len(rows) in (0, 1, 4)  # version 0 is the empty table here, and one statement filters
        assert replies[-1].error is None


@pytest.mark.parametrize(
    "statement", ids([s for s in statements("take-flight", "flights") if "some command" not in s.sql])
)
def test_a_captured_ad_hoc_call_is_answered(captured_gateway: Gateway, statement: Statement) -> None:
    replies = replayed(captured_gateway, statement)
    assert all(reply.error is None for reply in replies)
    if statement.kind == "flights":
        listed = [info for reply in replies for info in reply.value]
        assert (len(listed) == 3 * len(TABLES)) == (statement.id == "flights-1")  # `abc` is in no name
    else:
        assert rows_of(replies)


def test_the_captured_table_is_declared_as_it_was_to_its_client(captured_gateway: Gateway) -> None:
    first_use = next(s for s in statements("first-use"))
    listing = next(reply.value for reply in replayed(captured_gateway, first_use) if reply.rpc.action == "list_schemas")
    assert [schema.name for schema in listing.schemas] == ["alt", "demo"]
    assert not listing.version.is_fixed
