"""Run as a program: one read in a process of its own, and what memory it took, as a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from gateway.catalog.capabilities import ScanRequest
from gateway.lake.delta_table import DeltaSnapshot
from gateway.lake.reading.lookups import rows_by_id
from gateway.lake.spark.engine import Spark
from gateway.settings import LogSettings, SparkSettings
from gateway.telemetry.logging import configure_logging
from tests.lake.reading import NO_SPARK, open_table

HEAP = "1g"


def main(route: str, work: str, path: str, *arguments: str) -> None:
    configure_logging(LogSettings(format="json", level="error"))
    spark = NO_SPARK
    if route == "spark":
        spark = Spark(SparkSettings(driver_memory=HEAP, warm_up=False))
        spark.start()
        spark.wait_ready(240)
    snapshot = open_table(Path(path), spark, engine=route).current()
    before = peak_bytes()
    result = {"scan": scan, "look_up": look_up}[work](snapshot, *arguments)
    sys.stdout.write(json.dumps({**result, "grew": peak_bytes() - before}) + "\n")
    if route == "spark":
        spark.stop()


def scan(snapshot: DeltaSnapshot, *columns: str) -> dict[str, int]:
    rows = widest = 0
    for column in columns:
        stream = snapshot.open(ScanRequest(snapshot.shape, frozenset([column])))
        for chunk in stream:
            rows += chunk.batch.num_rows
            widest = max(widest, chunk.batch.nbytes)
        stream.close()
    return {"rows": rows, "widest": widest}


def look_up(snapshot: DeltaSnapshot, every: str) -> dict[str, int]:
    """Rows that lie all over the table."""
    assert snapshot.size.rows is not None
    ids = pa.array(range(0, snapshot.size.rows, int(every)), pa.int64())
    found = rows_by_id(snapshot.log, ids, snapshot.log.schema.columns)
    return {"rows": found.num_rows, "widest": found.nbytes}


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
