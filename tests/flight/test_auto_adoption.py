"""`rowids.adopt: auto`: rows that others wrote get their ids when a statement meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG, settings_for
from tests.flight.writing import NUMBERS, batch, numbers, refused, rows_of, version_of

RETRY = "had rows without an id of their own; they have one now, run the statement again"


@pytest.fixture(scope="module")
def adopting_gateway(warehouse: Path, lake_spark: Spark) -> Iterator[Gateway]:
    running = Gateway(settings_for(warehouse, rowids={"adopt": "auto"}), lake_spark)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def adopting(adopting_gateway: Gateway) -> Iterator[AirportClient]:
    with AirportClient(adopting_gateway.location, CATALOG) as attached:
        yield attached


def append(lake: Lake, rows: list[tuple[int | None, int, str]]) -> None:
    """As a foreign writer does."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    write_deltalake(str(lake.path("n")), pa.table(columns, schema=NUMBERS), mode="append")


def update_where_k(
    client: AirportClient, lake: Lake, k: int, text: str, meet: Callable[[], object] = lambda: None
) -> int:
    """UPDATE n SET v = text WHERE k = k; `meet` is called for each batch that was read, before any is sent."""

    def change(rows: pa.RecordBatch) -> pa.RecordBatch:
        meet()
        kept = rows.filter(pc.equal(rows["k"], k))
        return pa.record_batch({"v": pa.array([text] * kept.num_rows, pa.string()), "rowid": kept["rowid"]})

    return client.update_where(lake.schema, "n", change, sets=["v"], reads=["k"], filters=[]).total_changed


def test_an_update_that_meets_a_row_without_id_works_when_it_is_run_again(adopting: AirportClient, lake: Lake) -> None:
    numbers(lake)
    append(lake, [(None, 50, "theirs"), (None, 51, "theirs")])
    assert refused(lambda: update_where_k(adopting, lake, 50, "mine")).endswith(RETRY)
    assert update_where_k(adopting, lake, 50, "mine") == 1
    assert rows_of(adopting, lake)[4:] == [(50, "mine", 4), (51, "theirs", 5)]


def test_a_delete_that_finds_a_duplicate_id_works_when_it_is_run_again(adopting: AirportClient, lake: Lake) -> None:
    numbers(lake)
    append(lake, [(2, 50, "copied")])
    assert refused(lambda: adopting.delete(lake.schema, "n", [2])).endswith(RETRY)
    assert adopting.delete(lake.schema, "n", [2]).total_changed == 1
    assert rows_of(adopting, lake) == [(0, "v0", 0), (1, "v1", 1), (3, "v3", 3), (50, "copied", 4)]


def test_statements_that_meet_the_same_rows_have_them_numbered_once(adopting_gateway: Gateway, lake: Lake) -> None:
    numbers(lake)
    append(lake, [(None, 50 + k, "theirs") for k in range(3)])
    version = version_of(lake)

    together = Barrier(3, timeout=60)

    def attempt(k: int) -> str:
        with AirportClient(adopting_gateway.location, CATALOG) as client:
            return refused(lambda: update_where_k(client, lake, k, "mine", cache(together.wait)))

    with ThreadPoolExecutor(3) as pool:
        assert all(text.endswith(RETRY) for text in pool.map(attempt, [50, 51, 52]))
    assert version_of(lake) == version + 1
    rowids = DeltaTable(lake.path("n")).to_pyarrow_table(columns=["_rowid"])["_rowid"]
    assert sorted(rowids.to_pylist()) == list(range(7))


def test_an_id_that_is_null_for_no_reason_is_refused_and_nothing_is_committed(
    adopting: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    found = adopting.look_up_for_change(lake.schema, "n")
    rows = batch(rowid=[None])
    words = refused(
        lambda: adopting.exchange(
            "delete", found, rows.schema, [rows], transaction_id=adopting.transaction_id(), returning=False
        )
    )
    assert words.startswith("rowid must not be null")
    assert version_of(lake) == 0


def test_without_it_rows_of_others_are_left_alone(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    append(lake, [(None, 50, "theirs")])
    assert "`deltaport adopt` gives it one" in refused(lambda: update_where_k(client, lake, 50, "mine"))
    assert version_of(lake) == 1
