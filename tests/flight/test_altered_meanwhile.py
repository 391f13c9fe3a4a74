"""An ALTER while an upload is on its way: its rows were made for other columns, and must not become values of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, time
from typing import Any

import pyarrow as pa
import pytest

from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import refused

UUID = "00000000-0000-0000-0000-000000000001"
# A column's type, a value that is there, one that an upload brings, and the type that the column gets meanwhile.
ALTERED = {
    "bigint to uinteger": (pa.int64(), 7, -7, pa.uint32()),
    "bigint to utinyint": (pa.int16(), 7, 300, pa.uint8()),
    "timestamp to timestamp_s": (pa.timestamp("us"), datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 5), pa.timestamp("s")),  # noqa: DTZ001, E501
    "varchar to uuid": (pa.string(), UUID, "no uuid", pa.uuid()),
    "varchar to json": (pa.string(), "{}", "no json {", pa.json_(pa.string())),
    "time to time_ns": (pa.time64("us"), time(1), time(12), pa.time64("ns")),
    "bigint to varchar": (pa.int64(), 7, 8, pa.string()),
}  # fmt: skip


@pytest.fixture
def other(gateway: Gateway) -> Iterator[AirportClient]:
    with AirportClient(gateway.location, CATALOG) as attached:
        yield attached


@pytest.fixture
def column(client: AirportClient, lake: Lake) -> Callable[[pa.DataType, Any], None]:
    def make(kind: pa.DataType, value: Any) -> None:
        client.ddl.create_schema(lake.schema)
        client.ddl.create_table(lake.schema, "t", pa.schema([("k", pa.int64()), ("x", kind)]))
        client.insert(lake.schema, "t", pa.record_batch([pa.array([1]), pa.array([value], kind)], names=["k", "x"]))

    return make


@pytest.mark.parametrize("statement", ["insert", "update"])
@pytest.mark.parametrize("case", ALTERED)
def test_an_upload_that_an_alter_overtook_is_refused(
    client: AirportClient,
    other: AirportClient,
    lake: Lake,
    column: Callable[[pa.DataType, Any], None],
    case: str,
    statement: str,
) -> None:
    old, value, late, new = ALTERED[case]
    column(old, value)

    def alter_first(names: list[str]) -> Iterator[pa.RecordBatch]:
        """The client takes rows from here once the server has planned the upload."""
        other.ddl.change_column_type(lake.schema, "t", pa.field("x", new))
        arrays = {"k": pa.array([2]), "x": pa.array([late], old), "rowid": pa.array([0])}
        yield pa.record_batch([arrays[name] for name in names], names=names)

    if statement == "insert":
        text = refused(lambda: client.insert(lake.schema, "t", alter_first(["k", "x"])))
    else:
        text = refused(lambda: client.update(lake.schema, "t", alter_first(["x", "rowid"]), sets=["x"]))
    assert "column 'x' changed during the upload" in text
    assert [row["k"] for row in other.scan(lake.schema, "t").rows()] == [1]


def test_an_upload_for_a_column_that_was_dropped_and_made_anew_is_refused(
    client: AirportClient, other: AirportClient, lake: Lake, column: Callable[[pa.DataType, Any], None]
) -> None:
    column(pa.int64(), 7)

    def replace_first() -> Iterator[pa.RecordBatch]:
        other.ddl.remove_column(lake.schema, "t", "x")
        other.ddl.add_column(lake.schema, "t", pa.field("x", pa.int64()))
        yield pa.record_batch([pa.array([2]), pa.array([8])], names=["k", "x"])

    assert "column 'x' changed during the upload" in refused(
        lambda: client.insert(lake.schema, "t", replace_first())
    )
    assert [(row["k"], row["x"]) for row in other.scan(lake.schema, "t").rows()] == [(1, None)]
