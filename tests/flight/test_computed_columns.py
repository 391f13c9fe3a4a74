"""Identity and generated columns, which clients send as NULL: Delta fills them in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql.types import LongType, StringType

from tests.airport import AirportClient
from tests.builders import Lake
from tests.flight.writing import refused, version_of

ROWS = pa.schema([("k", pa.int64()), ("c", pa.int64()), ("v", pa.string())])


def make(lake: Lake, computed: str) -> None:
    clauses: dict[str, dict[str, Any]] = {
        "always": {"generatedAlwaysAs": IdentityGenerator(100, 10)},
        "by default": {"generatedByDefaultAs": IdentityGenerator(100, 10)},
        "generated": {"generatedAlwaysAs": "k * 2"},
    }
    builder = DeltaTable.create(lake.spark).location(str(lake.path("t"))).addColumn("_rowid", LongType())
    builder = builder.addColumn("k", LongType()).addColumn("c", LongType(), **clauses[computed])
    builder.addColumn("v", StringType()).execute()


def rows(*values: tuple[int, int | None]) -> pa.RecordBatch:
    keys, computed = zip(*values, strict=True)
    texts = [f"v{key}" for key in keys]
    return pa.record_batch([pa.array(keys), pa.array(computed, pa.int64()), pa.array(texts)], schema=ROWS)


def stored(client: AirportClient, lake: Lake) -> list[tuple[Any, ...]]:
    scanned = client.scan(lake.schema, "t", ["k", "c", "rowid"]).rows()
    return sorted((row["k"], row["c"], row["rowid"]) for row in scanned)


@pytest.mark.parametrize(("computed", "expected"), [("always", {100, 110}), ("by default", {100, 110}), ("generated", {2, 4})])  # noqa: E501
def test_a_computed_column_that_is_sent_as_null_is_filled_in(
    client: AirportClient, lake: Lake, computed: str, expected: set[int]
) -> None:
    make(lake, computed)
    assert client.insert(lake.schema, "t", rows((1, None), (2, None))).total_changed == 2
    assert {c for _, c, _ in stored(client, lake)} == expected
    assert {rowid for _, _, rowid in stored(client, lake)} == {0, 1}
    change = pa.record_batch([pa.array(["x"]), pa.array([0])], names=["v", "rowid"])
    assert client.update(lake.schema, "t", change, sets=["v"]).total_changed == 1
    assert client.delete(lake.schema, "t", [1]).total_changed == 1
    assert len(stored(client, lake)) == 1


def test_a_generated_column_follows_the_column_it_is_made_of(client: AirportClient, lake: Lake) -> None:
    make(lake, "generated")
    client.insert(lake.schema, "t", rows((1, None)))
    change = pa.record_batch([pa.array([21]), pa.array([0])], names=["k", "rowid"])
    assert client.update(lake.schema, "t", change, sets=["k"]).total_changed == 1
    assert stored(client, lake) == [(21, 42, 0)]


def test_a_value_that_is_given_is_kept_where_the_column_takes_it(client: AirportClient, lake: Lake) -> None:
    make(lake, "by default")
    assert client.insert(lake.schema, "t", rows((1, 7))).total_changed == 1
    assert stored(client, lake) == [(1, 7, 0)]


@pytest.mark.parametrize(
    ("computed", "values", "text"),
    [
        ("always", [(1, 5)], "column 'c' is an identity column that takes no values: leave it out"),
        ("by default", [(1, 5), (2, None)], "an identity column: give it a value in every row or in none"),
        ("generated", [(1, 2), (2, None)], "a generated column: give it a value in every row or in none"),
        ("generated", [(1, 3)], "CHECK constraint failed: Generated Column"),
    ],
)  # fmt: skip
def test_a_value_that_a_computed_column_does_not_take_is_refused(
    client: AirportClient, lake: Lake, computed: str, values: list[tuple[int, int | None]], text: str
) -> None:
    make(lake, computed)
    before = version_of(lake, "t")
    assert text in refused(lambda: client.insert(lake.schema, "t", rows(*values)))
    assert version_of(lake, "t") == before


def test_an_identity_column_cannot_be_updated(client: AirportClient, lake: Lake) -> None:
    make(lake, "by default")
    client.insert(lake.schema, "t", rows((1, None)))
    change = pa.record_batch([pa.array([21]), pa.array([0])], names=["c", "rowid"])
    text = refused(lambda: client.update(lake.schema, "t", change, sets=["c"]))
    assert text == "column 'c' is an identity column: it cannot be updated"
