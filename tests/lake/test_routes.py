"""Which reader serves a scan: the direct one wherever it gets the values right, Spark elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.errors import UnavailableError, UnsupportedError
from gateway.lake.reading.routes import Routes
from gateway.lake.spark.engine import Spark
from gateway.settings import ScanSettings
from tests.builders import Lake
from tests.lake.reading import open_table, read

LAST_DAY = datetime(9999, 12, 31, tzinfo=UTC)
FIRST_DAY = datetime(1, 1, 1, tzinfo=UTC)
ODD_VALUES = ["a b", "50%", "50%25", "é ü", "x/y", "a=b", "q'\"", "#?&+", "a:b", "🙂", "..", "{x}", "%2F", None]


@pytest.fixture(scope="module")
def foreign(spark: Any, warehouse: Path) -> Lake:
    """Tables written with Spark's default, INT96."""
    lake = Lake(spark, warehouse, __name__)
    lake.create("far", "k INT, ts TIMESTAMP")
    lake.fill("far", "VALUES (1, TIMESTAMP'9999-12-31'), (2, TIMESTAMP'0001-01-01'), (3, NULL)")
    lake.create("near", "k INT, ts TIMESTAMP")
    lake.fill("near", "VALUES (1, TIMESTAMP'2024-01-01 00:00:00.123456'), (2, TIMESTAMP'1700-01-01'), (3, NULL)")
    lake.create("nulls", "k INT, ts TIMESTAMP")
    lake.fill("nulls", "VALUES (1, NULL), (2, NULL)")
    lake.create(
        "nested",
        "k INT, st STRUCT<ts: TIMESTAMP>, ar ARRAY<TIMESTAMP>, mp MAP<STRING, TIMESTAMP>, "
        "deep ARRAY<STRUCT<ts: TIMESTAMP>>",
    )
    lake.fill(
        "nested",
        "SELECT 1, named_struct('ts', t), array(t), map('a', t), array(named_struct('ts', t)) "
        "FROM VALUES (TIMESTAMP'9999-12-31') AS v(t)",
    )
    lake.create("parted", "k INT, ts TIMESTAMP", partitioned_by="ts")
    lake.fill("parted", "VALUES (1, TIMESTAMP'9999-12-31'), (2, TIMESTAMP'0001-01-01'), (3, NULL)")
    return lake


def test_int96_times_far_from_today_come_back_right_through_spark(foreign: Lake, lake_spark: Spark) -> None:
    result = read(open_table(foreign.path("far"), lake_spark).current())
    assert (result.report.route, result.report.route_reason) == ("spark", "int96")
    assert {row["k"]: row["ts"] for row in result.rows()} == {1: LAST_DAY, 2: FIRST_DAY, 3: None}


def test_int96_times_near_today_are_read_directly(foreign: Lake) -> None:
    result = read(open_table(foreign.path("near")).current())
    assert result.report.route == "direct"
    assert {row["k"]: row["ts"] for row in result.rows()} == {
        1: datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        2: datetime(1700, 1, 1, tzinfo=UTC),
        3: None,
    }


def test_columns_that_are_not_read_do_not_matter(foreign: Lake) -> None:
    result = read(open_table(foreign.path("far")).current(), ["k"])
    assert (result.report.route, result.column("k")) == ("direct", [1, 2, 3])
    assert result.column("ts") == [None] * 3


def test_a_column_without_values_is_read_directly(foreign: Lake) -> None:
    result = read(open_table(foreign.path("nulls")).current())
    assert (result.report.route, result.column("ts")) == ("direct", [None, None])


@pytest.mark.parametrize("column", ["st", "ar", "mp", "deep"])
def test_times_inside_nested_columns_come_back_right(foreign: Lake, lake_spark: Spark, column: str) -> None:
    result = read(open_table(foreign.path("nested"), lake_spark).current(), [column])
    values = {"st": {"ts": LAST_DAY}, "ar": [LAST_DAY], "mp": [("a", LAST_DAY)], "deep": [{"ts": LAST_DAY}]}
    assert result.report.route == "spark"
    assert result.table.column(column).to_pylist() == [values[column]]


def test_times_as_partitions_are_read_directly_and_right(foreign: Lake) -> None:
    result = read(open_table(foreign.path("parted")).current())
    assert result.report.route == "direct"
    assert {row["k"]: row["ts"] for row in result.rows()} == {1: LAST_DAY, 2: FIRST_DAY, 3: None}


def test_files_with_plain_microseconds_are_read_directly_after_a_look_at_their_footers(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"ts": pa.array([LAST_DAY, FIRST_DAY, None], pa.timestamp("us", "UTC"))}))
    result = read(open_table(path).current())
    assert (result.report.route, result.column("ts")) == ("direct", [FIRST_DAY, LAST_DAY, None])


def test_one_far_int96_file_among_good_ones_sends_the_scan_to_spark(lake: Lake, lake_spark: Spark) -> None:
    path = lake.path("t")
    write_deltalake(path, pa.table({"ts": pa.array([LAST_DAY], pa.timestamp("us", "UTC"))}))
    table = open_table(path, lake_spark)
    assert read(table.current()).report.route == "direct"
    lake.fill("t", "VALUES (TIMESTAMP'0001-01-01')")
    result = read(table.current())
    assert (result.report.route, result.column("ts")) == ("spark", [FIRST_DAY, LAST_DAY])


class Forgetful(dict[str, bool]):
    """A memory that others clear as soon as something is in it."""

    def __setitem__(self, key: str, value: bool) -> None:
        super().__setitem__(key, value)
        self.clear()


def test_a_memory_of_footers_that_is_cleared_meanwhile_costs_a_look_and_no_error(tmp_path: Path) -> None:
    for moment in (LAST_DAY, FIRST_DAY):
        rows = pa.table({"ts": pa.array([moment], pa.timestamp("us", "UTC"))})
        write_deltalake(tmp_path / "t", rows, mode="append")
    routes = Routes(ScanSettings())
    routes._checked = Forgetful()
    snapshot = open_table(tmp_path / "t").current().log
    assert routes.choose(snapshot, snapshot.schema.columns).engine == "direct"


@pytest.fixture(scope="module")
def oddly_parted(spark: Any, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, f"{__name__} odd partitions")
    lake.create("t", "k INT, ts TIMESTAMP, p STRING", partitioned_by="p")
    rows = spark.createDataFrame(list(enumerate(ODD_VALUES)), "k INT, p STRING")
    frame = rows.coalesce(1).selectExpr("k", "TIMESTAMP'9999-12-31' AS ts", "p")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        frame.write.format("delta").mode("append").save(str(lake.path("t")))
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    return lake


def test_footers_are_found_behind_odd_partition_values(oddly_parted: Lake) -> None:
    result = read(open_table(oddly_parted.path("t")).current())
    assert result.report.route == "direct"
    assert {row["k"]: row["p"] for row in result.rows()} == dict(enumerate(ODD_VALUES))
    assert set(result.column("ts")) == {LAST_DAY}


@pytest.mark.parametrize("place", ["with space", "50% off", "é", "a#b?c"])
def test_footers_are_found_in_oddly_named_tables(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    write_deltalake(path, pa.table({"ts": pa.array([LAST_DAY], pa.timestamp("us", "UTC"))}))
    assert read(open_table(path).current()).report.route == "direct"


@pytest.fixture(scope="module")
def widened(spark: Any, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, f"{__name__} widened")
    lake.create("t", "a INT, n DECIMAL(5,2)", properties={"delta.enableTypeWidening": "true"})
    lake.fill("t", "VALUES (1, 1.25)")
    lake.sql("ALTER TABLE {t} ALTER COLUMN a TYPE BIGINT", "t")
    lake.sql("ALTER TABLE {t} ALTER COLUMN n TYPE DECIMAL(12,4)", "t")
    lake.fill("t", "VALUES (5000000000, 12345678.1234)")
    return lake


def test_widened_types_are_read_through_spark(widened: Lake, lake_spark: Spark) -> None:
    result = read(open_table(widened.path("t"), lake_spark).current())
    assert (result.report.route, result.report.route_reason) == ("spark", "feature typeWidening")
    assert result.column("a") == [1, 5_000_000_000]
    assert [str(value) for value in result.column("n")] == ["1.2500", "12345678.1234"]


def test_what_only_spark_can_read_is_unavailable_without_it(widened: Lake) -> None:
    with pytest.raises(UnavailableError, match=r"needs Spark \(feature typeWidening\)"):
        read(open_table(widened.path("t")).current())


def test_the_direct_reader_forced_on_what_it_refuses_says_so(widened: Lake) -> None:
    with pytest.raises(UnsupportedError, match="only Spark"):
        read(open_table(widened.path("t"), engine="direct").current())


def test_the_direct_reader_forced_on_times_it_would_get_wrong_says_so(foreign: Lake) -> None:
    snapshot = open_table(foreign.path("far"), engine="direct").current()
    with pytest.raises(UnsupportedError, match="only Spark"):
        read(snapshot)
    assert read(snapshot, ["k"]).column("k") == [1, 2, 3]


def test_an_engine_that_is_configured_is_used(foreign: Lake, lake_spark: Spark) -> None:
    for engine in ("direct", "spark"):
        report = read(open_table(foreign.path("near"), lake_spark, engine=engine).current()).report
        assert (report.route, report.route_reason) == (engine, "configured")


def test_tables_beyond_the_size_limit_are_read_through_spark(foreign: Lake, lake_spark: Spark) -> None:
    result = read(open_table(foreign.path("near"), lake_spark, direct_max_bytes=10).current(), ["k"])
    assert (result.report.route, result.report.route_reason) == ("spark", "size")
    assert result.column("k") == [1, 2, 3]
