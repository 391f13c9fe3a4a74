"""Slices and pieces: however a scan is cut, its parts give every row exactly once."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.catalog.capabilities import ScanRequest
from gateway.errors import MalformedTicketError
from gateway.lake.delta_table import DeltaSnapshot
from gateway.lake.reading.slices import cut
from gateway.lake.spark.engine import Spark
from gateway.wire.tickets import Slice
from tests.builders import Lake
from tests.lake.reading import ROUTES, open_table, read

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1])),
    "small integers": (pa.int8(), st.integers(-128, 127)),
    "texts": (pa.string(), st.sampled_from(["", "a", "B", "é", "🙂", "\uffff", "x" * 50, "it's", '"', "\0"])),
    "dates": (pa.date32(), st.dates()),
    "times": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "plain times": (pa.timestamp("us"), st.datetimes()),
}


def parts_of(snapshot: DeltaSnapshot, at_most: int = 1000) -> list[Slice | None]:
    return cut(snapshot.log, range(snapshot.log.files.num_rows), None, 1, at_most)


def rows_of(snapshot: DeltaSnapshot, part: Slice | None) -> Counter[str]:
    return Counter(map(str, read(snapshot, slice=part).table.to_pylist()))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_parts_of_a_cut_scan_give_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("sliced") / "t"
    type_, values = KINDS[kind]
    for file in range(data.draw(st.integers(2, 4))):
        column = data.draw(st.lists(st.none() | values, min_size=1, max_size=4))
        rows = pa.table({"c": pa.array(column, type_), "id": [f"{file}.{row}" for row in range(len(column))]})
        write_deltalake(path, rows, mode="append")
    snapshot = open_table(path).current()
    whole = rows_of(snapshot, None)
    # Boundaries of the log's choice, and of anybody's: any boundaries cut correctly.
    chosen = data.draw(st.lists(values, max_size=3)) if type_ in (pa.int64(), pa.string()) else []
    edges = [None, *sorted(set(chosen)), None]
    for parts in (
        parts_of(snapshot),
        [Slice("c", low, high) for low, high in itertools.pairwise(edges)],
    ):
        assert sum((rows_of(snapshot, part) for part in parts), Counter()) == whole


@pytest.fixture(scope="module")
def sliced(spark: Any, warehouse: Path) -> Lake:
    lake = Lake(spark, warehouse, __name__)
    lake.numbers("ids", 400, files=8)
    lake.create("mixed", "k INT, d DATE, ts TIMESTAMP, s STRING, p INT", partitioned_by="p")
    for part in range(4):
        lake.fill(
            "mixed",
            f"""SELECT /*+ COALESCE(1) */ if(id % 5 = 0, NULL, cast(id AS INT) - 20),
            date_add(DATE'2024-01-01', cast(id AS INT)), timestamp_micros(id * 1000001), concat('s', id % 7),
            if({part} = 3, NULL, {part}) FROM range({part * 10}, {part * 10 + 12})""",
        )
    lake.create("unknown", "k INT", properties={"delta.dataSkippingNumIndexedCols": "0"})
    lake.fill("unknown", "SELECT cast(id AS INT) FROM range(0, 20, 1, 2)")
    return lake


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("table", ["ids", "mixed", "unknown"])
def test_cut_into_many_parts_a_scan_gives_what_it_gives_whole(
    sliced: Lake, lake_spark: Spark, route: str, table: str
) -> None:
    whole = read(open_table(sliced.path(table), lake_spark, engine=route).current())
    tiny = open_table(sliced.path(table), lake_spark, engine=route, piece_bytes=1, endpoint_bytes=1, max_endpoints=3)
    snapshot = tiny.current()
    assert read(snapshot).rows() == whole.rows()
    parts = snapshot.slices(ScanRequest(snapshot.shape, frozenset(snapshot.shape.names)))
    assert sum((rows_of(snapshot, part) for part in parts), Counter()) == Counter(map(str, whole.table.to_pylist()))


def test_a_table_with_statistics_is_cut_by_its_row_ids_and_one_without_is_not(sliced: Lake) -> None:
    parts = parts_of(open_table(sliced.path("ids")).current())
    assert len(parts) > 4
    assert {part.column for part in parts if part is not None} == {"_rowid"}
    assert parts_of(open_table(sliced.path("unknown")).current()) == [None]


def test_a_slice_is_cut_further_within_its_bounds(sliced: Lake) -> None:
    snapshot = open_table(sliced.path("ids"), piece_bytes=1).current()
    within = Slice("_rowid", 77, 301)
    pieces = cut(snapshot.log, range(8), within, 1, 1000)
    assert len(pieces) > 2
    assert read(snapshot, slice=within).column("rowid") == list(range(77, 301))


def test_no_more_parts_than_allowed_are_made(sliced: Lake) -> None:
    snapshot = open_table(sliced.path("ids")).current()
    for at_most in (1, 2, 3, 8):
        assert 1 <= len(parts_of(snapshot, at_most)) <= at_most


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "forged",
    [
        Slice("missing", 0, 1),
        Slice("f", 0, 1),
        Slice("st", 0, 1),
        Slice("k", "a", "b"),
        Slice("s", 0, 1),
        Slice("k", 2**40, None),
        Slice("k", None, -(2**40)),
        Slice("d", 2**40, None),
        Slice("' OR 1=1 --", None, "x"),
    ],
    ids=str,
)
def test_a_forged_slice_is_refused(tmp_path: Path, lake_spark: Spark, route: str, forged: Slice) -> None:
    columns = {
        "k": pa.array([1], pa.int32()),
        "s": pa.array(["a"]),
        "f": pa.array([0.5]),
        "st": pa.array([{"a": 1}]),
        "d": pa.array([date(2024, 1, 1)]),
        "ts": pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    }
    write_deltalake(tmp_path / "t", pa.table(columns))
    with pytest.raises(MalformedTicketError):
        read(open_table(tmp_path / "t", lake_spark, engine=route).current(), slice=forged)


@pytest.mark.parametrize("route", ROUTES)
def test_a_slice_at_the_far_end_of_its_type_is_just_empty(tmp_path: Path, lake_spark: Spark, route: str) -> None:
    write_deltalake(tmp_path / "t", pa.table({"k": [1], "s": ["a"]}))
    snapshot = open_table(tmp_path / "t", lake_spark, engine=route).current()
    assert read(snapshot, slice=Slice("k", 2**63 - 1, None)).table.num_rows == 0
    assert read(snapshot, slice=Slice("s", 'it\'s "quoted" \\ `', None)).table.num_rows == 0
