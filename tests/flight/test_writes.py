"""Writes over the wire with the DuckDB client's frames, as Delta MERGEs of a real Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.airport import AirportClient
from tests.builders import Lake


def rows_of(client: AirportClient, lake: Lake, table: str = "n") -> list[dict[str, object]]:
    return sorted(client.scan(lake.schema, table, ["k", "v", "rowid"]).rows(), key=lambda row: row["k"])


def batch(**columns: list[object]) -> pa.RecordBatch:
    kinds = {"k": pa.int64(), "v": pa.string(), "rowid": pa.int64()}
    return pa.record_batch([pa.array(values, kinds[name]) for name, values in columns.items()], names=list(columns))


def test_insert_gives_ids_above_every_other(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 3)
    assert client.insert(lake.schema, "n", batch(k=[10, 11], v=["a", None])).total_changed == 2
    assert rows_of(client, lake)[3:] == [{"k": 10, "v": "a", "rowid": 3}, {"k": 11, "v": None, "rowid": 4}]


def test_update_and_delete_change_the_rows_they_name(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 4)
    assert client.update(lake.schema, "n", batch(v=["x", "y"], rowid=[1, 2]), sets=["v"]).total_changed == 2
    assert client.delete(lake.schema, "n", [0, 99]).total_changed == 1
    assert rows_of(client, lake) == [
        {"k": 1, "v": "x", "rowid": 1},
        {"k": 2, "v": "y", "rowid": 2},
        {"k": 3, "v": "v3", "rowid": 3},
    ]
    # The id of the deleted last row is never given again.
    client.delete(lake.schema, "n", [3])
    client.insert(lake.schema, "n", batch(k=[50], v=["new"]))
    assert rows_of(client, lake)[-1] == {"k": 50, "v": "new", "rowid": 4}


def test_returning_answers_each_batch(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 3)
    inserted = client.insert(lake.schema, "n", batch(k=[7], v=["r"]), returning=True)
    assert inserted.returned.to_pylist() == [{"k": 7, "v": "r", "rowid": None}]
    deleted = client.delete(lake.schema, "n", [1], returning=True)
    assert deleted.returned.to_pylist() == [{"k": 1, "v": "v1", "rowid": 1}]


def test_a_table_without_row_ids_takes_new_rows_only(client: AirportClient, lake: Lake) -> None:
    lake.create("plain", "k BIGINT, v STRING")
    assert client.insert(lake.schema, "plain", batch(k=[1], v=["a"])).total_changed == 1
    with pytest.raises(flight.FlightError, match="table does not support UPDATE operations"):
        client.update(lake.schema, "plain", batch(v=["x"], rowid=[1]), sets=["v"])
    assert client.scan(lake.schema, "plain").num_rows == 1
