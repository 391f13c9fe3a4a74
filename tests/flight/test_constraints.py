"""Constraints on the way to a commit: whoever breaks one learns which, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import running_gateway, sql_error, version_of
from tests.nasty import EVERYTHING, also_disguised

CONSTRAINT = "ConstraintException"
KEYS = {"deltaport.primaryKey": '["k"]', "deltaport.unique": '[["a", "b"]]'}


@pytest.fixture(scope="module")
def spooling_gateway(warehouse: Path, lake_spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that holds no upload in memory, so that Spark checks every key."""
    with running_gateway(warehouse, lake_spark, tmp_path_factory.mktemp("staging"), memory_rows=1) as running:
        yield running


@pytest.fixture(params=["memory", "disguised", "spooled"])
def writer(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[AirportClient]:
    """Keys are checked by the direct reader or, of uploads that do not fit memory, by Spark."""
    chosen = request.getfixturevalue("spooling_gateway") if request.param == "spooled" else gateway
    disguise = EVERYTHING if request.param == "disguised" else None
    with AirportClient(chosen.location, CATALOG, disguise=disguise) as attached:
        yield attached


def make_keyed(lake: Lake) -> None:
    lake.create("t", "_rowid BIGINT, k INT NOT NULL, a STRING, b DATE", properties=KEYS)
    lake.fill(
        "t",
        "VALUES (0, 10, 'a', DATE'2024-01-01'), (1, 11, 'a', DATE'2024-01-02'), (2, 12, 'b', DATE'2024-01-01'), "
        "(3, 13, NULL, NULL)",
    )


SCHEMA = pa.schema([("k", pa.int32()), ("a", pa.string()), ("b", pa.date32()), ("rowid", pa.int64())])


def rows(*values: tuple[Any, ...], names: str = "kab") -> pa.RecordBatch:
    columns = ["rowid" if name == "r" else name for name in names]
    arrays = [
        pa.array(column, SCHEMA.field(name).type)
        for name, column in zip(columns, zip(*values, strict=True), strict=True)
    ]
    return pa.record_batch(arrays, names=columns)


def all_rows(client: AirportClient, lake: Lake) -> list[tuple[Any, ...]]:
    scanned = client.scan(lake.schema, "t", ["rowid", "k", "a", "b"]).rows()
    return sorted((row["rowid"], row["k"], row["a"], row["b"]) for row in scanned)


FIRST, SECOND = date(2024, 1, 1), date(2024, 1, 2)


def test_keys_hold_for_new_rows(writer: AirportClient, lake: Lake) -> None:
    make_keyed(lake)
    before = version_of(lake, "t")
    for new, words in [
        ([(20, "x", FIRST), (20, "y", FIRST)], 'Duplicate key "k: 20" violates primary key constraint.'),
        ([(20, "z", FIRST), (21, "z", FIRST)], 'Duplicate key "a: z, b: 2024-01-01" violates unique constraint.'),
        ([(20, "x", FIRST), (21, "a", SECOND)], 'Duplicate key "a: a, b: 2024-01-02" violates unique constraint.'),
    ]:
        assert sql_error(lambda: writer.insert(lake.schema, "t", rows(*new))) == (CONSTRAINT, words)  # noqa: B023
    assert version_of(lake, "t") == before
    # A key with a NULL in it is like no other.
    new = [(20, "a", None), (21, "a", None), (22, None, FIRST), (23, "b", SECOND)]
    assert writer.insert(lake.schema, "t", rows(*new)).total_changed == 4


def test_keys_hold_on_the_state_after_an_update(writer: AirportClient, lake: Lake) -> None:
    make_keyed(lake)

    def update(*values: tuple[Any, ...], sets: str) -> int:
        sent = rows(*values, names=sets + "r")
        return writer.update(lake.schema, "t", sent, sets=list(sets)).total_changed

    before = version_of(lake, "t")
    for values, sets, words in [
        ([(12, 0), (14, 1)], "k", 'Duplicate key "k: 12" violates primary key constraint.'),
        # Parts of a key, the rest of which the table has.
        ([(SECOND, 0), (None, 3)], "b", 'Duplicate key "a: a, b: 2024-01-02" violates unique constraint.'),
    ]:
        assert sql_error(lambda: update(*values, sets=sets)) == (CONSTRAINT, words)  # noqa: B023
    assert version_of(lake, "t") == before
    # k = k + 1 and swaps are legal; of duplicate ids the last value counts, and unknown ids write nothing.
    shifted = [(99, FIRST, 0), (11, SECOND, 0), (12, FIRST, 1), (13, FIRST, 2), (14, None, 3), (11, FIRST, 77)]
    assert update(*shifted, sets="kb") == 4
    assert all_rows(writer, lake) == [
        (0, 11, "a", SECOND), (1, 12, "a", FIRST), (2, 13, "b", FIRST), (3, 14, None, None),
    ]  # fmt: skip


@also_disguised
def test_keys_of_many_types_are_compared(client: AirportClient, lake: Lake) -> None:
    properties = {"deltaport.primaryKey": '["p"]', "deltaport.unique": '[["dec"], ["txt"], ["bin"], ["at"]]'}
    lake.create("t", "p INT, dec DECIMAL(10, 2), txt STRING, bin BINARY, at TIMESTAMP", properties=properties)
    lake.fill("t", "VALUES (1, 1.50, 'it''s', X'00FF', TIMESTAMP'2024-01-01 00:00:00Z')")
    given = {
        "dec": pa.array([Decimal("1.5")], pa.decimal128(9, 2)),
        "txt": pa.array(["it's"]),
        "bin": pa.array([b"\x00\xff"]),
        "at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    }
    for name, value in given.items():
        new = pa.record_batch([pa.array([2], pa.int32()), value], names=["p", name])
        sql_class, words = sql_error(lambda: client.insert(lake.schema, "t", new))  # noqa: B023 - called at once
        assert sql_class == CONSTRAINT
        assert words.startswith(f'Duplicate key "{name}: ')
    new = pa.record_batch([given["txt"]], names=["txt"])
    null = (CONSTRAINT, "NOT NULL constraint failed: column 'p'")
    assert sql_error(lambda: client.insert(lake.schema, "t", new)) == null
    assert version_of(lake, "t") == 1


@also_disguised
def test_a_broken_not_null_or_check_is_named(client: AirportClient, lake: Lake) -> None:
    lake.create("t", "_rowid BIGINT, k INT NOT NULL, a STRING, b DATE")
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (k > 0)", "t")
    lake.fill("t", "VALUES (0, 10, 'a', NULL)")
    before = version_of(lake, "t")
    null = (CONSTRAINT, "NOT NULL constraint failed: column 'k'")
    check = (CONSTRAINT, "CHECK constraint failed: positive")
    assert sql_error(lambda: client.insert(lake.schema, "t", rows((None, "x", None)))) == null
    assert sql_error(lambda: client.insert(lake.schema, "t", rows((5, "x", None), (-5, "x", None)))) == check
    for values, words in ([(None, 0)], null), ([(-1, 0)], check):
        sent = rows(*values, names="kr")
        assert sql_error(lambda: client.update(lake.schema, "t", sent, sets=["k"])) == words  # noqa: B023
    assert version_of(lake, "t") == before
    assert client.insert(lake.schema, "t", rows((5, "x", None))).total_changed == 1


def test_a_key_that_names_no_column_stops_writes_with_a_clear_text(client: AirportClient, lake: Lake) -> None:
    lake.create("t", "_rowid BIGINT, k INT, a STRING, b DATE", properties={"deltaport.primaryKey": '["gone"]'})
    _, words = sql_error(lambda: client.insert(lake.schema, "t", rows((1, "x", None))))
    assert words == f"table '{lake.schema}.t': a key names a column that does not exist"


@also_disguised
def test_a_null_deep_inside_a_value_is_named(client: AirportClient, lake: Lake) -> None:
    lake.create("t", "_rowid BIGINT, s STRUCT<x: INT NOT NULL>")
    new = pa.RecordBatch.from_pylist([{"s": {"x": None}}], schema=pa.schema([("s", pa.struct([("x", pa.int32())]))]))
    assert sql_error(lambda: client.insert(lake.schema, "t", new)) == (
        CONSTRAINT,
        "NOT NULL constraint failed: column 's'",
    )


@pytest.mark.parametrize("value", [-0.0, 0.0, float("nan")])
def test_zero_and_nan_are_one_key_each(writer: AirportClient, lake: Lake, value: float) -> None:
    lake.create("t", "_rowid BIGINT, f DOUBLE, g FLOAT", properties={"deltaport.unique": '[["f", "g"]]'})
    lake.fill("t", "VALUES (0, 0D, 0F), (1, double('NaN'), float('NaN'))")
    same = pa.record_batch([pa.array([value], pa.float64()), pa.array([value], pa.float32())], names=["f", "g"])
    assert sql_error(lambda: writer.insert(lake.schema, "t", same))[0] == CONSTRAINT
    twice = pa.record_batch([pa.array([0.0, -0.0]), pa.array([1.0, 1.0], pa.float32())], names=["f", "g"])
    assert sql_error(lambda: writer.insert(lake.schema, "t", twice))[0] == CONSTRAINT
    other = pa.record_batch([pa.array([value]), pa.array([1.0], pa.float32())], names=["f", "g"])
    assert writer.insert(lake.schema, "t", other).total_changed == 1
