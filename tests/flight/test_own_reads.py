"""What a statement reads for itself, of files that the direct reader refuses or would get wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.airport.exchange import Changed
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import JsonClient, refused, running_gateway, sql_error, version_of

LAST_DAY = datetime(9999, 12, 31, tzinfo=UTC)
FIRST_DAY = datetime(1, 1, 1, tzinfo=UTC)
TODAY = datetime(2024, 1, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", "UTC")


@pytest.fixture
def far(lake: Lake) -> Lake:
    """Row ids, a unique time and a list of times; all of them INT96, as a foreign job writes them."""
    lake.create(
        "far",
        "_rowid BIGINT, k INT, ts TIMESTAMP, many ARRAY<TIMESTAMP>",
        properties={"deltaport.unique": '[["ts"]]', "delta.enableDeletionVectors": "true"},
    )
    rows = [(0, 1, "9999-12-31"), (1, 2, "0001-01-01"), (2, 3, "2024-01-01")]
    values = (f"({row}, {k}, TIMESTAMP'{day}', array(TIMESTAMP'{day}'))" for row, k, day in rows)
    lake.fill("far", f"VALUES {', '.join(values)}")
    return lake


def new_row(k: int, moment: datetime) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array([k], pa.int32()), "ts": pa.array([moment], INSTANT)})


def returned(changed: Changed) -> list[dict[str, Any]]:
    assert changed.returned is not None
    return changed.returned.to_pylist()  # type: ignore[no-any-return]


def test_delete_returns_times_far_from_today_as_they_are(client: AirportClient, far: Lake) -> None:
    changed = client.delete(far.schema, "far", [0, 1], returning=True)
    found = {row["k"]: (row["ts"], row["many"]) for row in returned(changed)}
    assert found == {1: (LAST_DAY, [LAST_DAY]), 2: (FIRST_DAY, [FIRST_DAY])}


def test_update_returns_times_far_from_today_as_they_are(gateway: Gateway, far: Lake) -> None:
    table = JsonClient(gateway.location, far.schema, "far")
    new = pa.record_batch({"k": pa.array([7], pa.int32())})
    (row,) = table.update([0], new, returning=True)["returning_data"]
    table.close()
    assert (row["k"], row["ts"], row["many"]) == (7, LAST_DAY, [LAST_DAY])


@pytest.mark.parametrize("moment", [LAST_DAY, FIRST_DAY, TODAY])
def test_a_unique_time_that_a_foreign_job_wrote_is_not_duplicated(
    client: AirportClient, far: Lake, moment: datetime
) -> None:
    before = version_of(far, "far")
    kind, words = sql_error(lambda: client.insert(far.schema, "far", new_row(9, moment)))
    assert (kind, words) == ("ConstraintException", f'Duplicate key "ts: {moment}" violates unique constraint.')
    assert version_of(far, "far") == before


def test_a_row_that_changed_meanwhile_is_a_conflict_whoever_wrote_its_times(client: AirportClient, far: Lake) -> None:
    """9999-12-31 and the time it wraps to are not the same, and a move to other files is no change."""
    transaction = client.begin()
    client.scan(far.schema, "far", ["k"], transaction=transaction)
    far.sql("UPDATE {t} SET ts = TIMESTAMP'1816-03-29 05:56:08.066277376' WHERE k = 1", "far")
    far.sql("UPDATE {t} SET k = 2 WHERE k = 2", "far")
    change = pa.record_batch({"rowid": pa.array([1], pa.int64()), "k": pa.array([8], pa.int32())})
    assert "conflict" in refused(lambda: client.delete(far.schema, "far", [0], transaction=transaction))
    other = client.begin()
    client.scan(far.schema, "far", ["k"], transaction=other)
    far.sql("OPTIMIZE {t}", "far")
    assert client.update(far.schema, "far", change, sets=["k"], transaction=other).total_changed == 1


@pytest.fixture
def widened(lake: Lake) -> Lake:
    properties = {"delta.enableTypeWidening": "true", "deltaport.primaryKey": '["k"]'}
    lake.create("w", "_rowid BIGINT, k INT NOT NULL, n DECIMAL(5,2), v STRING", properties=properties)
    lake.fill("w", "VALUES (0, 1, 1.25, 'a'), (1, 2, 2.50, 'b')")
    lake.sql("ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "w")
    lake.sql("ALTER TABLE {t} ALTER COLUMN n TYPE DECIMAL(12,4)", "w")
    lake.fill("w", "VALUES (2, 5000000000, 12345678.1234, 'c')")
    return lake


def test_a_table_with_widened_types_takes_every_statement(client: AirportClient, widened: Lake) -> None:
    schema = widened.schema

    def rows() -> list[tuple[Any, ...]]:
        scanned = client.scan(schema, "w", ["k", "n", "v", "rowid"]).rows()
        return sorted((row["rowid"], row["k"], str(row["n"]), row["v"]) for row in scanned)

    change = pa.record_batch({"rowid": pa.array([1, 77], pa.int64()), "v": ["changed", "not there"]})
    assert client.update(schema, "w", change, sets=["v"]).total_changed == 1
    gone = client.delete(schema, "w", [0], returning=True)
    assert [(row["k"], str(row["n"])) for row in returned(gone)] == [(1, "1.2500")]
    duplicate = pa.record_batch({"k": pa.array([5_000_000_000], pa.int64())})
    assert sql_error(lambda: client.insert(schema, "w", duplicate))[0] == "ConstraintException"
    new = pa.record_batch({"k": pa.array([6_000_000_000], pa.int64())})
    assert client.insert(schema, "w", new).total_changed == 1
    assert rows() == [
        (1, 2, "2.5000", "changed"),
        (2, 5_000_000_000, "12345678.1234", "c"),
        (3, 6_000_000_000, "None", None),
    ]


def test_many_rows_of_a_table_that_only_spark_reads_are_looked_up_exactly(client: AirportClient, lake: Lake) -> None:
    """More ids than fit into a list for Spark."""
    properties = {"delta.enableTypeWidening": "true", "delta.enableDeletionVectors": "true"}
    lake.create("w", "_rowid BIGINT, k INT", properties=properties)
    lake.fill("w", "SELECT id, cast(id AS INT) FROM range(0, 6000)")
    lake.sql("ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "w")
    ids = list(range(0, 7500, 3))
    gone = client.delete(lake.schema, "w", ids, returning=True)
    assert gone.total_changed == 2000
    assert sorted(row["k"] for row in returned(gone)) == list(range(0, 6000, 3))
    assert len(client.scan(lake.schema, "w", ["k"]).rows()) == 4000


def test_ids_are_given_above_those_in_files_without_statistics(client: AirportClient, lake: Lake) -> None:
    properties = {"delta.enableTypeWidening": "true", "delta.dataSkippingNumIndexedCols": "0"}
    lake.create("w", "_rowid BIGINT, k INT", properties=properties)
    lake.fill("w", "VALUES (41, 1), (7, 2)")
    lake.sql("ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "w")
    client.insert(lake.schema, "w", pa.record_batch({"k": pa.array([3], pa.int64())}))
    assert sorted(row["rowid"] for row in client.scan(lake.schema, "w", ["rowid"]).rows()) == [7, 41, 42]


@pytest.fixture(scope="module")
def spooling_gateway(warehouse: Path, lake_spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(warehouse, lake_spark, tmp_path_factory.mktemp("staging"), memory_rows=1) as running:
        yield running


@pytest.mark.parametrize("rows", [1, 2])
def test_a_duplicate_time_is_shown_in_utc_wherever_the_gateway_runs(
    spooling_gateway: Gateway, far: Lake, rows: int, elsewhere: None
) -> None:
    with AirportClient(spooling_gateway.location, CATALOG) as client:
        new = [TODAY.replace(hour=5)] * rows if rows > 1 else [TODAY, FIRST_DAY.replace(year=1900)]
        batch = pa.record_batch({"k": pa.array([5, 6], pa.int32()), "ts": pa.array(new, INSTANT)})
        words = sql_error(lambda: client.insert(far.schema, "far", batch))[1]
    assert words == f'Duplicate key "ts: {new[0]}" violates unique constraint.'


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
