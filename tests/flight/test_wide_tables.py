"""A table with a thousand columns: whatever grows with the square of the columns shows here.

Spark derives constraints between all columns of a plan unless it is set not to; a one-row INSERT then takes
minutes, and these tests run into their time limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import JsonClient

WIDTH = 1_000
NAMES = [f"c{place}" for place in range(WIDTH)]
KINDS = [pa.int64(), pa.string(), pa.float64(), pa.timestamp("us", "UTC"), pa.decimal128(12, 2)]
COLUMNS = pa.schema([pa.field(name, KINDS[place % len(KINDS)]) for place, name in enumerate(NAMES)])


def wide_rows(*numbers: int) -> pa.RecordBatch:
    """Rows that are full of one number each."""
    narrow, wide = pa.array(numbers, pa.int32()), pa.array(numbers, pa.int64())
    arrays = [(narrow if pa.types.is_decimal(field.type) else wide).cast(field.type) for field in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


@pytest.fixture
def wide(lake: Lake) -> Lake:
    data = pa.Table.from_batches([wide_rows(1, 2)]).add_column(0, "_rowid", pa.array([0, 1]))
    write_deltalake(str(lake.path("n")), data)
    return lake


@pytest.fixture
def attached(gateway: Gateway, wide: Lake) -> Iterator[AirportClient]:
    with AirportClient(gateway.location, CATALOG) as client:
        yield client


def test_one_row_of_a_thousand_columns_is_inserted_updated_and_deleted(
    gateway: Gateway, attached: AirportClient, wide: Lake
) -> None:
    assert attached.insert(wide.schema, "n", wide_rows(3), returning=True).returned.num_rows == 1
    changed = wide_rows(7).append_column("rowid", pa.array([1]))
    assert attached.update(wide.schema, "n", changed, sets=NAMES).total_changed == 1
    other = JsonClient(gateway.location, wide.schema)
    try:
        assert other.insert(wide_rows(4))["affected_rows"] == 1
        assert other.delete([0])["affected_rows"] == 1
    finally:
        other.close()
    stored = sorted(attached.scan(wide.schema, "n").rows(), key=lambda row: row["c0"])
    assert stored == wide_rows(3, 4, 7).to_pylist()
