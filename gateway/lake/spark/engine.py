"""Where Spark is configured, started, watched and stopped.

Spark starts in the background; until it is ready, whoever needs it gets an error that says so
and reads go on without it. A JVM that died is noticed and started anew. SQL
settings belong to a session, so each use borrows a session of its profile and
no two threads ever share one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from gateway.errors import UnavailableError
from gateway.lake.spark.jars import find_java, jar_paths
from gateway.lake.spark.log_store import install_log_store, log_store_settings
from gateway.settings import SparkSettings

log = structlog.get_logger(__name__)

_WARM_UP_PAUSE_SECONDS = 1


class Profile(Enum):
    """What a session is tuned for."""

    SCAN = "scan"
    LATENCY = "latency"
    THROUGHPUT = "throughput"


_EVERY_PROFILE = {
    "spark.sql.session.timeZone": "UTC",
    # INT96, Spark's default, cannot be read back by others outside 1677-2262.
    # Row groups of DuckDB's own size, which lookups skip and readers share out: one of Spark's holds a whole file.
    "parquet.block.row.count.limit": "122880",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    # It takes time that grows with the square of the columns: 386 s of CPU for one row of 1,000, and 5 s without.
    "spark.sql.constraintPropagation.enabled": "false",
    # The default of 50 tasks per look at a log costs seconds on a small machine.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Delta would refuse every version but the newest once it is older than the retention of deleted files, also where
    # all its files are there: undo, repeatable reads and AT go by what can be read.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
# Small statements spend their time in planning and compiling: a 1-row INSERT takes 0.2 s with these, 1.2 s without.
_QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
_PROFILES: dict[Profile, dict[str, str]] = {
    Profile.SCAN: {"spark.sql.files.maxPartitionBytes": "32m"},
    Profile.LATENCY: _QUICK,
    Profile.THROUGHPUT: {},
}


class SparkState(Enum):
    OFF = "off"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class Spark:
    """The process's one Spark. Thread-safe: `_lock` guards state, session and pool, `_keeping` what is kept."""

    def __init__(
        self,
        settings: SparkSettings,
        on_state: Callable[[SparkState], None] = lambda _state: None,
        *,
        fsync: bool = True,
    ) -> None:
        """`fsync`: what is written to local and mounted disks is on the disk before a commit is done."""
        self._settings = settings
        self._fsync = fsync
        self._on_state = on_state
        self._lock = threading.Lock()
        self._state = SparkState.STARTING if settings.enabled else SparkState.OFF
        self._reason = "Spark is still starting" if settings.enabled else "Spark is switched off"
        self._root: Any = None
        self._jvm: Any = None  # the process of our own JVM; one that somebody else started is left alone
        self._idle: dict[Profile, list[Any]] = {profile: [] for profile in Profile}
        self._borrowed = 0
        self._keeping = threading.Lock()
        self._kept: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> SparkState:
        return self._state

    @property
    def reason(self) -> str:
        """Why Spark is not ready; empty when it is."""
        return self._reason

    def start(self) -> None:
        """Start in the background; returns at once."""
        self._on_state(self._state)
        if self._state is SparkState.OFF:
            return
        self._thread = threading.Thread(target=self._keep_running, name="spark", daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        """True once sessions can be had; UnavailableError when Spark cannot start."""
        if self._state not in (SparkState.STARTING, SparkState.READY):
            raise UnavailableError(self._reason)
        return self._state is SparkState.READY

    def wait_ready(self, timeout_seconds: float) -> None:
        """Wait until Spark is ready; UnavailableError when it cannot be, or not in time."""
        deadline = time.monotonic() + timeout_seconds
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise UnavailableError(self._reason)
            time.sleep(0.05)

    @contextlib.contextmanager
    def session(self, profile: Profile) -> Iterator[Any]:
        """Borrow a session of this profile for one thread's use."""
        with self._lock:
            if self._state is not SparkState.READY:
                raise UnavailableError(self._reason)
            root = self._root
            session = self._idle[profile].pop() if self._idle[profile] else None
            self._borrowed += 1
        try:
            if session is None:
                session = _new_session(root, profile)
            yield session
        finally:
            with self._lock:
                self._borrowed -= 1
                if session is not None and self._root is root and self._state is SparkState.READY:
                    self._idle[profile].append(session)

    def keep(self, name: str, make: Callable[[Any], Any]) -> Any:
        """Something that lives as long as the JVM of now, made once by calls into it; None is not kept."""
        with self._keeping:  # calls into the JVM may take their time: not under `_lock`
            with self._lock:
                if self._state is not SparkState.READY:
                    raise UnavailableError(self._reason)
                kept, root = self._kept, self._root
            if name not in kept and (made := make(root._jvm)) is not None:
                kept[name] = made
            return kept.get(name)

    def kept(self, name: str) -> Any:
        """What was kept under this name in the JVM of now; None when there is nothing."""
        return self._kept.get(name)

    def discard(self, name: str, thing: object) -> None:
        """Keep this thing no longer."""
        with self._keeping:
            if self._kept.get(name) is thing:
                del self._kept[name]

    @property
    def jvm(self) -> object:
        """The JVM of now, to be asked about later."""
        return self._jvm

    @staticmethod
    def has_ended(jvm: Any, within_seconds: float) -> bool:
        """Whether this JVM is surely gone, so that it can write nothing any more; waits a little for it."""
        if jvm is None:
            return False
        try:
            jvm.wait(timeout=within_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Stop Spark and its JVM; nobody may use a session after this."""
        self._stop.set()
        with self._lock:
            root, self._root, self._kept = self._root, None, {}
            self._become(SparkState.STOPPED, "the gateway is stopping")
        if root is not None:
            with contextlib.suppress(Exception):  # a JVM that is already gone cannot be asked to stop
                root.stop()
        self._end_jvm()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def _keep_running(self) -> None:
        while not self._stop.is_set():
            try:
                root = self._launch()
            except Exception as error:  # whatever keeps Spark from starting, reads go on
                self._fail(error)
                if self._stop.wait(30):
                    return
                continue
            with self._lock:
                if self._stop.is_set():
                    return
                self._root = root
                self._become(SparkState.READY, "")
            log.info("spark_ready")
            if self._settings.warm_up:
                self._warm_up()
            self._watch(root)

    def _launch(self) -> Any:
        # What is missing shows here, before a JVM is touched.
        settings = _launch_settings(self._settings, fsync=self._fsync)
        self._end_jvm()
        with self._lock:
            if not self._stop.is_set():
                self._become(SparkState.STARTING, self._reason or "Spark is starting again")
        started = time.monotonic()
        session = _build_session(settings)
        self._jvm = _current_jvm()
        install_log_store(session)
        log.info("spark_started", seconds=round(time.monotonic() - started, 1))
        return session

    def _watch(self, root: Any) -> None:
        """Return when the JVM is gone, or when the gateway stops."""
        while not self._stop.wait(self._settings.check_seconds):
            if not _is_alive(self._jvm, root):
                with self._lock:
                    self._root, self._kept = None, {}
                    self._idle = {profile: [] for profile in Profile}
                    if not self._stop.is_set():
                        self._become(SparkState.STARTING, "Spark stopped and is starting again")
                log.warning("spark_died")
                return

    def _end_jvm(self) -> None:
        """End our JVM and make pyspark forget it, which keeps it in class attributes and would go on using it."""
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            _forget_gateway_of(jvm)
            _end_process(jvm)

    def _fail(self, error: Exception) -> None:
        reason = error.message if isinstance(error, UnavailableError) else "Spark cannot start; see the gateway's log"
        with self._lock:
            if not self._stop.is_set():
                self._become(SparkState.FAILED, reason)
        log.error("spark_failed", error=type(error).__name__, detail=str(error)[:500])

    def _become(self, state: SparkState, reason: str) -> None:
        self._state, self._reason = state, reason
        self._on_state(state)

    def _warm_up(self) -> None:
        """Run each kind of statement a few times: the first MERGEs of a JVM take seconds, later ones do not."""
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="deltaport-warm-up-") as folder:
                for profile in (Profile.LATENCY, Profile.SCAN):
                    # Whoever has real work comes first, and warms Spark by it.
                    while self._stop.wait(_WARM_UP_PAUSE_SECONDS) or self._borrowed:
                        if self._stop.is_set() or self._state is not SparkState.READY:
                            return
                    with self.session(profile) as session:
                        _exercise(session, f"{folder}/{profile.value}")
        except Exception as error:  # warming up is a courtesy
            if self._stop.is_set():
                return
            log.warning("spark_warm_up_failed", error=type(error).__name__)
            return
        log.info("spark_warmed_up", seconds=round(time.monotonic() - started, 1))


def _new_session(root: Any, profile: Profile) -> Any:
    session = root.newSession()
    for key, value in {**_EVERY_PROFILE, **_PROFILES[profile]}.items():
        session.conf.set(key, value)
    return session


def _build_session(settings: Mapping[str, str]) -> Any:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(Path(find_java()).resolve().parent.parent)
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the gateway's own packages
    # pyspark logs the SQL of failed queries to standard error; our own log line says what is needed.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _launch_settings(settings: SparkSettings, *, fsync: bool) -> dict[str, str]:
    find_java()
    quiet = Path(__file__).with_name("log4j2.properties")
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return {
        **_EVERY_PROFILE,
        **(local if settings.master.startswith("local") else {}),
        "spark.app.name": "deltaport",
        "spark.master": settings.master,
        "spark.jars": ",".join(str(path) for path in jar_paths()),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet}",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Concurrent scans share the cores instead of queueing behind one long job.
        "spark.scheduler.mode": "FAIR",
        **log_store_settings(settings.conf, fsync=fsync),
        **settings.conf,
        # A file that is not there yet has no rows: the fence of a MERGE is made of that.
        "spark.files.ignoreMissingFiles": "true",
    }


def _exercise(session: Any, path: str) -> None:
    from delta.tables import DeltaTable

    rows = session.range(8).selectExpr("id", "cast(id AS string) AS text")
    rows.write.format("delta").option("delta.enableDeletionVectors", "true").save(path)
    for change in range(4):
        source = session.range(change, change + 4).selectExpr("id", "'changed' AS text")
        merge = DeltaTable.forPath(session, path).alias("t").merge(source.alias("s"), "t.id = s.id")
        merge.whenMatchedDelete("s.id = 0").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        session.read.format("delta").load(path).toArrow()


def _current_jvm() -> Any:
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def _is_alive(jvm: Any, root: Any) -> bool:
    if jvm is not None and jvm.poll() is not None:
        return False
    try:
        return not root.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j raises its own and socket errors when the JVM is gone
        return False


def _forget_gateway_of(jvm: Any) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if getattr(gateway, "proc", None) is not jvm:
        return
    with contextlib.suppress(Exception):  # its sockets may be half open
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _end_process(jvm: Any) -> None:
    # The JVM ends when its standard input does.
    with contextlib.suppress(OSError):
        jvm.stdin.close()
    try:
        jvm.wait(timeout=10)
    except subprocess.TimeoutExpired:  # still there: it has nothing left to lose
        jvm.kill()
        jvm.wait()
