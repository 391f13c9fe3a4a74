"""Reads through the real client's eyes: attach, browse, scan, over Spark-made Delta tables."""

from __future__ import annotations

from tests.airport import AirportClient
from tests.builders import Lake


def test_a_table_made_by_spark_is_listed_and_read(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 10)
    found = client.table(lake.schema, "n")
    assert found.column_names == ["k", "v"]
    assert found.rowid is not None
    scanned = client.scan(lake.schema, "n", ["k", "v", "rowid"])
    assert sorted(scanned.rows(), key=lambda row: row["k"]) == [{"k": k, "v": f"v{k}", "rowid": k} for k in range(10)]


def test_a_filter_leaves_rows_out(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 1000, files=4)
    k = client.table(lake.schema, "n").ref("k")
    scanned = client.scan(lake.schema, "n", ["k"], [k.eq(700)])
    assert scanned.rows() == [{"k": 700}]
