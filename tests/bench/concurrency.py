"""Many clients at once: statements per second and waiting times, with group commit and without.

All in one JVM: a gateway as it is, and one whose commits hold one statement
each. Clients are threads with connections of their own; each sends its next
statement when the last one is answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.sql.quoting import table_at
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.bench.data import Data
from tests.bench.report import Results, Single
from tests.bench.timing import Timing, timed
from tests.bench.writes import PROPERTIES, running
from tests.conftest import settings_for
from tests.system.process import CATALOG

_SECONDS = 20.0
_WARM_UP_STATEMENTS = 8
_TABLES = 8
_WRITERS = 16
_ROWS_PER_CLIENT = 64
_LOOKUPS = 40
_ROW = pa.table({"k": [1], "v": ["x"]}, schema=pa.schema([("k", pa.int64()), ("v", pa.string())]))

Statement = Callable[[AirportClient, int, int], object]  # client, its number, how many it has sent


def measure_concurrency(_data: Data, folder: Path, results: Results) -> None:
    with running(folder) as (spark, gateway, warehouse):
        with spark.session(Profile.LATENCY) as session:
            for number in range(_TABLES):
                place = table_at(str(warehouse / "w" / f"t{number}"))
                session.sql(f"CREATE TABLE {place} (_rowid BIGINT, k BIGINT, v STRING) USING delta {PROPERTIES}")
                rows = session.range(32 * _ROWS_PER_CLIENT).selectExpr("id AS _rowid", "id AS k", "'old' AS v")
                rows.coalesce(1).write.format("delta").mode("append").save(str(warehouse / "w" / f"t{number}"))
        _warm_up(gateway)
        _measure_inserts(gateway, spark, warehouse, results)
        _measure_updates(gateway, spark, warehouse, results)
        _measure_reads(gateway, results)


def _insert(table: int) -> Statement:
    return lambda client, _number, _sent: client.insert("w", f"t{table}", _ROW.to_batches())


def _insert_anywhere(client: AirportClient, number: int, _sent: int) -> object:
    return client.insert("w", f"t{number % _TABLES}", _ROW.to_batches())


def _update(client: AirportClient, number: int, sent: int) -> object:
    """Rows of its own, so that no two clients ever mean the same one."""
    row_id = number * _ROWS_PER_CLIENT + sent % _ROWS_PER_CLIENT
    rows = pa.table({"v": [str(sent)], "rowid": pa.array([row_id], pa.int64())})
    return client.update("w", "t0", rows.to_batches(), sets=["v"])


def _warm_up(gateway: Gateway) -> None:
    with AirportClient(gateway.location, CATALOG) as client:
        for turn in range(_WARM_UP_STATEMENTS):
            _insert(turn % _TABLES)(client, 0, turn)
            _update(client, 0, turn)


def _measure_inserts(gateway: Gateway, spark: Spark, warehouse: Path, results: Results) -> None:
    alone = _drive(gateway, 1, _insert(0))
    _tell(results, "writers.insert_1", "INSERT of one row, 1 client", alone)
    for clients in (8, 32):
        many = _drive(gateway, clients, _insert(0))
        _tell(results, f"writers.insert_{clients}", f"INSERT of one row, {clients} clients, one table", many, alone)
    spread = _drive(gateway, 32, _insert_anywhere)
    _tell(results, "writers.insert_spread", f"INSERT of one row, 32 clients, {_TABLES} tables", spread, alone)
    with _ungrouped(spark, warehouse) as other:
        single = _drive(other, 32, _insert(1))
    _tell(results, "writers.insert_ungrouped", "the same, 32 clients, one table, one by one", single, alone)
    ratio = many.per_second / single.per_second
    results.add(Single("writers.insert_grouping", "INSERT, 32 clients: grouped to one by one", ratio, "x"))


def _measure_updates(gateway: Gateway, spark: Spark, warehouse: Path, results: Results) -> None:
    alone = _drive(gateway, 1, _update)
    many = _drive(gateway, _WRITERS, _update)
    _tell(results, "writers.update_1", "UPDATE of one row, 1 client", alone)
    _tell(results, "writers.update", f"UPDATE of one row each, {_WRITERS} clients", many, alone)
    with _ungrouped(spark, warehouse) as other:
        single = _drive(other, _WRITERS, _update)
    _tell(results, "writers.update_ungrouped", f"the same, {_WRITERS} clients, one by one", single, alone)


def _measure_reads(gateway: Gateway, results: Results) -> None:
    with AirportClient(gateway.location, CATALOG) as reader:
        key = reader.table("w", "t1").ref("k")

        def look_up(number: int) -> float:
            return timed(lambda: reader.scan("w", "t1", filters=[key.eq(number)]))

        for number in range(_LOOKUPS):
            look_up(number)
        idle = Timing(tuple(look_up(number) for number in range(_LOOKUPS)))
        with _writing(gateway, _WRITERS, _insert(1)):
            busy = Timing(tuple(look_up(number) for number in range(_LOOKUPS)))
    note = f"{idle.p50 * 1000:.0f} ms idle, {busy.p50 * 1000:.0f} ms busy"
    title = f"point lookup, p50 while {_WRITERS} clients write, to idle"
    results.add(Single("writers.lookup", title, busy.p50 / idle.p50, "x", note))


class _Driven:
    """What clients saw in a while."""

    def __init__(self, seconds: float, latencies: Sequence[float], failures: int) -> None:
        self.per_second = len(latencies) / seconds
        self.latency = Timing(tuple(latencies))
        self.failures = failures


def _drive(gateway: Gateway, clients: int, statement: Statement) -> _Driven:
    with _writing(gateway, clients, statement) as drivers:
        started = time.monotonic()
        time.sleep(_SECONDS)
    return _Driven(
        time.monotonic() - started,
        [latency for driver in drivers for latency in driver.latencies],
        sum(driver.failures for driver in drivers),
    )


class _Driver(threading.Thread):
    def __init__(self, client: AirportClient, number: int, statement: Statement, stop: threading.Event) -> None:
        super().__init__(name=f"client-{number}")
        self._client, self._number, self._statement, self._stop_asked = client, number, statement, stop
        self.latencies: list[float] = []
        self.failures = 0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                self.latencies.append(timed(self._send))
            except pa.ArrowException:
                self.failures += 1

    def _send(self) -> None:
        self._statement(self._client, self._number, len(self.latencies))


@contextmanager
def _writing(gateway: Gateway, clients: int, statement: Statement) -> Iterator[list[_Driver]]:
    stop = threading.Event()
    connections = [AirportClient(gateway.location, CATALOG) for _ in range(clients)]
    drivers = [_Driver(each, number, statement, stop) for number, each in enumerate(connections)]
    for driver in drivers:
        driver.start()
    try:
        yield drivers
    finally:
        stop.set()
        for driver in drivers:
            driver.join()
        for connection in connections:
            connection.close()


@contextmanager
def _ungrouped(spark: Spark, warehouse: Path) -> Iterator[Gateway]:
    settings = settings_for(
        warehouse, staging={"folder": warehouse.parent / "staging-alone"}, write={"group_statements": 1}
    )
    gateway = Gateway(settings, spark)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


def _tell(results: Results, key: str, title: str, driven: _Driven, alone: _Driven | None = None) -> None:
    p50, p99 = (f"{value:.2f}" for value in (driven.latency.p50, driven.latency.p99))
    note = f"p50 {p50} s, p99 {p99} s, {driven.failures} failed"
    results.add(Single(f"{key}.rate", title, driven.per_second, "statements/s", note))
    if alone is not None:
        results.add(
            Single(f"{key}.speed", f"{title}: rate, one client being 1", driven.per_second / alone.per_second, "x")
        )
        results.add(
            Single(f"{key}.p99", f"{title}: p99, one client being 1", driven.latency.p99 / alone.latency.p99, "x")
        )
    results.add(Single(f"{key}.failures", f"{title}: refused", driven.failures, "statements"))
