"""Writes: through the gateway, and the same MERGE by hand in two Spark sessions.

All three run in one JVM, warmed alike, and take turns on tables of their own
that started as copies of one another: `plain` is a session with Spark's and
Delta's default settings, `tuned` one with the settings of the gateway's own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.spark.log_store import FSYNC
from gateway.lake.sql.quoting import table_at
from gateway.ops.lifecycle import Gateway
from gateway.settings import SparkSettings
from tests.airport import AirportClient
from tests.bench.data import SCHEMA, TABLE, Data
from tests.bench.report import Duel, Results, Single
from tests.bench.timing import Timing, spaced, take_turns, timed
from tests.conftest import settings_for
from tests.system.process import CATALOG, Server

_WARM_UPS = 4
_ROUNDS = 9
_LARGE_ROUNDS = 3
_FSYNC_ROUNDS = 31  # a few syncs are little beside a MERGE
_SMALL_ROWS = 1_000
_SCATTERED = 1_000
_BULK_ROWS = 1_000_000
_MEMORY_ROWS = 5_000_000
_BATCH = 2_048  # what the client uploads at a time
_READY_SECONDS = 240
_MB = 1 << 20
_DEFAULTS = {
    "spark.databricks.delta.snapshotPartitions": "50",
    "spark.databricks.delta.merge.materializeSource": "auto",
    "spark.sql.shuffle.partitions": "200",
}
PROPERTIES = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '1000')"
_SMALL = pa.schema([("k", pa.int64()), ("v", pa.string())])


@dataclass
class ByHand:
    """The MERGE that the gateway makes, typed in by somebody who knows how, without the checks around it."""

    session: Any
    path: Path
    next_id: int = 0

    def insert(self, rows: pa.Table) -> float:
        rows = rows.append_column("_rowid", pa.array(range(self.next_id, self.next_id + rows.num_rows), pa.int64()))
        low, self.next_id = self.next_id, self.next_id + rows.num_rows
        names = {name: f"s.{name}" for name in rows.column_names}
        on = f"t._rowid = s._rowid AND t._rowid >= {low}"
        return self._merge(rows, on, lambda merge: merge.whenNotMatchedInsert(values=names))

    def update(self, column: str, values: pa.Array, row_ids: Sequence[int]) -> float:
        rows = pa.table({column: values, "_rowid": pa.array(row_ids, pa.int64())})
        change = {column: f"s.{column}"}
        return self._merge(rows, self._by_id(row_ids), lambda merge: merge.whenMatchedUpdate(set=change))

    def delete(self, row_ids: Sequence[int]) -> float:
        rows = pa.table({"_rowid": pa.array(row_ids, pa.int64())})
        return self._merge(rows, self._by_id(row_ids), lambda merge: merge.whenMatchedDelete())

    @staticmethod
    def _by_id(row_ids: Sequence[int]) -> str:
        return f"t._rowid = s._rowid AND t._rowid IN ({', '.join(map(str, row_ids))})"

    def _merge(self, rows: pa.Table, on: str, clauses: Callable[[Any], Any]) -> float:
        from delta.tables import DeltaTable

        def run() -> None:
            source = self.session.createDataFrame(rows)
            merge = DeltaTable.forPath(self.session, str(self.path)).alias("t").merge(source.alias("s"), on)
            clauses(merge).execute().collect()

        return timed(run)


@dataclass
class ThroughGateway:
    client: AirportClient
    schema: str
    table: str

    def insert(self, rows: pa.Table) -> float:
        batches = rows.to_batches(max_chunksize=_BATCH)
        return timed(lambda: self.client.insert(self.schema, self.table, batches))

    def update(self, column: str, values: pa.Array, row_ids: Sequence[int]) -> float:
        rows = pa.table({column: values, "rowid": pa.array(row_ids, pa.int64())})
        batches = rows.to_batches(max_chunksize=_BATCH)
        return timed(lambda: self.client.update(self.schema, self.table, batches, sets=[column]))

    def delete(self, row_ids: Sequence[int]) -> float:
        return timed(lambda: self.client.delete(self.schema, self.table, row_ids))


Competitor = ThroughGateway | ByHand


def measure_writes(data: Data, folder: Path, results: Results) -> None:
    with running(folder) as (spark, gateway, warehouse):
        root = warehouse / "w"
        with spark.session(Profile.LATENCY) as tuned, spark.session(Profile.THROUGHPUT) as large:
            plain = large.newSession()
            for key, value in _DEFAULTS.items():
                plain.conf.set(key, value)
            _measure_small(root, gateway, tuned, plain, results)
            with spark.session(Profile.LATENCY) as unsynced:
                _measure_fsync(root, tuned, unsynced, results)
            _measure_scattered(data, root, gateway, large, plain, results)
            _measure_bulk(root, gateway, large, results)
    _measure_memory(folder / "memory", results)


def _measure_small(root: Path, gateway: Gateway, tuned: Any, plain: Any, results: Results) -> None:
    for name in ("gateway", "tuned", "plain"):
        tuned.sql(
            f"CREATE TABLE {table_at(str(root / name))} (_rowid BIGINT, k BIGINT, v STRING) USING delta {PROPERTIES}"
        )
        rows = tuned.range(_SMALL_ROWS).selectExpr("id AS _rowid", "id AS k", "concat('v', id) AS v").coalesce(1)
        rows.write.format("delta").mode("append").save(str(root / name))
    with AirportClient(gateway.location, CATALOG) as client:
        competitors: list[Competitor] = [
            ThroughGateway(client, "w", "gateway"),
            ByHand(plain, root / "plain", _SMALL_ROWS),
            ByHand(tuned, root / "tuned", _SMALL_ROWS),
        ]
        row = pa.table({"k": [1], "v": ["x"]}, schema=_SMALL)
        new = pa.array(["changed"])
        kinds: dict[str, Callable[[Competitor, int], float]] = {
            "insert": lambda one, _: one.insert(row),
            "update": lambda one, turn: one.update("v", new, [turn]),
            "delete": lambda one, turn: one.delete([500 + turn]),
        }
        for kind, run in kinds.items():
            _duels(results, f"write.{kind}", f"{kind.upper()} of one row", competitors, run, _ROUNDS)


def _measure_fsync(root: Path, synced: Any, unsynced: Any, results: Results) -> None:
    """What `write.fsync` costs: the same INSERT by hand with and without it, so that nothing else differs."""
    for name in ("synced", "unsynced"):
        columns = "_rowid BIGINT, k BIGINT, v STRING"
        synced.sql(f"CREATE TABLE {table_at(str(root / name))} ({columns}) USING delta {PROPERTIES}")
    unsynced.conf.set(FSYNC, "false")
    try:
        row = pa.table({"k": [1], "v": ["x"]}, schema=_SMALL)
        both = [ByHand(synced, root / "synced"), ByHand(unsynced, root / "unsynced")]
        take_turns(_WARM_UPS, *(lambda _, one=one: one.insert(row) for one in both))
        timings = take_turns(_FSYNC_ROUNDS, *(lambda _, one=one: one.insert(row) for one in both))
    finally:
        unsynced.conf.unset(FSYNC)
    title = f"INSERT of one row by hand, with fsync, p50 / p99 of {_FSYNC_ROUNDS}"
    results.add(Duel("write.fsync", title, "unsynced", *timings))


def _measure_scattered(data: Data, root: Path, gateway: Gateway, tuned: Any, plain: Any, results: Results) -> None:
    """On copies of the large table: single rows and a thousand rows all over it."""
    for name in ("large_gateway", "large_plain", "large_tuned"):
        shutil.copytree(data.large / SCHEMA / TABLE, root / name, copy_function=os.link)
    value = pa.array([1.5] * _SCATTERED, pa.float64())
    with AirportClient(gateway.location, CATALOG) as client:
        competitors: list[Competitor] = [
            ThroughGateway(client, "w", "large_gateway"),
            ByHand(plain, root / "large_plain"),
            ByHand(tuned, root / "large_tuned"),
        ]
        # Other rows each time: those that were updated once lie together in a small file.
        keys = spaced(_SCATTERED * (_WARM_UPS + _LARGE_ROUNDS), data.rows)
        kinds: dict[str, Callable[[Competitor, int], float]] = {
            "one": lambda one, turn: one.update("price", value.slice(0, 1), [keys[turn]]),
            "scattered": lambda one, turn: one.update("price", value, sorted(keys[turn * _SCATTERED :][:_SCATTERED])),
        }
        titles = {"one": "UPDATE of one row of the large table", "scattered": f"UPDATE of {_SCATTERED:,} rows of it"}
        for kind, run in kinds.items():
            _duels(results, f"write.large_{kind}", titles[kind], competitors, run, _LARGE_ROUNDS)


def _measure_bulk(root: Path, gateway: Gateway, tuned: Any, results: Results) -> None:
    rows = _bulk(_BULK_ROWS)
    parquet = root.parent / "bulk.parquet"
    pq.write_table(rows, parquet)
    for name in ("bulk_gateway", "bulk_spark"):
        columns = "_rowid BIGINT, k BIGINT, a DOUBLE, b DOUBLE, c STRING, d STRING, e BIGINT"
        tuned.sql(f"CREATE TABLE {table_at(str(root / name))} ({columns}) USING delta {PROPERTIES}")

    def append(_turn: int) -> float:
        frame = tuned.read.parquet(str(parquet)).selectExpr("CAST(NULL AS BIGINT) AS _rowid", "*")
        return timed(lambda: frame.write.format("delta").mode("append").save(str(root / "bulk_spark")))

    with AirportClient(gateway.location, CATALOG) as client:
        through = ThroughGateway(client, "w", "bulk_gateway")
        over, by_spark = take_turns(_LARGE_ROUNDS, lambda _: through.insert(rows), append)
    results.add(Duel("write.bulk", f"INSERT of {_BULK_ROWS:,} rows", "append", over, by_spark, _BULK_ROWS))


def _measure_memory(folder: Path, results: Results) -> None:
    """The Python process while five million rows are uploaded: they must not pile up in it."""
    warehouse = folder / "warehouse"
    (warehouse / "w").mkdir(parents=True)
    with Server(warehouse, folder, spark=True) as server:
        _wait_for_spark(server)
        with server.attach() as client:
            write_deltalake(warehouse / "w" / "t", _bulk(1).append_column("_rowid", pa.array([0], pa.int64())))
            client.insert("w", "t", _bulk(10).to_batches())
            base = server.resident_bytes()
            with server.watched_memory() as samples:
                client.insert("w", "t", _bulk(_MEMORY_ROWS).to_batches(max_chunksize=_BATCH))
    grown = (max(samples) - base) / _MB
    results.add(Single("write.memory", f"memory growth, INSERT of {_MEMORY_ROWS:,} rows", grown, "MB"))


def _duels(
    results: Results,
    key: str,
    title: str,
    competitors: Sequence[Competitor],
    run: Callable[[Competitor, int], float],
    rounds: int,
) -> None:
    for turn in range(min(_WARM_UPS, rounds)):
        for one in competitors:
            run(one, turn)
    offset = _WARM_UPS
    timings: list[Timing] = take_turns(rounds, *(lambda turn, one=one: run(one, offset + turn) for one in competitors))
    for rival, timing in zip(("plain", "tuned"), timings[1:], strict=True):
        results.add(Duel(key, f"{title}, p50 / p99 of {rounds}", rival, timings[0], timing))


def _bulk(rows: int) -> pa.Table:
    numbers = pa.array(range(rows), pa.int64())
    return pa.table(
        {
            "k": numbers,
            "a": numbers.cast(pa.float64()),
            "b": numbers.cast(pa.float64()),
            "c": numbers.cast(pa.string()),
            "d": pa.array(["a text of some length"] * rows, pa.string()),
            "e": numbers,
        }
    )


@contextmanager
def running(folder: Path) -> Iterator[tuple[Spark, Gateway, Path]]:
    warehouse = folder / "writes"
    (warehouse / "w").mkdir(parents=True)
    conf = {"spark.sql.warehouse.dir": str(folder / "spark-warehouse")}
    spark = Spark(SparkSettings(driver_memory="3g", warm_up=True, conf=conf))
    spark.start()
    spark.wait_ready(_READY_SECONDS)
    gateway = Gateway(settings_for(warehouse, staging={"folder": folder / "staging"}), spark)
    gateway.start()
    try:
        yield spark, gateway, warehouse
    finally:
        gateway.stop()
        spark.stop()


def _wait_for_spark(server: Server) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while server.spark_state() != "ready":
        if time.monotonic() > deadline:
            raise RuntimeError("the gateway's Spark did not become ready")
        time.sleep(0.5)
