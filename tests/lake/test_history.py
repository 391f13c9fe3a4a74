"""Time travel: by version and by time, in every text that DuckDB sends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.catalog.capabilities import AsOf
from gateway.errors import InternalError, NotFoundError, RequestError
from gateway.lake.spark.engine import Spark
from gateway.lake.tables.history import available_versions, parse_moment, version_at_time
from gateway.lake.tables.storage import Folder
from tests.builders import Lake
from tests.lake.reading import edit_commit, log_file, open_table, read

START = datetime(2024, 1, 1, 10, 20, 30, tzinfo=UTC)


def at(moment: datetime) -> AsOf:
    return AsOf("TIMESTAMP", f"{moment:%Y-%m-%d %H:%M:%S.%f}+00")


@pytest.fixture(scope="module")
def hourly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four versions, committed an hour apart from START on."""
    path = tmp_path_factory.mktemp("history") / "t"
    for version in range(4):
        write_deltalake(path, pa.table({"k": [version]}), mode="append")
        seconds = (START + timedelta(hours=version)).timestamp()
        os.utime(log_file(path, version), (seconds, seconds))
    return path


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2024-01-01 10:20:30", 0),
        ("2024-01-01 10:20:30.5", 0),
        ("2024-01-01 10:20:30+00", 0),
        ("2024-01-01 11:20:29.999999", 0),
        ("2024-01-01 11:20:30", 1),
        ("2024-01-01 11:20:30.000001+00", 1),
        ("2024-01-01 14:20:30+02", 2),
        ("2024-01-01 12:20:30.123456789", 2),
        ("2024-01-01T12:20:30Z", 2),
        (" 2024-01-01 12:20:30 ", 2),
        ("2024-01-02", 3),
        ("9999-12-31 23:59:59.999999", 3),
        ("infinity", 3),
    ],
)
def test_a_time_means_the_version_that_was_current_then(hourly: Path, text: str, version: int) -> None:
    assert open_table(hourly).version_as_of(AsOf("TIMESTAMP", text)) == version


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01 10:20:29.999999+00", "0001-01-01 00:00:00", "-infinity"])
def test_a_time_before_the_first_version_says_when_that_was(hourly: Path, text: str) -> None:
    with pytest.raises(NotFoundError, match=r"'s\.t'.* first is of 2024-01-01 10:20:30 UTC"):
        open_table(hourly).version_as_of(AsOf("TIMESTAMP", text))


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "",
        "tag",
        "2024-13-01",
        "2024-01-01 25:00:00",
        "10:20:30",
        "0001-01-01 00:00:00+14",
        "9999-12-31 23:59:59-10",
        "10000-01-01 00:00:00",
        "0044-03-15 (BC) 00:00:00",
        "x" * 10_000,
        "2024-01-01\0",
    ],
)
def test_a_text_that_is_no_time_is_the_callers_error(hourly: Path, text: str) -> None:
    with pytest.raises(RequestError, match="is not a time") as caught:
        open_table(hourly).version_as_of(AsOf("TIMESTAMP", text))
    assert len(caught.value.message) < 160


@pytest.mark.parametrize(("text", "version"), [("0", 0), ("2", 2), (" 3 ", 3), ("0003", 3)])
def test_a_version_is_a_number(hourly: Path, text: str, version: int) -> None:
    assert open_table(hourly).version_as_of(AsOf("VERSION", text)) == version


@pytest.mark.parametrize("text", ["-1", "tag", "", "1.0", "1e0", "²", "٣", "9" * 30, "0x1"])
def test_a_text_that_is_no_version_is_the_callers_error(hourly: Path, text: str) -> None:
    with pytest.raises(RequestError, match="is not a version"):
        open_table(hourly).version_as_of(AsOf("VERSION", text))


@pytest.mark.parametrize("text", ["4", "999999999999999999"])
def test_a_version_that_does_not_exist_says_which_do(hourly: Path, text: str) -> None:
    with pytest.raises(NotFoundError, match="it has 0 to 3"):
        open_table(hourly).version_as_of(AsOf("VERSION", text))


def test_commits_with_times_out_of_order_are_moved_forward(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for version, minutes in enumerate([0, 30, 10, 40]):
        write_deltalake(path, pa.table({"k": [version]}), mode="append")
        seconds = (START + timedelta(minutes=minutes)).timestamp()
        os.utime(log_file(path, version), (seconds, seconds))
    table = open_table(path)
    assert table.version_as_of(at(START + timedelta(minutes=20))) == 0
    assert table.version_as_of(at(START + timedelta(minutes=30))) == 1
    assert table.version_as_of(at(START + timedelta(minutes=30, milliseconds=1))) == 2
    assert table.version_as_of(at(START + timedelta(minutes=40))) == 3


def test_times_reach_back_to_the_oldest_readable_version_only(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for version in range(4):
        write_deltalake(path, pa.table({"k": [version]}), mode="append")
        if version == 2:
            DeltaTable(path).create_checkpoint()
    for version in range(4):
        seconds = (START + timedelta(hours=version)).timestamp()
        os.utime(log_file(path, version), (seconds, seconds))
    log_file(path, 0).unlink()
    table = open_table(path)
    assert available_versions(Folder.open(str(path / "_delta_log"))) == (2, 3)
    assert table.version_as_of(at(START + timedelta(hours=2))) == 2
    with pytest.raises(NotFoundError, match="first is of 2024-01-01 12:20:30"):
        table.version_as_of(at(START + timedelta(hours=1)))


@pytest.fixture(scope="module")
def stamped(spark: Any, warehouse: Path) -> Iterator[Lake]:
    """Tables that keep the time inside the commits: one from the start, one from version 2 on."""
    lake = Lake(spark, warehouse, __name__)
    inside = {"delta.enableInCommitTimestamps": "true"}
    lake.create("always", "k INT", properties=inside)
    lake.fill("always", "VALUES (1)")
    lake.fill("always", "VALUES (2)")
    lake.create("late", "k INT")
    lake.fill("late", "VALUES (1)")
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')", "late")
    lake.fill("late", "VALUES (2)")
    return lake


def history(lake: Lake, table: str) -> dict[int, datetime]:
    rows = lake.sql("DESCRIBE HISTORY {t}", table).selectExpr("version", "unix_micros(timestamp) AS us").collect()
    return {row.version: datetime.fromtimestamp(row.us / 1e6, UTC) for row in rows}


@pytest.mark.parametrize("table", ["always", "late"])
def test_the_time_inside_a_commit_counts_where_the_table_keeps_it(stamped: Lake, table: str) -> None:
    times = history(stamped, table)
    opened = open_table(stamped.path(table))
    for version, moment in times.items():
        assert opened.version_as_of(at(moment)) == version
        if version > 0:
            assert opened.version_as_of(at(moment - timedelta(milliseconds=1))) == version - 1
    assert opened.version_as_of(AsOf("TIMESTAMP", "infinity")) == max(times)


def test_file_times_do_not_matter_where_the_commit_holds_its_time(stamped: Lake) -> None:
    times = history(stamped, "always")
    for version in times:
        os.utime(log_file(stamped.path("always"), version), (0, 0))
    assert open_table(stamped.path("always")).version_as_of(at(times[1])) == 1


def test_a_commit_without_the_time_it_should_hold_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"k": [1]}))
    edit_commit(path, 0, lambda text: text.replace('"commitInfo"', '"otherInfo"'))
    folder = Folder.open(str(path / "_delta_log"))
    with pytest.raises(InternalError):
        version_at_time(folder, {"delta.enableInCommitTimestamps": "true"}, parse_moment("2024-01-01"))


def test_old_versions_have_the_schema_they_had(lake: Lake, lake_spark: Spark) -> None:
    mapping = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    lake.create("t", "a INT, b STRING, c INT", properties=mapping)
    lake.fill("t", "VALUES (1, 'x', 10)")
    steps = [
        "ALTER TABLE {t} ADD COLUMN d DOUBLE",
        "ALTER TABLE {t} RENAME COLUMN a TO renamed",
        "ALTER TABLE {t} DROP COLUMN b",
        "ALTER TABLE {t} ALTER COLUMN c TYPE BIGINT",
    ]
    for step in steps:
        lake.sql(step, "t")
    lake.fill("t", "VALUES (2, 5000000000, 0.5)")
    expected = {
        1: [{"a": 1, "b": "x", "c": 10}],
        2: [{"a": 1, "b": "x", "c": 10, "d": None}],
        3: [{"renamed": 1, "b": "x", "c": 10, "d": None}],
        4: [{"renamed": 1, "c": 10, "d": None}],
        5: [{"renamed": 1, "c": 10, "d": None}],
        6: [{"renamed": 1, "c": 10, "d": None}, {"renamed": 2, "c": 5_000_000_000, "d": 0.5}],
    }
    table = open_table(lake.path("t"), lake_spark)
    for version, rows in expected.items():
        snapshot = table.at(table.version_as_of(AsOf("VERSION", str(version))))
        assert read(snapshot).rows() == [{**row, "rowid": None} for row in rows]
    assert str(table.at(4).shape.field("c").type) == "int32"
    assert str(table.at(5).shape.field("c").type) == "int64"
