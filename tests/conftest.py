"""One Spark and one gateway for the whole run, or for each of its workers; each test makes the tables it needs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.lake.spark.engine import Profile, Spark
from gateway.ops.lifecycle import Gateway
from gateway.settings import LogSettings, Settings, SparkSettings, load_settings
from gateway.telemetry.logging import configure_logging
from tests.airport import AirportClient
from tests.builders import Lake
from tests.system.process import log_tails

CATALOG = "lake"
# The files that take longest, longest first. Workers take files in this order, so that none begins a long one late.
LONG_FILES = (
    "system/test_kills.py",
    "system/test_one_writer.py",
    "system/test_checker.py",
    "flight/test_nasty.py",
    "flight/test_groups.py",
    "flight/test_ddl.py",
    "flight/test_writes.py",
    "lake/test_log_store.py",
    "lake/test_casts.py",
    "flight/test_interop.py",
    "flight/test_constraints.py",
    "lake/test_pushdown.py",
    "flight/test_counts.py",
    "flight/test_altered_meanwhile.py",
    "lake/test_memory.py",
    "flight/test_rollback.py",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "lake_spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        tails = log_tails(call.start)
        report.sections += [(f"end of the log of gateway '{name}'", tail) for name, tail in tails]
    return report


@pytest.fixture(scope="session")
def java_trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of Java whose `java` tells a version and starts nothing, but leaves a note of what it was to start."""
    home = tmp_path_factory.mktemp("java")
    java = home / "bin" / "java"
    java.parent.mkdir()
    version = """case "$*" in -version) echo 'openjdk version "17.0.1"' >&2; exit 0;; esac"""
    java.write_text(f'#!/bin/sh\n{version}\necho "$*" >> {home / "started"}\nexit 1\n')
    java.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _a_test_that_starts_a_jvm_is_marked(request: pytest.FixtureRequest, java_trap: Path) -> Iterator[None]:
    if request.node.get_closest_marker("spark") is not None:
        yield
        return
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(java_trap)
    yield
    if before is None:
        del os.environ["JAVA_HOME"]
    else:
        os.environ["JAVA_HOME"] = before
    note = java_trap / "started"
    if note.exists():
        note.unlink()
        pytest.fail("this test starts a JVM: it needs the marker `spark`", pytrace=False)


# For every JVM that a test starts. They live for minutes, several on a core: compilers and collectors for
# servers took a sixth of all processor time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session", autouse=True)
def _quiet_logs() -> None:
    configure_logging(LogSettings(format="json", level="error"))


@pytest.fixture(scope="session")
def lake_spark() -> Iterator[Spark]:
    """The gateway's own Spark, shared by every test that needs one."""
    spark = Spark(SparkSettings(driver_memory="2g", warm_up=False))
    spark.start()
    spark.wait_ready(240)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def spark(lake_spark: Spark) -> Any:
    """A session as a stranger's Spark job has it: Spark's own defaults where the gateway's differ."""
    with lake_spark.session(Profile.THROUGHPUT) as session:
        foreign = session.newSession()
    foreign.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    foreign.conf.set("spark.sql.session.timeZone", "UTC")
    foreign.conf.set("spark.sql.shuffle.partitions", "2")
    # Compiling costs a small statement more than running it, and makes no difference to what it writes.
    for name in ("spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled"):
        foreign.conf.set(name, "false")
    foreign.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    # VACUUM lists files in so many tasks; the default of 10,000 takes a minute on a small machine.
    foreign.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    return foreign


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


def settings_for(warehouse: Path, **sections: dict[str, Any]) -> Settings:
    """Settings on free ports; `scan={"engine": "spark"}` and the like change the rest."""
    environ = {
        "DELTAPORT_FLIGHT__PORT": "0",
        "DELTAPORT_HTTP__PORT": "0",
        "DELTAPORT_CATALOGS__LAKE__WAREHOUSE": str(warehouse),
        "DELTAPORT_STAGING__FOLDER": str(warehouse.with_name(f"{warehouse.name}-staging")),
        # Tests refresh by attaching; a background refresh in the middle would hide what they check.
        "DELTAPORT_DISCOVERY__REFRESH_SECONDS": "3600",
    }
    for section, values in sections.items():
        environ.update({f"DELTAPORT_{section}__{key}".upper(): str(value) for key, value in values.items()})
    return load_settings(None, environ)


@pytest.fixture(scope="session")
def gateway(warehouse: Path, lake_spark: Spark) -> Iterator[Gateway]:
    running = Gateway(settings_for(warehouse), lake_spark)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def start_gateway(lake_spark: Spark) -> Iterator[Callable[..., Gateway]]:
    """Further gateways with other settings, over the same Spark."""
    running: list[Gateway] = []

    def start(warehouse: Path, **sections: dict[str, Any]) -> Gateway:
        other = Gateway(settings_for(warehouse, **sections), lake_spark)
        other.start()
        running.append(other)
        return other

    yield start
    for other in running:
        other.stop()


@pytest.fixture
def lake(spark: Any, warehouse: Path, request: pytest.FixtureRequest) -> Lake:
    """Makes Delta tables in a schema of this test's own."""
    return Lake(spark, warehouse, request.node.name)


@pytest.fixture
def client(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[AirportClient]:
    """As DuckDB is, or in the disguise that is the fixture's parameter."""
    with AirportClient(gateway.location, CATALOG, disguise=getattr(request, "param", None)) as attached:
        yield attached


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, threading._DummyThread):
            continue  # gRPC's own threads, which Python only met
        names = ("refresh", "spark", "http", "scan-watch", "upload-watch", "catalog-refresh", "writer-lock")
        if thread.name.startswith(names):
            continue  # session-wide fixtures start these on first use
        thread.join(timeout=10)
        assert not thread.is_alive(), f"thread {thread.name} is still running"
