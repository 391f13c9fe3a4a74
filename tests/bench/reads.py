"""Scans, point lookups, the files they open and the memory they take.

The gateway's own Spark is off while these run: reads do not use it, and a
JVM warming itself would be measured along. Where Spark is the rival, it runs in
this process and takes turns with the gateway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from gateway.lake.spark.engine import Profile
from tests.bench.data import CUSTOMERS, LOADED_FILES, PLAIN, SCHEMA, VECTORS, Data
from tests.bench.engines import (
    COUNT,
    EVERYTHING,
    TWO_COLUMNS,
    BySpark,
    InProcess,
    OverFlight,
    Query,
    by_key,
    one_percent,
    spark_session,
)
from tests.bench.report import Duel, Results, Single
from tests.bench.timing import Timing, spaced, take_turns
from tests.system.process import Server

_ROUNDS = 9
_SPARK_ROUNDS = 3
_LOOKUPS = 200
_SPARK_LOOKUPS = 10
_STATEMENTS = 50
_TOUCHED_LOOKUPS = 8
_SETTLE_SECONDS = 3
_MEMORY_SCANS = 3
_MB = 1 << 20


def measure_scans(data: Data, folder: Path, results: Results) -> None:
    inside = InProcess(data.table)
    with _gateway(data, folder / "scans") as (server, flight):
        for key, title, query, rows in _scans(data):
            for engine in (flight, inside):
                engine.seconds(query, rows)
            cpu = server.cpu_seconds()
            over, within = take_turns(
                _ROUNDS,
                lambda _, query=query, rows=rows: flight.seconds(query, rows),
                lambda _, query=query, rows=rows: inside.seconds(query, rows),
            )
            used = (server.cpu_seconds() - cpu) / _ROUNDS
            results.add(Duel(f"scan.{key}", title, "deltalake", over, within, data.rows))
            results.add(Single(f"scan.{key}.cpu", f"{title}: processor time", used, "s"))


def measure_lookups(data: Data, folder: Path, results: Results) -> None:
    inside = InProcess(data.table)
    keys = spaced(_LOOKUPS, data.rows)
    with _gateway(data, folder / "lookups") as (server, flight):
        for key in spaced(10, data.rows):
            flight.seconds(by_key(key), 1)
            inside.seconds(by_key(key), 1)
        over, within = take_turns(
            _LOOKUPS,
            lambda turn: flight.seconds(by_key(keys[turn]), 1),
            lambda turn: inside.seconds(by_key(keys[turn]), 1),
        )
        results.add(Duel("lookup", f"point lookup, p50 / p99 of {_LOOKUPS}", "deltalake", over, within))
        statements = Timing(tuple(flight.statement_seconds(by_key(key), 1) for key in keys[:_STATEMENTS]))
        results.add_latency("lookup.statement", "point lookup, whole statement", statements)
        _count_files(data, server, flight, keys, results)


def measure_vectors(data: Data, folder: Path, results: Results) -> None:
    """Tables as a bulk load leaves them, without deletion vectors and with one on every file."""
    keys = [key for key in spaced(_LOOKUPS, data.rows) if key % 2]  # the deleted ones are even
    reads: list[tuple[str, str, Callable[[int], Query], int, int, int]] = [
        ("full", "full scan", lambda _: EVERYTHING, _ROUNDS, data.rows, LOADED_FILES),
        ("two_columns", "scan of 2 columns", lambda _: TWO_COLUMNS, _ROUNDS, data.rows, LOADED_FILES),
        ("count", "count(*)", lambda _: COUNT, _ROUNDS, data.rows, LOADED_FILES),
        ("lookup", "point lookup", lambda turn: by_key(keys[turn]), len(keys), 1, 0),
    ]
    inside = InProcess(data.loaded / SCHEMA / PLAIN)
    with Server(data.loaded, folder / "vectors") as server, server.attach() as client:
        plain, vectors = OverFlight(client, PLAIN), OverFlight(client, VECTORS)
        for key, title, query, rounds, rows, deleted in reads:
            plain.seconds(query(0), rows)
            vectors.seconds(query(0), rows - deleted)
            marked, clean, within = take_turns(
                rounds,
                lambda turn, query=query, gone=deleted, rows=rows: vectors.seconds(query(turn), rows - gone),
                lambda turn, query=query, rows=rows: plain.seconds(query(turn), rows),
                lambda turn, query=query, rows=rows: inside.seconds(query(turn), rows),
            )
            results.add(Duel(f"vectors.{key}", f"{title}, deletion vectors on all files", "clean", marked, clean))
            results.add(Duel(f"loaded.{key}", f"{title} after a bulk load", "deltalake", clean, within))


def _count_files(data: Data, server: Server, flight: OverFlight, keys: Sequence[int], results: Results) -> None:
    """How many files a lookup opens: by the gateway's own metrics, then without asking it."""
    names = ("deltaport_scan_files_total", "deltaport_scan_files_pruned_total", "deltaport_scans_total")
    before, read = [server.metric(name) for name in names], server.read_bytes()
    for key in keys:
        flight.seconds(by_key(key), 1)
    read = server.read_bytes() - read
    total, pruned, scans = (server.metric(name) - old for name, old in zip(names, before, strict=True))
    files = data.files()
    average = sum(path.stat().st_size for path in files) / len(files)
    results.add(
        Single(
            "lookup.files_opened",
            "data files a lookup opens, by the metrics",
            (total - pruned) / scans,
            "files",
            f"of {total / scans:.0f}",
        ),
        Single(
            "lookup.kilobytes_read",
            "bytes a lookup reads, log included",
            read / len(keys) / 1024,
            "KB",
            f"a data file has {average / 1024:,.0f} KB",
        ),
    )
    touched = _most_files_touched(files, flight, keys[:_TOUCHED_LOOKUPS], data.rows)
    if touched is not None:
        note = f"of {len(files)}, the most of {_TOUCHED_LOOKUPS} lookups"
        results.add(
            Single("lookup.files_touched", "data files a lookup reads, by access times", touched, "files", note)
        )


def _most_files_touched(files: list[Path], flight: OverFlight, keys: Sequence[int], rows: int) -> int | None:
    """By access times; None on a file system that does not keep them, which a full scan shows."""
    if len(list(_touched(files, lambda: flight.seconds(EVERYTHING, rows)))) < len(files):
        return None
    return max(len(list(_touched(files, lambda key=key: flight.seconds(by_key(key), 1)))) for key in keys)


def _touched(files: list[Path], work: Callable[[], object]) -> Iterator[Path]:
    # Set behind the modification time, an access time moves at the next read even on `relatime` mounts.
    for path in files:
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    work()
    yield from (path for path in files if path.stat().st_atime_ns)


def measure_memory(data: Data, folder: Path, results: Results) -> None:
    """Resident memory while the large table is read, over the idle base after one scan."""
    with _gateway(data, folder / "memory") as (server, flight):
        fresh = server.resident_bytes()
        flight.seconds(EVERYTHING, data.rows)
        time.sleep(_SETTLE_SECONDS)
        base = server.resident_bytes()
        peaks = []
        for _ in range(_MEMORY_SCANS):
            with server.watched_memory() as samples:
                flight.seconds(EVERYTHING, data.rows)
            peaks.append(max(samples))
        time.sleep(_SETTLE_SECONDS)
        slow_base = server.resident_bytes()
        with server.watched_memory() as samples:
            _read_slowly(flight.batches(EVERYTHING), data.rows)
        slow_peak = max(samples)
    results.add(
        Single("memory.base", "resident memory, idle after one scan", base / _MB, "MB", f"fresh {fresh / _MB:.0f} MB"),
        Single(
            "memory.growth",
            "memory growth during a full scan",
            (max(peaks) - base) / _MB,
            "MB",
            f"the most of {_MEMORY_SCANS} scans; peak {max(peaks) / _MB:.0f} MB",
        ),
        Single(
            "memory.growth_slow",
            "memory growth with a slow reader",
            (slow_peak - min(base, slow_base)) / _MB,
            "MB",
            f"peak {slow_peak / _MB:.0f} MB",
        ),
    )


def _read_slowly(batches: Iterator[pa.RecordBatch], rows: int) -> None:
    """Read a tenth and pause, then a third in small sips, then pause and take the rest."""
    seen, paused = 0, 0
    for batch in batches:
        seen += batch.num_rows
        if seen > rows * (0.1, 0.5, 2)[paused]:
            paused += 1
            time.sleep(5)
        elif paused == 1:
            time.sleep(0.1)
    if seen != rows:
        raise RuntimeError(f"{seen:,} rows came where {rows:,} were expected")


def measure_spark(data: Data, folder: Path, results: Results) -> None:
    """The same queries by Spark; each takes turns with the gateway, so the gateway is timed anew."""
    keys = spaced(_SPARK_LOOKUPS, data.rows)
    with _gateway(data, folder / "spark") as (_, flight), spark_session(folder, Profile.SCAN) as session:
        rival = BySpark(session, data.table)
        for key, title, query, rows in _scans(data):
            rival.seconds(query, rows)
            over, by_spark = take_turns(
                _SPARK_ROUNDS,
                lambda _, query=query, rows=rows: flight.seconds(query, rows),
                lambda _, query=query, rows=rows: rival.seconds(query, rows),
            )
            results.add(Duel(f"scan.{key}", title, "spark", over, by_spark, data.rows))
        for _ in range(3):
            rival.seconds(by_key(keys[0]), 1)
        over, by_spark = take_turns(
            _SPARK_LOOKUPS,
            lambda turn: flight.seconds(by_key(keys[turn]), 1),
            lambda turn: rival.seconds(by_key(keys[turn]), 1),
        )
        results.add(Duel("lookup", f"point lookup, p50 / p99 of {_SPARK_LOOKUPS}", "spark", over, by_spark))


def _scans(data: Data) -> list[tuple[str, str, Query, int]]:
    """Key, title, query and the rows it gives; speeds are told in rows of the table, whatever a filter leaves."""
    filtered = one_percent(CUSTOMERS)
    return [
        ("full", "full scan, 7 columns", EVERYTHING, data.rows),
        ("two_columns", "scan of 2 columns", TWO_COLUMNS, data.rows),
        ("filtered", "scan with a filter, keeps 1 %", filtered, InProcess(data.table).count(filtered)),
    ]


@contextmanager
def _gateway(data: Data, folder: Path) -> Iterator[tuple[Server, OverFlight]]:
    with Server(data.large, folder) as server, server.attach() as client:
        yield server, OverFlight(client)
