"""Streams: bounded batches, an end whoever closes them, and trouble under a running scan."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.catalog.capabilities import BatchStream, ScanRequest
from gateway.errors import CancelledError, GatewayError, InternalError
from gateway.lake.delta_table import DeltaTable
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.tables.snapshots import BATCH_ROWS
from gateway.wire.tickets import Slice
from tests.builders import Lake
from tests.lake.reading import ROUTES, open_table, read, read_by, wire_bytes

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def big(spark: Any, warehouse: Path) -> Lake:
    """A table of many files, so that a scan has many batches and Spark many partitions."""
    lake = Lake(spark, warehouse, __name__)
    lake.numbers("many", 60_000, files=12)
    return lake


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rows of a megabyte of text each, among sixty short ones."""
    path = tmp_path_factory.mktemp("wide") / "t"
    texts = ["x" * MEGABYTE + str(row) if row % 2 else str(row) for row in range(120)]
    write_deltalake(path, pa.table({"k": range(120), "v": texts}))
    return path


@pytest.mark.parametrize("route", ROUTES)
def test_wide_rows_come_in_batches_of_about_the_wanted_bytes(wide: Path, lake_spark: Spark, route: str) -> None:
    result = read_by(route, wide, lake_spark, batch_bytes=4 * MEGABYTE)
    # Twice the wanted bytes are let pass, and so is a text that travels twice.
    assert max(wire_bytes(batch) for batch in result.batches) < 17 * MEGABYTE
    assert sum(wire_bytes(batch) for batch in result.batches) < 130 * MEGABYTE
    assert sorted(len(text) > MEGABYTE for text in result.column("v")) == [False] * 60 + [True] * 60
    assert result.column("k") == list(range(120))


@pytest.mark.parametrize("route", ROUTES)
def test_narrow_rows_come_in_batches_of_at_most_the_wanted_rows(big: Lake, lake_spark: Spark, route: str) -> None:
    result = read_by(route, big.path("many"), lake_spark, batch_rows=2048)
    assert max(batch.num_rows for batch in result.batches) <= 2048
    assert result.column("k") == list(range(60_000))


def test_one_row_of_many_takes_few_bytes_on_the_wire(tmp_path: Path) -> None:
    """The native reader's texts are views of whole pages, all of which would travel."""
    texts = [f"a text that is too long to be inside its view {row}" for row in range(20_000)]
    write_deltalake(tmp_path / "t", pa.table({"k": range(20_000), "v": texts}))
    result = read(open_table(tmp_path / "t").current(), slice=Slice("k", 777, 778))
    assert result.column("v") == [texts[777]]
    assert sum(wire_bytes(batch) for batch in result.batches) < 100_000


def test_progress_never_goes_back_and_stays_within_its_bounds(big: Lake) -> None:
    snapshot = open_table(big.path("many"), batch_rows=2048, piece_bytes=10_000).current()
    stream = snapshot.open(ScanRequest(snapshot.shape, frozenset(["k"])))
    seen = [chunk.progress for chunk in stream]
    stream.close()
    assert all(0 <= before <= after <= 1 for before, after in itertools.pairwise(seen))


def open_stream(table: DeltaTable) -> BatchStream:
    snapshot = table.current()
    return snapshot.open(ScanRequest(snapshot.shape, frozenset(snapshot.shape.names)))


@pytest.mark.parametrize("route", ROUTES)
def test_closing_from_another_thread_ends_a_running_scan(big: Lake, lake_spark: Spark, route: str) -> None:
    stream = open_stream(open_table(big.path("many"), lake_spark, engine=route, batch_rows=256, piece_bytes=10_000))
    chunks = iter(stream)
    next(chunks)
    closer = threading.Thread(target=stream.close)
    closer.start()
    closer.join()
    with pytest.raises(CancelledError):
        list(chunks)
    stream.close()


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_closed_before_it_is_read_gives_nothing(big: Lake, lake_spark: Spark, route: str) -> None:
    stream = open_stream(open_table(big.path("many"), lake_spark, engine=route))
    stream.close()
    with pytest.raises(CancelledError):
        next(iter(stream))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def active_jobs(lake_spark: Spark) -> list[int]:
    with lake_spark.session(Profile.SCAN) as session:
        return list(session.sparkContext.statusTracker().getActiveJobsIds())


@pytest.fixture(scope="module")
def slow(big: Lake) -> Path:
    """Many partitions, of which a cancelled scan must leave most unread."""
    return big.path(big.numbers("slow", 20_000, files=40))


def test_jobs_of_a_scan_that_is_closed_or_left_are_cancelled(slow: Path, lake_spark: Spark) -> None:
    table = open_table(slow, lake_spark, engine="spark", batch_rows=10)
    closed = open_stream(table)
    chunks = iter(closed)
    next(chunks)
    closed.close()
    with pytest.raises(CancelledError):
        list(chunks)
    left = open_stream(table)
    next(iter(left))
    left.close()
    wait_until(lambda: not active_jobs(lake_spark), "jobs of cancelled scans are still running")


def test_a_scan_cancelled_by_spark_from_outside_is_an_error_not_an_end(slow: Path, lake_spark: Spark) -> None:
    stream = open_stream(open_table(slow, lake_spark, engine="spark", batch_rows=10))

    def read_while_cancelling() -> None:
        for _ in stream:
            with lake_spark.session(Profile.SCAN) as session:
                session.sparkContext.cancelAllJobs()

    with pytest.raises(InternalError):
        read_while_cancelling()
    stream.close()


def test_two_scans_through_spark_go_on_side_by_side_when_one_is_closed(slow: Path, lake_spark: Spark) -> None:
    table = open_table(slow, lake_spark, engine="spark", batch_rows=500)
    first, second = open_stream(table), open_stream(table)
    one, other = iter(first), iter(second)
    rows = next(other).batch.num_rows
    next(one)
    first.close()
    rows += sum(chunk.batch.num_rows for chunk in other)
    second.close()
    assert rows == 20_000


def test_other_threads_go_on_while_a_direct_query_works(big: Lake) -> None:
    """A reader that held the GIL would let nothing else happen until its one batch is there."""
    snapshot = open_table(big.path("many")).current().log
    busy, counted = threading.Event(), 0
    done: list[Any] = []

    def work() -> None:
        busy.set()
        query = "SELECT count(*) FROM t AS a JOIN t AS b ON a.k % 300 = b.k % 300 WHERE (a.k * b.k) % 7 <> 1"
        done.append(snapshot.query(query, BATCH_ROWS[0]).read_all())

    worker = threading.Thread(target=work)
    worker.start()
    busy.wait()
    while worker.is_alive():
        counted += 1
    worker.join()
    assert done
    assert counted > 10_000


def test_a_missing_data_file_is_told_and_the_next_scan_works(tmp_path: Path, lake_spark: Spark) -> None:
    path = tmp_path / "t"
    for value in range(3):
        write_deltalake(path, pa.table({"k": [value]}), mode="append")
    table = open_table(path)
    snapshot = table.current()
    gone = next(iter(sorted(path.glob("*.parquet"))))
    content = gone.read_bytes()
    gone.unlink()
    for engine in ROUTES:
        with pytest.raises(InternalError, match=r"table 's\.t'") as caught:
            read(open_table(path, lake_spark, engine=engine).current())
        assert str(tmp_path) not in caught.value.message
        assert len(caught.value.message) < 120
    gone.write_bytes(content)
    assert read(snapshot).column("k") == [0, 1, 2]


def test_a_damaged_data_file_is_told_and_the_process_lives(tmp_path: Path, lake_spark: Spark) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"k": range(1000), "v": [f"text {row}" for row in range(1000)]}))
    file = next(iter(path.glob("*.parquet")))
    content = bytearray(file.read_bytes())
    for damage in (content[: len(content) // 2], b"", content[:4] + bytes(len(content) - 12) + content[-8:]):
        file.write_bytes(damage)
        for engine in ROUTES:
            with pytest.raises(InternalError, match=r"table 's\.t'"):
                read(open_table(path, lake_spark, engine=engine).current())


@pytest.mark.parametrize("route", ROUTES)
def test_a_table_dropped_under_a_running_scan_gives_rows_or_a_clear_error(
    lake: Lake, lake_spark: Spark, route: str
) -> None:
    lake.numbers("t", 4000, files=8)
    table = open_table(lake.path("t"), lake_spark, engine=route, batch_rows=32, piece_bytes=1)
    stream = open_stream(table)
    chunks = iter(stream)
    rows = next(chunks).batch.num_rows
    shutil.rmtree(lake.path("t"))
    try:
        rows += sum(chunk.batch.num_rows for chunk in chunks)
        assert rows == 4000
    except GatewayError as error:
        assert str(lake.warehouse) not in error.message
    finally:
        stream.close()
    with pytest.raises(GatewayError):
        table.current()


def test_a_table_made_anew_by_others_is_read_through_spark_as_it_is_now(tmp_path: Path, lake_spark: Spark) -> None:
    """Spark keeps what it knows of a path for an hour."""
    path = tmp_path / "t"
    table = open_table(path, lake_spark, engine="spark")
    for life in (1, 2):
        for value in range(2):
            write_deltalake(path, pa.table({"k": [life * 100 + value]}), mode="append")
        for _ in range(2):
            assert read(table.current()).column("k") == [life * 100, life * 100 + 1]
            assert read(table.at(0)).column("k") == [life * 100]
        shutil.rmtree(path)
