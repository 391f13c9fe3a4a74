"""Values of partition columns: what a table takes it gives back, and what it could not give back it refuses."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from gateway.errors import RequestError
from gateway.lake.values.partitions import check_partition_values
from tests.airport import AirportClient
from tests.builders import Lake
from tests.flight.writing import refused, version_of

DAYS, MOMENTS = pa.date32(), pa.timestamp("us", tz="UTC")
INFINITE = 2**31 - 1
BEFORE_CHRIST = -62_135_596_801 * 10**6
REFUSED = {
    "empty text": ("STRING", pa.array([""])),
    "empty text that must not be null": ("STRING NOT NULL", pa.array([""])),
    "the name of the folder of nulls": ("STRING", pa.array(["__HIVE_DEFAULT_PARTITION__"])),
    "text too long for a folder": ("STRING", pa.array(["x" * 254])),
    "text too long once it is escaped": ("STRING", pa.array(["/" * 90])),
    "text with a nul": ("STRING", pa.array(["a\0b"])),
    "empty bytes": ("BINARY", pa.array([b""])),
    "bytes that are no text": ("BINARY", pa.array([b"\xff"])),
    "infinity": ("DATE", pa.array([INFINITE], pa.int32()).cast(DAYS)),
    "a date of the year 10000": ("DATE", pa.array([2_932_897], pa.int32()).cast(DAYS)),
    "a moment before Christ": ("TIMESTAMP", pa.array([BEFORE_CHRIST]).cast(MOMENTS)),
    "a local moment before Christ": ("TIMESTAMP_NTZ", pa.array([BEFORE_CHRIST]).cast(pa.timestamp("us"))),
}
TAKEN: list[tuple[str, pa.DataType, list[Any]]] = [
    ("STRING", pa.string(), [" ", "a/b=c", "é%2F'\"", "..", "\n", "null", "x" * 253, None]),
    ("BINARY", pa.binary(), [b"abc", "é".encode(), None]),
    ("DATE", DAYS, [date(1, 1, 1), date(9999, 12, 31), None]),
    ("TIMESTAMP", MOMENTS, [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None]),
    ("DOUBLE", pa.float64(), [0.5, -1e300, float("inf"), None]),
    ("BOOLEAN", pa.bool_(), [True, False, None]),
]


def rows(values: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(len(values)), pa.int64()), values], names=["k", "p"])


def make(lake: Lake, kind: str, properties: dict[str, str] | None = None) -> None:
    lake.create("t", f"_rowid BIGINT, k BIGINT, p {kind}", partitioned_by="p", properties=properties or {})


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_partition_cannot_keep_is_refused(client: AirportClient, lake: Lake, case: str) -> None:
    kind, values = REFUSED[case]
    make(lake, kind)
    assert refused(lambda: client.insert(lake.schema, "t", rows(values))).startswith("column 'p' is a partition column")
    assert version_of(lake, "t") == 0


def test_an_update_of_a_partition_is_checked_as_well(client: AirportClient, lake: Lake) -> None:
    make(lake, "STRING")
    client.insert(lake.schema, "t", rows(pa.array(["a"])))
    change = pa.record_batch([pa.array([""]), pa.array([0])], names=["p", "rowid"])
    assert "cannot tell an empty value from NULL" in refused(
        lambda: client.update(lake.schema, "t", change, sets=["p"])
    )
    assert [row["p"] for row in client.scan(lake.schema, "t").rows()] == ["a"]


@pytest.mark.parametrize("mapped", [False, True], ids=["folders", "column mapping"])
@pytest.mark.parametrize(("kind", "arrow", "values"), TAKEN, ids=[kind for kind, _, _ in TAKEN])
def test_what_a_partition_takes_it_gives_back(
    client: AirportClient, lake: Lake, kind: str, arrow: pa.DataType, values: list[Any], mapped: bool
) -> None:
    make(lake, kind, {"delta.columnMapping.mode": "name"} if mapped else None)
    assert client.insert(lake.schema, "t", rows(pa.array(values, arrow))).total_changed == len(values)
    found = {row["k"]: row["p"] for row in client.scan(lake.schema, "t").rows()}
    assert found == dict(enumerate(values))
    by_spark = {row["k"]: row["p"] for row in lake.spark.read.format("delta").load(str(lake.path("t"))).toArrow().to_pylist()}  # noqa: E501
    assert by_spark == found


def test_without_folders_a_text_may_be_long() -> None:
    check_partition_values("p", pa.array(["x" * 10_000, "a\0b"]), in_folders=False)
    with pytest.raises(RequestError, match="255 bytes"):
        check_partition_values("p", pa.array(["x" * 10_000]), in_folders=True)
