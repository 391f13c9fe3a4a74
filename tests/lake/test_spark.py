"""Spark's life cycle, on the one JVM of this run and on one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.errors import UnavailableError
from gateway.lake.spark.engine import Profile, Spark, SparkState
from gateway.lake.sql.quoting import quoted, table_at
from gateway.settings import SparkSettings

LIFE_AND_DEATH = """
import os, signal, sys, time
import structlog
from pyspark import SparkContext
from gateway.lake.spark.engine import Profile, Spark, SparkState
from gateway.settings import SparkSettings

logged = []
def note(_logger, _method, event):
    logged.append(event["event"])
    raise structlog.DropEvent
structlog.configure(processors=[note])
seen = []
spark = Spark(SparkSettings(driver_memory="1g", check_seconds=0.2), seen.append)
spark.start()
spark.wait_ready(240)
deadline = time.monotonic() + 240
while "spark_warmed_up" not in logged:
    assert time.monotonic() < deadline and "spark_warm_up_failed" not in logged, logged
    time.sleep(0.1)
first = SparkContext._gateway.proc.pid
os.kill(first, signal.SIGKILL)
deadline = time.monotonic() + 240
while SparkContext._gateway is None or SparkContext._gateway.proc.pid == first or spark.state is not SparkState.READY:
    assert time.monotonic() < deadline, "Spark did not come back"
    time.sleep(0.1)
with spark.session(Profile.LATENCY) as session:
    assert session.range(5).count() == 5
second = SparkContext._gateway.proc
spark.stop()
assert second.poll() is not None, "the JVM outlives the gateway"
print("DONE", [state.value for state in seen])
"""


def test_sessions_have_the_settings_of_their_profile(lake_spark: Spark) -> None:
    with lake_spark.session(Profile.LATENCY) as quick, lake_spark.session(Profile.THROUGHPUT) as large:
        assert quick.conf.get("spark.sql.codegen.wholeStage") == "false"
        assert large.conf.get("spark.sql.codegen.wholeStage") == "true"
        for session in (quick, large):
            assert session.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
            assert session.conf.get("spark.sql.session.timeZone") == "UTC"
            within_retention = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
            assert session.conf.get(within_retention) == "false"


def test_two_borrowers_never_share_a_session_and_sessions_are_reused(lake_spark: Spark) -> None:
    with lake_spark.session(Profile.SCAN) as one, lake_spark.session(Profile.SCAN) as other:
        assert one is not other
    with lake_spark.session(Profile.SCAN) as again:
        assert again in (one, other)


def test_a_switched_off_spark_says_so() -> None:
    spark = Spark(SparkSettings(enabled=False))
    spark.start()
    assert spark.state is SparkState.OFF
    with pytest.raises(UnavailableError, match="Spark is switched off"), spark.session(Profile.SCAN):
        pass
    with pytest.raises(UnavailableError, match="Spark is switched off"):
        spark.wait_ready(1)


def test_a_spark_that_cannot_start_says_why_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAPORT_JARS_DIR", str(tmp_path / "none"))
    failed = threading.Event()
    spark = Spark(SparkSettings(), lambda state: failed.set() if state is SparkState.FAILED else None)
    spark.start()
    assert failed.wait(60)
    assert "deltaport fetch-jars" in spark.reason
    with pytest.raises(UnavailableError, match="deltaport fetch-jars"), spark.session(Profile.SCAN):
        pass
    spark.stop()


def test_stopping_a_spark_that_never_ran_leaves_the_one_that_runs_alone(lake_spark: Spark) -> None:
    Spark(SparkSettings()).stop()
    with lake_spark.session(Profile.SCAN) as session:
        assert session.range(3).count() == 3


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_dead_jvm_is_noticed_and_replaced_and_the_last_one_is_stopped() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LIFE_AND_DEATH],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ,
    )
    assert "DONE" in ended.stdout, ended.stderr[-2000:]
    states = ended.stdout.split("DONE ")[1].strip()
    assert states == "['starting', 'starting', 'ready', 'starting', 'starting', 'ready', 'stopped']"


def test_names_are_quoted_for_spark() -> None:
    assert quoted("a`b") == "`a``b`"
    assert table_at("/x y/`z") == "delta.`/x y/``z`"
