"""What the gateway writes, Spark and delta-rs read; what they write, the gateway goes on from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import JsonClient, batch, rows_of, running_gateway, version_of

ZOO = (
    "_rowid BIGINT, i8 TINYINT, i16 SMALLINT, i32 INT, yes BOOLEAN, f FLOAT, d DOUBLE, dec DECIMAL(38, 10), "
    "small DECIMAL(5, 2), txt STRING, bin BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "nested STRUCT<x: INT, y: ARRAY<STRING>>, list ARRAY<STRUCT<a: DOUBLE>>, m MAP<STRING, INT>, "
    "deep MAP<INT, ARRAY<DATE>>"
)
KINDS = pa.schema(
    [
        ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()), ("yes", pa.bool_()), ("f", pa.float32()),
        ("d", pa.float64()), ("dec", pa.decimal128(38, 10)), ("small", pa.decimal128(5, 2)), ("txt", pa.string()),
        ("bin", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
        ("nested", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
        ("list", pa.list_(pa.struct([("a", pa.float64())]))), ("m", pa.map_(pa.string(), pa.int32())),
        ("deep", pa.map_(pa.int32(), pa.list_(pa.date32()))),
    ]
)  # fmt: skip
HIGH = {
    "i8": 127, "i16": 32767, "i32": 2**31 - 1, "yes": True, "f": math.inf, "d": 1.7976931348623157e308,
    "dec": Decimal("9999999999999999999999999999.9999999999"), "small": Decimal("999.99"), "txt": "é\0'\"`\\\n😀",
    "bin": bytes(range(256)), "day": date(9999, 12, 31), "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "local": datetime(9999, 12, 31, 23, 59, 59, 999999), "nested": {"x": 1, "y": ["a", None, ""]},  # noqa: DTZ001
    "list": [{"a": 0.1}, None, {"a": None}], "m": [("k", 1), ("", None)], "deep": [(1, [date(2024, 2, 29), None])],
}  # fmt: skip
LOW = {
    "i8": -128, "i16": -32768, "i32": -(2**31), "yes": False, "f": -math.inf, "d": -5e-324,
    "dec": Decimal("-9999999999999999999999999999.9999999999"), "small": Decimal("-0.01"), "txt": "",
    "bin": b"", "day": date(1, 1, 1), "at": datetime(1, 1, 1, tzinfo=UTC), "local": datetime(1500, 2, 28),  # noqa: DTZ001
    "nested": {"x": None, "y": None}, "list": [], "m": [], "deep": [(0, [])],
}  # fmt: skip
NOTHING = dict.fromkeys(KINDS.names)


@pytest.fixture(scope="module")
def spooling_gateway(warehouse: Path, lake_spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(warehouse, lake_spark, tmp_path_factory.mktemp("staging"), memory_rows=1) as running:
        yield running


def by_gateway(client: AirportClient, lake: Lake, table: str) -> dict[int, dict[str, Any]]:
    return keyed(client.scan(lake.schema, table, [*KINDS.names, "rowid"]).rows(), "rowid")


def by_delta_rs(lake: Lake, table: str) -> dict[int, dict[str, Any]]:
    found = QueryBuilder().register("t", DeltaTable(str(lake.path(table)))).execute("SELECT * FROM t")
    return keyed(pa.RecordBatchReader.from_stream(found).read_all().to_pylist(), "_rowid")


def by_spark(lake: Lake, table: str) -> dict[int, dict[str, Any]]:
    found = lake.spark.read.format("delta").load(str(lake.path(table)))
    return keyed(found.toArrow().to_pylist(), "_rowid")


def keyed(rows: list[dict[str, Any]], name: str) -> dict[int, dict[str, Any]]:
    return {row[name]: {key: value for key, value in row.items() if key != name} for row in rows}


@pytest.mark.parametrize(("way", "vectors"), [("memory", "true"), ("spooled", "false")])
def test_every_type_comes_back_as_it_was_sent(
    gateway: Gateway, request: pytest.FixtureRequest, lake: Lake, way: str, vectors: str
) -> None:
    lake.create("zoo", ZOO, properties={"delta.enableDeletionVectors": vectors, "delta.columnMapping.mode": "name"})
    lake.sql("ALTER TABLE {t} RENAME COLUMN txt TO renamed", "zoo")
    lake.sql("ALTER TABLE {t} RENAME COLUMN renamed TO txt", "zoo")  # its physical name stays another
    chosen = gateway if way == "memory" else request.getfixturevalue("spooling_gateway")
    with AirportClient(chosen.location, CATALOG) as client:
        values = pa.RecordBatch.from_pylist([HIGH, LOW, NOTHING], schema=KINDS)
        assert client.insert(lake.schema, "zoo", values).total_changed == 3
        swapped = pa.RecordBatch.from_pylist([LOW, HIGH], schema=KINDS)
        swapped = swapped.append_column(pa.field("rowid", pa.int64()), pa.array([0, 1]))
        returned = client.update(lake.schema, "zoo", swapped, sets=KINDS.names, returning=True).returned
        assert returned.drop_columns(["rowid"]).to_pylist() == [LOW, HIGH]
        assert client.delete(lake.schema, "zoo", [2, 2]).total_changed == 1
        expected = {0: LOW, 1: HIGH}
        assert by_gateway(client, lake, "zoo") == expected
        assert by_spark(lake, "zoo") == expected
        assert by_delta_rs(lake, "zoo") == expected


WEIRD = "we'ird \"n`ame.x"


def test_names_may_hold_whatever_spark_and_delta_allow(gateway: Gateway, lake: Lake) -> None:
    lake.spark.sql(
        f"CREATE TABLE delta.`{str(lake.path(WEIRD)).replace('`', '``')}` (_rowid BIGINT, `a b` INT, `q'\"` STRING, "
        "`d.o.t` INT, `b``t` STRUCT<`x.y`: INT>) USING delta PARTITIONED BY (`a b`) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'deltaport.primaryKey' = '[\"d.o.t\"]')"
    )
    names = ["a b", "q'\"", "d.o.t", "b`t"]
    kinds = pa.schema(
        [
            (names[0], pa.int32()),
            (names[1], pa.string()),
            (names[2], pa.int32()),
            (names[3], pa.struct([("x.y", pa.int32())])),
        ]
    )
    with AirportClient(gateway.location, CATALOG) as client:
        rows = [dict(zip(names, values, strict=True)) for values in ((1, "x", 2, {"x.y": 3}), (None, None, 4, None))]
        assert client.insert(lake.schema, WEIRD, pa.RecordBatch.from_pylist(rows, schema=kinds)).total_changed == 2
        change = pa.record_batch(
            [pa.array([9, 8], pa.int32()), pa.array(["y", "z"]), pa.array([0, 1])], names=["a b", names[1], "rowid"]
        )
        assert client.update(lake.schema, WEIRD, change, sets=["a b", names[1]]).total_changed == 2
        found = sorted(client.scan(lake.schema, WEIRD, names).rows(), key=lambda row: row["d.o.t"])
    assert [list(row.values()) for row in found] == [[9, "y", 2, {"x.y": 3}], [8, "z", 4, None]]


def test_rows_move_between_partitions_and_others_go_on(client: AirportClient, lake: Lake) -> None:
    lake.create("n", "_rowid BIGINT, k BIGINT, v STRING", partitioned_by="v")
    rows = batch(k=[1, 2, 3], v=["a/b", None, "ü %"])
    assert client.insert(lake.schema, "n", rows).total_changed == 3
    assert client.update(lake.schema, "n", batch(v=["z", "a/b"], rowid=[0, 1]), sets=["v"]).total_changed == 2
    assert client.delete(lake.schema, "n", [2]).total_changed == 1
    lake.sql("INSERT INTO {t} VALUES (3, 4, 'a/b')", "n")
    lake.sql("UPDATE {t} SET k = 10 WHERE k = 1", "n")
    assert client.insert(lake.schema, "n", batch(k=[5], v=["z"])).total_changed == 1
    assert rows_of(client, lake) == [(2, "a/b", 1), (4, "a/b", 3), (5, "z", 4), (10, "z", 0)]


def test_rows_without_an_id_stay_as_they_are(gateway: Gateway, client: AirportClient, lake: Lake) -> None:
    lake.create("n", "_rowid BIGINT, k BIGINT, v STRING")
    lake.fill("n", "VALUES (NULL, 1, 'foreign'), (5, 2, 'twice'), (5, 3, 'twice')")
    assert client.insert(lake.schema, "n", batch(k=[4], v=["mine"])).total_changed == 1
    own = JsonClient(gateway.location, lake.schema)
    with pytest.raises(Exception, match="holds a row id twice; run `deltaport adopt"):
        own.delete([5])
    assert own.delete([6])["affected_rows"] == 1
    own.close()
    assert version_of(lake) == 3
    found = client.scan(lake.schema, "n", ["k", "rowid"]).rows()
    assert sorted((row["k"], row["rowid"]) for row in found) == [(1, None), (2, 5), (3, 5)]


def test_a_row_with_a_variant_is_changed_in_its_other_columns(client: AirportClient, lake: Lake) -> None:
    lake.create("n", "_rowid BIGINT, k BIGINT, v STRING, any VARIANT")
    lake.fill("n", "SELECT 0, 1, 'a', parse_json('{\"x\": [1, 2]}')")
    assert client.update(lake.schema, "n", batch(v=["b"], rowid=[0]), sets=["v"]).total_changed == 1
    (row,) = lake.sql("SELECT v, to_json(any) AS any FROM {t}", "n").collect()
    assert (row["v"], row["any"]) == ("b", '{"x":[1,2]}')
