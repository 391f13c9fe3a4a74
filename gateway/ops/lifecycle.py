"""Start, ready, drain, stop.

The port answers as soon as it is open; Spark and the first listing of
the warehouses follow in the background. A first signal drains: running calls
are finished, new ones are refused as unavailable. A second one ends them.
"""

from __future__ import annotations

import threading
import time

import structlog

from gateway import __version__
from gateway.errors import GatewayError
from gateway.lake.spark.engine import Spark, SparkState
from gateway.ops.assembly import Service, build_service, scheme_of
from gateway.ops.health import HealthServer
from gateway.settings import Settings
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)

_FIRST_LISTING_SECONDS = 5


class Gateway:
    """The running process. `start` returns when both ports answer; `stop` may be called once, from any thread."""

    def __init__(self, settings: Settings, spark: Spark | None = None) -> None:
        self._settings = settings
        self._owns_spark = spark is None
        self._health = HealthServer(settings.http, self.readiness, self._update_gauges)
        try:
            self.service: Service = build_service(settings, spark)
        except BaseException:
            self._health.close()
            raise
        self._stop = threading.Event()
        self._refresher = threading.Thread(target=self._refresh_catalogs, name="catalog-refresh", daemon=True)
        self._refreshed = threading.Event()
        self._spark_starter = threading.Thread(target=self._start_spark, name="spark-start", daemon=True)
        metrics.BUILD.labels(__version__).set(1)

    @property
    def location(self) -> str:
        return f"{scheme_of(self._settings.flight)}://{self._settings.flight.host}:{self.service.server.port}"

    @property
    def http_address(self) -> str:
        host, port = self._health.address
        return f"http://{host}:{port}"

    def start(self) -> None:
        self._health.start()
        self.service.lake.staging.remove_leftovers()
        self.service.streams.start()
        self.service.uploads.start(self.service.server)
        self._refresher.start()
        self.service.lake.writer_locks.start(self._catch_up)
        if self._owns_spark:
            self._spark_starter.start()
        log.info("gateway_started", flight=self.location, http=self.http_address, version=__version__)

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """Ready means that reads work; writes need Spark and the writer's lock, and the details say so."""
        spark = self.service.lake.spark
        ready = not self._stop.is_set()
        details: dict[str, object] = {
            "reads": "ready" if ready else "stopping",
            "spark": spark.state.value,
            "writes": self._writes() if ready and spark.state is SparkState.READY else "unavailable",
        }
        if spark.reason:
            details["reason"] = spark.reason
        if refused := [name for name, guard in self.service.lake.writer_locks.items() if guard.reason]:
            details["read_only_catalogs"] = refused
        return ready, details

    def _writes(self) -> str:
        """Ready where at least one catalog can be written."""
        guards = [guard for _, guard in self.service.lake.writer_locks.items()]
        if any(guard.is_held for guard in guards):
            return "ready"
        reason = next((guard.reason for guard in guards if guard.reason), "")
        return f"read-only: {reason}" if reason else "unavailable"

    def drain(self, give_up: threading.Event) -> bool:
        """Refuse new calls and wait for the running ones, stalled uploads apart; False when some had to be left."""
        self._stop.set()
        self.service.gate.close()
        deadline = time.monotonic() + self._settings.flight.drain_seconds
        while not self.service.gate.wait_empty(0.1, besides=self.service.uploads.stalled_count()):
            if give_up.is_set() or time.monotonic() > deadline:
                log.warning("drain_cut_short", scans=len(self.service.streams))
                return False
        return True

    def stop(self) -> None:
        self._stop.set()
        self.service.gate.close()
        self.service.streams.close_all("the gateway is stopping")
        for peer in self.service.gate.peers():  # the server does not stop while a call waits for its client
            self.service.server.disconnect(peer)
        self.service.server.shutdown()
        self.service.streams.stop()
        self.service.uploads.stop()
        self._health.stop()
        self._refresher.join()
        self.service.lake.writer_locks.stop()
        if self._owns_spark:
            self._spark_starter.join()
        self.service.lake.refreshers.shutdown()
        self.service.lake.staging.close()
        if self._owns_spark:
            self.service.lake.spark.stop()
        log.info("gateway_stopped")

    def _refresh_catalogs(self) -> None:
        while True:
            for catalog in self.service.lake.catalogs:
                try:
                    self._maintain(catalog.name)
                    catalog.refresh()
                except GatewayError as error:
                    log.warning("catalog_refresh_failed", catalog=catalog.name, reason=error.message)
                except Exception as error:  # the next round may work
                    log.error(
                        "catalog_refresh_failed", catalog=catalog.name, error=type(error).__name__, exc_info=error
                    )
            self._refreshed.set()
            if self._stop.wait(self._settings.discovery.refresh_seconds):
                return

    def _maintain(self, catalog: str) -> bool:
        try:
            return self.service.lake.warehouses[catalog].maintain()
        except GatewayError as error:  # not the writer, or the disk: the next round may work
            log.debug("warehouse_maintenance_failed", catalog=catalog, reason=error.message)
            return False

    def _catch_up(self) -> None:
        """The right to write is ours now: what its last holder left half done is finished, and shown."""
        for catalog in self.service.lake.catalogs:
            try:
                if self._maintain(catalog.name):
                    catalog.refresh()
            except Exception as error:  # the next refresh may work
                log.error("catalog_refresh_failed", catalog=catalog.name, error=type(error).__name__, exc_info=error)

    def _start_spark(self) -> None:
        """A starting JVM takes every core; the first catalog listing goes before it, unless it takes long."""
        self._refreshed.wait(_FIRST_LISTING_SECONDS)
        if not self._stop.is_set():
            self.service.lake.spark.start()

    def _update_gauges(self) -> None:
        metrics.TRANSACTIONS.set(len(self.service.lake.transactions))
        for catalog in self.service.lake.catalogs:
            listing = catalog.last_listing()
            metrics.CATALOG_TABLES.labels(catalog.name).set(len(listing.tables))
            metrics.CATALOG_BROKEN.labels(catalog.name).set(len(listing.broken))
            metrics.CATALOG_VERSION.labels(catalog.name).set(catalog.version)
        for name, guard in self.service.lake.writer_locks.items():
            metrics.WRITER.labels(name).set(guard.is_held)
