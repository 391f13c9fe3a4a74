"""What a scan gives: exactly the told columns and types, by either route, whatever the table holds."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.errors import RequestError
from gateway.lake.spark.engine import Spark
from gateway.lake.tables.schemas import is_rowid
from tests.builders import Lake
from tests.lake.reading import ROUTES, open_table, read, read_by

TYPES = {
    "b": ("BOOLEAN", "true", True),
    "i8": ("TINYINT", "-128", -128),
    "i16": ("SMALLINT", "32767", 32767),
    "i32": ("INT", "-2147483648", -(2**31)),
    "i64": ("BIGINT", "9223372036854775807L", 2**63 - 1),
    "f": ("FLOAT", "1.5F", 1.5),
    "d": ("DOUBLE", "double('-Infinity')", float("-inf")),
    "n": (
        "DECIMAL(38,10)",
        "1234567890123456789012345678.0123456789",
        Decimal("1234567890123456789012345678.0123456789"),
    ),
    "n9": ("DECIMAL(9,2)", "-1.25", Decimal("-1.25")),
    "s": ("STRING", "'é 🙂'", "é 🙂"),
    "bin": ("BINARY", "X'00ff'", b"\x00\xff"),
    "day": ("DATE", "DATE'0001-01-01'", date(1, 1, 1)),
    "ts": ("TIMESTAMP", "TIMESTAMP'2024-01-01 00:00:00.123456'", datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)),
    "ntz": (
        "TIMESTAMP_NTZ",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
        datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - without a zone
    ),
    "st": (
        "STRUCT<a: INT, t: STRING, deep: STRUCT<x: ARRAY<STRING>, m: MAP<STRING, DECIMAL(10,2)>>>",
        "named_struct('a', 1, 't', NULL, 'deep', named_struct('x', array('p', NULL), 'm', map('k', 1.5)))",
        {"a": 1, "t": None, "deep": {"x": ["p", None], "m": [("k", Decimal("1.50"))]}},
    ),
    "ar": (
        "ARRAY<ARRAY<STRUCT<q: STRING, r: BINARY>>>",
        "array(array(named_struct('q', 'z', 'r', X'01'), NULL), NULL, array())",
        [[{"q": "z", "r": b"\x01"}, None], None, []],
    ),
    "mp": (
        "MAP<STRING, ARRAY<STRUCT<k: DATE>>>",
        "map('a', array(named_struct('k', DATE'2024-01-01')), 'b', NULL)",
        [("a", [{"k": date(2024, 1, 1)}]), ("b", None)],
    ),
    "v": ("VARIANT", "parse_json('{\"a\":1}')", None),
}
ODD_NAMES = ["with space", 'double"quote', "single'quote", "dot.ted", "back`tick", "émoji 🙂", "SELECT", "a,b;c", "1"]


@pytest.fixture(scope="module")
def tables(spark: Any, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, __name__)
    lake.create("types", ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items()))
    values = ", ".join(value for _, value, _ in TYPES.values())
    lake.fill("types", f"SELECT {values} UNION ALL SELECT {', '.join(['NULL'] * len(TYPES))}")
    quoted = [f"`{name.replace('`', '``')}`" for name in ODD_NAMES]
    mapped = {"delta.columnMapping.mode": "name"}
    lake.create("names", "_rowid BIGINT, " + ", ".join(f"{name} INT" for name in quoted), properties=mapped)
    lake.fill("names", f"VALUES ({', '.join(str(index) for index in range(len(ODD_NAMES) + 1))})")
    lake.create("mapped", "k INT, gone INT, old STRING, p STRING", partitioned_by="p", properties=mapped)
    lake.fill("mapped", "VALUES (1, 9, 'x', 'a'), (2, 9, NULL, NULL)")
    lake.sql("ALTER TABLE {t} RENAME COLUMN old TO new", "mapped")
    lake.sql("ALTER TABLE {t} RENAME COLUMN p TO part", "mapped")
    lake.sql("ALTER TABLE {t} DROP COLUMN gone", "mapped")
    lake.sql("ALTER TABLE {t} ADD COLUMN gone STRING", "mapped")
    lake.fill("mapped", "VALUES (3, 'y', 'b c', 'back')")
    lake.numbers("deleted", 30, files=3, properties={"delta.enableDeletionVectors": "true"})
    lake.sql("DELETE FROM {t} WHERE k < 15 OR k = 29", "deleted")  # one file whole, parts of the others
    return lake


@pytest.mark.parametrize("route", ROUTES)
def test_every_type_comes_back_as_told(tables: Lake, lake_spark: Spark, route: str) -> None:
    rows = read_by(route, tables.path("types"), lake_spark).table.to_pylist()
    full = next(row for row in rows if row["b"] is not None)
    empty = next(row for row in rows if row["b"] is None)
    for name, (_, _, value) in TYPES.items():
        if name != "v":
            assert full[name] == value, name
        assert empty[name] is None, name


def test_both_routes_give_one_result_for_every_type(tables: Lake, lake_spark: Spark) -> None:
    direct, spark = (read_by(route, tables.path("types"), lake_spark) for route in ROUTES)
    assert direct.rows() == spark.rows()
    assert any(row["v"] is not None for row in direct.rows())


@pytest.mark.parametrize("route", ROUTES)
def test_columns_nobody_asked_for_are_null_and_in_their_places(tables: Lake, lake_spark: Spark, route: str) -> None:
    result = read_by(route, tables.path("types"), lake_spark, ["i32", "st"])
    assert sorted(result.column("i32"), key=str) == [-(2**31), None]
    for name in result.table.column_names:
        if name not in {"i32", "st"}:
            assert result.table.column(name).null_count == 2, name


@pytest.mark.parametrize("route", ROUTES)
def test_with_no_column_asked_for_the_rows_are_counted(tables: Lake, lake_spark: Spark, route: str) -> None:
    result = read_by(route, tables.path("deleted"), lake_spark, [])
    assert result.table.num_rows == 14
    assert all(column.null_count == 14 for column in result.table.columns)


@pytest.mark.parametrize("route", ROUTES)
def test_names_with_anything_in_them_are_read(tables: Lake, lake_spark: Spark, route: str) -> None:
    result = read_by(route, tables.path("names"), lake_spark)
    assert result.table.column_names == [*ODD_NAMES, "rowid"]
    assert result.rows() == [{**{name: index + 1 for index, name in enumerate(ODD_NAMES)}, "rowid": 0}]


@pytest.mark.parametrize("route", ROUTES)
def test_renamed_dropped_and_added_columns_and_null_partitions_are_read(
    tables: Lake, lake_spark: Spark, route: str
) -> None:
    assert read_by(route, tables.path("mapped"), lake_spark).rows() == [
        {"k": 1, "new": "x", "part": "a", "gone": None, "rowid": None},
        {"k": 2, "new": None, "part": None, "gone": None, "rowid": None},
        {"k": 3, "new": "y", "part": "b c", "gone": "back", "rowid": None},
    ]


@pytest.mark.parametrize("route", ROUTES)
def test_deleted_rows_stay_deleted(tables: Lake, lake_spark: Spark, route: str) -> None:
    result = read_by(route, tables.path("deleted"), lake_spark)
    assert result.column("k") == list(range(15, 29))
    assert result.column("rowid") == list(range(15, 29))


@pytest.mark.parametrize("route", ROUTES)
def test_an_empty_table_gives_no_rows(tmp_path: Path, lake_spark: Spark, route: str) -> None:
    write_deltalake(tmp_path / "t", pa.schema([("k", pa.int64()), ("v", pa.string())]).empty_table())
    assert read_by(route, tmp_path / "t", lake_spark).table.num_rows == 0


def test_the_row_id_is_the_last_field_and_marked(tables: Lake) -> None:
    shape = open_table(tables.path("deleted")).current().shape
    assert shape.names == ["k", "v", "rowid"]
    assert [is_rowid(field) for field in shape] == [False, False, True]
    assert not shape.field("k").nullable


def write(path: Path, **columns: pa.Array) -> Path:
    write_deltalake(path, pa.table(columns))
    return path


def test_a_table_without_row_ids_is_told_to_have_null_ones(tmp_path: Path) -> None:
    result = read(open_table(write(tmp_path / "t", k=pa.array([1, 2]))).current())
    assert result.rows() == [{"k": 1, "rowid": None}, {"k": 2, "rowid": None}]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["rowid", "_rowid"], ["rowid", "_rowid"]),
        (["ROWID", "_rowid"], ["ROWID", "_rowid"]),
        (["RowId"], ["RowId", "_rowid"]),
        (["k", "_ROWID"], ["k", "rowid"]),
    ],
)
def test_a_users_own_rowid_column_is_kept_apart(tmp_path: Path, columns: list[str], names: list[str]) -> None:
    path = write(tmp_path / "t", **{name: pa.array([index * 10]) for index, name in enumerate(columns)})
    snapshot = open_table(path).current()
    result = read(snapshot)
    assert result.table.column_names == names
    assert [is_rowid(field) for field in snapshot.shape] == [False] * (len(names) - 1) + [True]
    hidden = [name for name in columns if name.lower() == "_rowid"]
    assert result.table.column(len(names) - 1).to_pylist() == [columns.index(hidden[0]) * 10 if hidden else None]


def test_a_row_id_column_of_another_type_is_an_ordinary_column(tmp_path: Path) -> None:
    result = read(open_table(write(tmp_path / "t", _rowid=pa.array(["x"]), k=pa.array([1]))).current())
    assert result.rows() == [{"_rowid": "x", "k": 1, "rowid": None}]


def test_another_row_id_column_can_be_configured(tmp_path: Path) -> None:
    path = write(tmp_path / "t", my_id=pa.array([5]), k=pa.array([1]))
    assert read(open_table(path, rowid_column="MY_ID").current()).rows() == [{"k": 1, "rowid": 5}]


def evolve(path: Path, **columns: pa.Array) -> None:
    write_deltalake(path, pa.table(columns), mode="overwrite", schema_mode="overwrite")


@pytest.fixture
def told(tmp_path: Path) -> tuple[Path, pa.Schema]:
    """A table of k and v, and the shape that a client was told of it."""
    path = write(tmp_path / "t", k=pa.array([1, 2]), v=pa.array(["a", "b"]))
    return path, open_table(path).current().shape


def test_a_column_added_since_is_not_in_the_stream(told: tuple[Path, pa.Schema]) -> None:
    path, shape = told
    evolve(path, k=pa.array([1]), new=pa.array([0.5]), v=pa.array(["a"]))
    assert read(open_table(path).current(), shape=shape).rows() == [{"k": 1, "v": "a", "rowid": None}]


def test_columns_in_another_order_come_in_the_told_order(told: tuple[Path, pa.Schema]) -> None:
    path, shape = told
    evolve(path, v=pa.array(["a"]), k=pa.array([1]))
    assert read(open_table(path).current(), shape=shape).rows() == [{"k": 1, "v": "a", "rowid": None}]


def test_row_ids_added_since_are_given(told: tuple[Path, pa.Schema]) -> None:
    path, shape = told
    evolve(path, _rowid=pa.array([7]), k=pa.array([1]), v=pa.array(["a"]))
    assert read(open_table(path).current(), shape=shape).rows() == [{"k": 1, "v": "a", "rowid": 7}]


@pytest.mark.parametrize(
    "columns",
    [{"k": pa.array([1])}, {"k": pa.array([1]), "renamed": pa.array(["a"])}, {"k": pa.array([1]), "v": pa.array([5])}],
    ids=["dropped", "renamed", "type changed"],
)
def test_a_told_column_that_is_gone_or_other_is_refused_when_read_and_only_then(
    told: tuple[Path, pa.Schema], columns: dict[str, pa.Array]
) -> None:
    path, shape = told
    evolve(path, **columns)
    snapshot = open_table(path).current()
    assert read(snapshot, ["k"], shape=shape).column("k") == [1]
    with pytest.raises(RequestError, match=r"'v'.*attach again"):
        read(snapshot, ["k", "v"], shape=shape)
