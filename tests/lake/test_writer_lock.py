"""The writer's lock in the one JVM of this run; this process, which is not that JVM, plays the other gateway."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import flight

from gateway.errors import UnavailableError
from gateway.lake.commits.writer_lock import LOCK_FILE, UNGUARDED, WriterLock, WriterLocks
from gateway.lake.spark.engine import Spark, SparkState
from gateway.lake.tables.storage import Folder
from gateway.ops.lifecycle import Gateway
from gateway.settings import SparkSettings
from tests.airport import AirportClient

TAKEN = "^another gateway writes this warehouse; only reads work"


@contextmanager
def held_by_another(root: Path) -> Iterator[None]:
    path = root / LOCK_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def test_a_lock_that_another_process_holds_is_refused_until_it_is_free(lake_spark: Spark, tmp_path: Path) -> None:
    lock = WriterLock(lake_spark, tmp_path)
    with held_by_another(tmp_path):
        for _ in range(2):
            with pytest.raises(UnavailableError, match=TAKEN):
                lock.check()
        assert (lock.is_held, lock.reason) == (False, "another gateway writes this warehouse")
    lock.check()
    assert (lock.is_held, lock.reason) == (True, "")
    with pytest.raises(BlockingIOError), held_by_another(tmp_path):
        pass
    assert (tmp_path / LOCK_FILE).read_text().startswith("held by the JVM with pid ")


def test_catalogs_and_gateways_of_one_jvm_share_the_lock_of_a_root(lake_spark: Spark, tmp_path: Path) -> None:
    roots = {"one": Folder.open(str(tmp_path)), "two": Folder.open(f"{tmp_path}/x/.."), "mapped": None}
    first, second = WriterLocks(lake_spark, roots), WriterLocks(lake_spark, roots)
    assert first.of("one") is first.of("two")
    assert first.of("mapped") is UNGUARDED
    for locks in (first, second):
        locks.of("two").check()
        assert locks.of("one").is_held
    with pytest.raises(BlockingIOError), held_by_another(tmp_path):
        pass


def test_a_lock_whose_file_was_removed_guards_nothing(lake_spark: Spark, tmp_path: Path) -> None:
    lock = WriterLock(lake_spark, tmp_path)
    lock.check()
    (tmp_path / LOCK_FILE).unlink()
    with held_by_another(tmp_path):
        with pytest.raises(UnavailableError, match=TAKEN):
            lock.check()
        assert not lock.is_held
    lock.check()
    with pytest.raises(BlockingIOError), held_by_another(tmp_path):
        pass


def test_a_lock_file_that_cannot_be_used_lets_nobody_write(lake_spark: Spark, tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir(parents=True)
    lock = WriterLock(lake_spark, tmp_path)
    with pytest.raises(UnavailableError, match=r"^the writer's lock file of this warehouse cannot be used"):
        lock.check()


def test_a_statement_may_begin_while_spark_starts_but_not_commit(tmp_path: Path) -> None:
    lock = WriterLock(Spark(SparkSettings()), tmp_path)
    lock.refuse_early()
    with pytest.raises(UnavailableError, match="Spark is still starting"):
        lock.check()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_gateway_without_the_lock_serves_reads_refuses_uploads_and_takes_over(
    start_gateway: Callable[..., Gateway], lake_spark: Spark, tmp_path: Path
) -> None:
    row = pa.table({"_rowid": pa.array([0], pa.int64()), "k": pa.array([0], pa.int64())})
    write_deltalake(tmp_path / "demo" / "n", row)
    new = pa.record_batch({"k": pa.array([1], pa.int64())})
    with held_by_another(tmp_path):
        gateway = start_gateway(tmp_path)
        with AirportClient(gateway.location, "lake") as client:
            with pytest.raises(flight.FlightUnavailableError, match="another gateway writes this warehouse"):
                client.insert("demo", "n", new)
            assert client.scan("demo", "n").num_rows == 1
        assert lake_spark.state is SparkState.READY
        ready, details = gateway.readiness()
        assert (ready, details["writes"]) == (True, "read-only: another gateway writes this warehouse")
        assert details["read_only_catalogs"] == ["lake"]
    with AirportClient(gateway.location, "lake") as client:
        assert client.insert("demo", "n", new).total_changed == 1
    assert gateway.readiness()[1]["writes"] == "ready"
