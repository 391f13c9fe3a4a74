"""Statistics out of the log: every bound encloses the rows that are really there."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.catalog.capabilities import ColumnStatistics
from gateway.lake.delta_table import DeltaSnapshot
from gateway.lake.spark.engine import Spark
from tests.builders import Lake
from tests.lake.reading import open_table, read

LONG = "é" * 40


def check_all(snapshot: DeltaSnapshot) -> dict[str, ColumnStatistics]:
    """Every column's statistics, each held against the column's rows."""
    rows = read(snapshot).table
    found = {name: snapshot.statistics(name) for name in snapshot.shape.names[:-1]}
    for name, known in found.items():
        assert_encloses(known, rows.column(name), name)
    return found


def assert_encloses(known: ColumnStatistics, values: pa.ChunkedArray, name: str = "") -> None:
    assert known.may_have_null or values.null_count == 0, name
    assert known.may_have_value or values.null_count == len(values), name
    assert (known.minimum is None) == (known.maximum is None), name
    if known.minimum is None or known.maximum is None:
        return
    low, high = ordered(known.minimum.as_py()), ordered(known.maximum.as_py())
    for value in (value for value in values.to_pylist() if value is not None):
        assert low <= ordered(value) <= high, (name, low, value, high)


def ordered(value: Any) -> Any:
    """DuckDB orders texts by their bytes."""
    return value.encode() if isinstance(value, str) else value


@pytest.fixture(scope="module")
def zoo(spark: Any, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, __name__)
    lake.create(
        "mixed",
        "i INT, l BIGINT, n DECIMAL(38,10), n2 DECIMAL(5,2), d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, s STRING, "
        "f FLOAT, db DOUBLE, b BOOLEAN, bin BINARY, nothing STRING, nested STRUCT<a: INT, b: STRING>, list ARRAY<INT>, "
        "p INT",
        partitioned_by="p",
        properties={"delta.enableDeletionVectors": "true"},
    )
    lake.fill(
        "mixed",
        f"""VALUES
        (1, -9223372036854775808, 1234567890123456789012345678.0123456789, -1.25, DATE'1969-12-31',
         TIMESTAMP'1969-12-31 23:59:59.999999', TIMESTAMP_NTZ'2024-01-01 00:00:00.000001', '{LONG}a',
         float('NaN'), double('-0.0'), true, X'ff', NULL, named_struct('a', 1, 'b', 'x'), array(1), 1),
        (-5, 9223372036854775807, -1234567890123456789012345678.0123456789, 999.99, DATE'9999-12-31',
         TIMESTAMP'2024-06-30 23:59:59.123999', TIMESTAMP_NTZ'2024-01-01 00:00:00.999999', '\U0001f642\U0010ffff',
         float('-0.0'), double('NaN'), false, X'00', NULL, NULL, NULL, 1),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)""",
    )
    lake.fill(
        "mixed",
        """SELECT cast(id AS INT), id, cast(id AS DECIMAL(38,10)), 1, DATE'0001-01-01',
        TIMESTAMP'9999-12-31 23:59:59.999999', TIMESTAMP_NTZ'0001-01-01 00:00:00.0005', repeat('z', 33), 1, 2, true,
        X'', NULL, named_struct('a', 5, 'b', NULL), array(), 2 FROM range(20)""",
    )
    lake.sql("DELETE FROM {t} WHERE i BETWEEN 3 AND 19 OR i = 1", "mixed")
    return lake


def test_no_bound_is_narrower_than_the_rows(zoo: Lake, lake_spark: Spark) -> None:
    found = check_all(open_table(zoo.path("mixed"), lake_spark).current())
    # And they do say something where it is safe to.
    assert found["i"].maximum is not None
    assert found["l"].minimum is not None
    assert found["n2"].maximum is not None
    assert found["d"].minimum is not None
    assert found["ts"].maximum is not None
    assert not found["nothing"].may_have_value


def test_floats_texts_that_may_be_cut_blobs_and_nested_columns_have_no_bounds(zoo: Lake, lake_spark: Spark) -> None:
    snapshot = open_table(zoo.path("mixed"), lake_spark).current()
    for name in ("f", "db", "s", "bin", "nested", "list", "nothing"):
        known = snapshot.statistics(name)
        assert (known.minimum, known.maximum) == (None, None), name


def test_bounds_are_of_the_columns_own_type(zoo: Lake, lake_spark: Spark) -> None:
    snapshot = open_table(zoo.path("mixed"), lake_spark).current()
    for column in snapshot.log.schema.columns:
        known = snapshot.statistics(column.name)
        for bound in (known.minimum, known.maximum):
            assert bound is None or bound.type == column.type


def test_bounds_can_be_said_in_python(zoo: Lake, lake_spark: Spark) -> None:
    """The wire needs them as values: a bound moved past the last representable time could not be sent."""
    snapshot = open_table(zoo.path("mixed"), lake_spark).current()
    assert snapshot.statistics("ts").maximum.as_py() == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert snapshot.statistics("d").maximum.as_py() == date(9999, 12, 31)


def test_a_table_without_file_statistics_has_no_bounds(lake: Lake) -> None:
    lake.create("t", "k INT NOT NULL, v STRING", properties={"delta.dataSkippingNumIndexedCols": "0"})
    lake.fill("t", "VALUES (1, 'a'), (2, NULL)")
    found = check_all(open_table(lake.path("t")).current())
    assert found["k"] == ColumnStatistics(may_have_null=False)
    assert found["v"] == ColumnStatistics()


def test_one_file_without_statistics_takes_the_bound_away(lake: Lake) -> None:
    lake.create("t", "k INT")
    lake.fill("t", "VALUES (1), (2)")
    assert check_all(open_table(lake.path("t")).current())["k"].maximum == pa.scalar(2, pa.int32())
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')", "t")
    lake.fill("t", "VALUES (100)")
    assert check_all(open_table(lake.path("t")).current())["k"] == ColumnStatistics()


def test_a_column_added_later_is_null_in_older_files(lake: Lake) -> None:
    lake.create("t", "k INT")
    lake.fill("t", "VALUES (1)")
    lake.sql("ALTER TABLE {t} ADD COLUMN v INT", "t")
    lake.fill("t", "VALUES (2, 5)")
    assert check_all(open_table(lake.path("t")).current())["v"].may_have_null


def test_bounds_follow_a_column_through_renames_and_reused_names(lake: Lake) -> None:
    lake.create("t", "a INT, b INT, p INT", partitioned_by="p", properties={"delta.columnMapping.mode": "name"})
    lake.fill("t", "VALUES (1, 100, 7), (2, 200, 8)")
    for old, new in [("a", "c"), ("b", "a"), ("p", "b")]:
        lake.sql(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}", "t")
    found = check_all(open_table(lake.path("t")).current())
    assert [found[name].maximum.as_py() for name in ("c", "a", "b")] == [2, 200, 8]


def test_deleted_rows_do_not_make_values_look_absent(lake: Lake) -> None:
    lake.create("t", "k INT, v STRING", properties={"delta.enableDeletionVectors": "true"})
    lake.fill("t", "SELECT /*+ COALESCE(1) */ cast(id AS INT), if(id < 5, NULL, 'x') FROM range(10)")
    lake.sql("DELETE FROM {t} WHERE v IS NULL", "t")
    assert check_all(open_table(lake.path("t")).current())["v"].may_have_value


def test_files_of_two_writers_in_one_table_are_both_enclosed(lake: Lake) -> None:
    lake.create("t", "i BIGINT, s STRING, ts TIMESTAMP, n DECIMAL(20,3)")
    lake.fill("t", f"VALUES (5, '{LONG}', TIMESTAMP'2020-01-01 00:00:00.000999', 5.125)")
    theirs = pa.table(
        {
            "i": pa.array([-7, 900]),
            "s": pa.array(["\U0001f642" * 40, "a" * 100]),
            "ts": pa.array(
                [datetime(1969, 1, 1, 0, 0, 0, 1, UTC), datetime(2300, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")
            ),
            "n": pa.array([Decimal("-99999999999999999.999"), Decimal("0.001")], pa.decimal128(20, 3)),
        }
    )
    write_deltalake(lake.path("t"), theirs, mode="append")
    found = check_all(open_table(lake.path("t")).current())
    assert found["i"].minimum.as_py() == -7


def test_decimals_with_more_digits_than_a_float_keeps_have_no_bounds(tmp_path: Path) -> None:
    """One writer stores such bounds rounded, or cut off at 64 bits."""
    columns = {
        "wide": pa.array([Decimal("900719.9254740979")], pa.decimal128(38, 10)),
        "whole": pa.array([Decimal(10) ** 30], pa.decimal128(38, 0)),
        "narrow": pa.array([Decimal("99999999999.9999")], pa.decimal128(15, 4)),
    }
    write_deltalake(tmp_path / "t", pa.table(columns))
    found = check_all(open_table(tmp_path / "t").current())
    assert (found["wide"].maximum, found["whole"].maximum) == (None, None)
    assert found["narrow"].maximum.as_py() == Decimal("99999999999.9999")


def test_an_empty_table_promises_nothing(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.schema([("k", pa.int64())]).empty_table())
    assert open_table(tmp_path / "t").current().statistics("k") == ColumnStatistics()


@pytest.mark.parametrize(
    "values",
    [
        [date(2020, 1, 1), None, date(1900, 1, 1)],
        ["x y", None, "50%"],
        [Decimal("1.50"), Decimal("2.25"), None],
        [datetime(2020, 1, 1, 0, 0, 0, 123456), datetime(1950, 1, 1), None],  # noqa: DTZ001 - without a zone
        [True, False, None],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_partition_values_are_bounds(tmp_path: Path, values: list[Any]) -> None:
    write_deltalake(tmp_path / "t", pa.table({"k": [1, 2, 3], "p": values}), partition_by=["p"])
    known = check_all(open_table(tmp_path / "t").current())["p"]
    assert known.minimum is not None
    assert known.may_have_null


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "t": (pa.int8(), st.integers(-128, 127)),
    "n": (
        pa.decimal128(38, 10),
        st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**27), max_value=10**27),
    ),
    "d": (pa.date32(), st.dates()),
    "ts": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "s": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40)),
    "db": (pa.float64(), st.floats()),
}


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_generated_tables_are_enclosed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("generated") / "t"
    for _ in range(data.draw(st.integers(1, 2))):
        rows = data.draw(st.integers(1, 5))
        columns = {
            name: pa.array(data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
            for name, (kind, values) in COLUMNS.items()
        }
        write_deltalake(path, pa.table(columns), mode="append")
    check_all(open_table(path).current())


def test_generated_rows_are_enclosed_when_spark_writes_them(lake: Lake) -> None:
    """Sub-millisecond times, long and multi-byte texts, many files: Spark's own rounding and cutting."""
    lake.spark.range(0, 400, 1, 8).selectExpr(
        "cast(pmod(xxhash64(id), 2000000000000000) - 1000000000000000 AS BIGINT) AS micros",
        "timestamp_micros(pmod(xxhash64(id), 4000000000000000) - 2000000000000000) AS ts",
        "repeat(substr('aé\U0001f642z', cast(pmod(id, 4) AS INT) + 1, 2), cast(pmod(id, 40) AS INT)) AS s",
        "cast(pmod(xxhash64(id), 1000000000000) AS DECIMAL(30,8)) / 1000003 AS n",
        "date_from_unix_date(cast(pmod(xxhash64(id), 100000) AS INT) - 50000) AS d",
        "if(id % 3 = 0, NULL, id) AS sometimes",
    ).write.format("delta").save(str(lake.path("t")))
    snapshot = open_table(lake.path("t")).current()
    found = check_all(snapshot)
    assert found["ts"].minimum is not None
    assert pc.max(read(snapshot, ["sometimes"]).table.column("sometimes")).as_py() <= found["sometimes"].maximum.as_py()
