"""Every metric object, in one place.

One registry per process; `/metrics` serves it. Names start with `deltaport_`,
durations are seconds, sizes bytes, counters end in `_total`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

_DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

CALLS = Counter(
    "deltaport_calls_total", "Calls by method, action and outcome", ["method", "action", "outcome"], registry=REGISTRY
)
CALL_SECONDS = Histogram(
    "deltaport_call_seconds",
    "Duration of calls, streams to their end",
    ["method", "action"],
    buckets=_DURATION_BUCKETS,
    registry=REGISTRY,
)
SCANS = Counter(
    "deltaport_scans_total", "Scans by route, its reason and outcome", ["route", "reason", "outcome"], registry=REGISTRY
)
SCANS_RUNNING = Gauge("deltaport_scans_running", "Scans streaming now", registry=REGISTRY)
SCANS_WAITING = Gauge("deltaport_scans_waiting", "Scans waiting for a slot", registry=REGISTRY)
SCAN_ROWS = Counter("deltaport_scan_rows_total", "Rows streamed to clients", registry=REGISTRY)
SCAN_BYTES = Counter("deltaport_scan_bytes_total", "Arrow bytes streamed to clients", registry=REGISTRY)
FILES_PRUNED = Counter("deltaport_scan_files_pruned_total", "Data files that statistics ruled out", registry=REGISTRY)
FILES_TOTAL = Counter(
    "deltaport_scan_files_total", "Data files of scanned snapshots, pruned ones too", registry=REGISTRY
)
FILTERS = Counter(
    "deltaport_filters_total", "Filter conjuncts of scans, pushed down or dropped", ["use"], registry=REGISTRY
)
WRITE_ROWS = Counter(
    "deltaport_write_rows_total", "Rows inserted, updated and deleted", ["operation"], registry=REGISTRY
)
MERGE_SECONDS = Histogram(
    "deltaport_merge_seconds",
    "Duration of MERGEs that were committed",
    buckets=_DURATION_BUCKETS,
    registry=REGISTRY,
)
MERGE_STATEMENTS = Histogram(
    "deltaport_merge_statements",
    "Statements that shared a MERGE",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    registry=REGISTRY,
)
TRANSACTIONS = Gauge("deltaport_transactions_open", "Transactions that have pinned a version", registry=REGISTRY)
CATALOG_TABLES = Gauge("deltaport_catalog_tables", "Tables served", ["catalog"], registry=REGISTRY)
CATALOG_BROKEN = Gauge(
    "deltaport_catalog_tables_broken", "Tables left out because they cannot be read", ["catalog"], registry=REGISTRY
)
CATALOG_VERSION = Gauge(
    "deltaport_catalog_version", "Moves when the set of tables or a schema changes", ["catalog"], registry=REGISTRY
)
SPARK_STATE = Gauge("deltaport_spark_state", "1 for the state Spark is in", ["state"], registry=REGISTRY)
WRITER = Gauge(
    "deltaport_writer",
    "1 when this gateway may write the catalog's warehouse, 0 when it only reads it",
    ["catalog"],
    registry=REGISTRY,
)
AUTHENTICATIONS = Counter(
    "deltaport_authentications_total",
    "Calls by how their caller was known: token, none, or refused",
    ["method"],
    registry=REGISTRY,
)
AUTHENTICATION_WAITS = Counter(
    "deltaport_authentication_waits_total",
    "Calls refused unseen, because too many from their address had failed before",
    registry=REGISTRY,
)
DENIED = Counter(
    "deltaport_denied_total", "What callers were not allowed to do, by action", ["action"], registry=REGISTRY
)
ACCESS_FILES_REJECTED = Gauge(
    "deltaport_access_file_rejected",
    "1 while a changed access file cannot be used, and the one before is in force",
    ["file"],
    registry=REGISTRY,
)
BUILD = Gauge("deltaport_build", "1, labelled with the version", ["version"], registry=REGISTRY)


def exposition() -> bytes:
    """The text that Prometheus scrapes."""
    return generate_latest(REGISTRY)
