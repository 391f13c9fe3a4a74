"""`deltaport adopt`, the command: what it does, what it says, and that it may be ended and run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from gateway.lake.spark.engine import Spark
from gateway.ops import cli
from tests.system.process import wait_until
from tests.system.test_process import ROOT, environment, run

ROWS = 40


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A table as others make it: without row ids."""
    place = tmp_path / "warehouse" / "demo" / "foreign"
    for first in range(0, ROWS, 10):
        write_deltalake(place, pa.table({"k": pa.array(range(first, first + 10), pa.int64())}), mode="append")
    return place


def ids_of(place: Path) -> list[int | None]:
    ids = DeltaTable(place).to_pyarrow_table()["_rowid"].to_pylist()
    return sorted(ids, key=lambda each: -1 if each is None else each)


@pytest.mark.spark
def test_a_run_that_is_killed_is_run_again_and_finishes(foreign: Path, tmp_path: Path) -> None:
    settings = {"CATALOGS__LAKE__WAREHOUSE": str(tmp_path / "warehouse"), "SPARK__DRIVER_MEMORY": "1g"}
    version = DeltaTable(foreign).version()
    killed = subprocess.Popen(
        [sys.executable, "-m", "gateway", "adopt", "demo.foreign"],
        cwd=tmp_path,
        env={**environment(**settings), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until((foreign / "_delta_log" / f"{version + 1:020}.json").exists)  # the column is there, no id is
    finally:
        os.killpg(killed.pid, signal.SIGKILL)  # its JVM too, which would end a little later
        killed.wait()
    assert ids_of(foreign) == [None] * ROWS
    ended = run("adopt", "demo.foreign", cwd=tmp_path, **settings)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"demo.foreign: {ROWS} ids given in 1 commit; it is at version {version + 2} now\n"
    assert f"Giving ids to demo.foreign: {ROWS} of {ROWS} rows" in ended.stderr
    assert ids_of(foreign) == list(range(ROWS))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["foreign"], 2, "schema.table"),
        (["demo."], 2, ""),
        (["demo.../etc"], 2, ""),
        (["demo.missing"], 1, "not found"),
        (["nowhere.foreign"], 1, "not found"),
        (["demo.foreign", "--catalog", "other"], 1, "catalog 'other' not found"),
    ],
)
def test_a_wrong_name_is_told_in_one_line(
    foreign: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    ended = run("adopt", *arguments, cwd=tmp_path, CATALOGS__LAKE__WAREHOUSE=str(tmp_path / "warehouse"))
    (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("deltaport: ")
    assert words in line
    assert (ended.returncode, ended.stdout) == (code, "")
    assert DeltaTable(foreign).version() == ROWS // 10 - 1


class BorrowedSpark:
    """The test run's Spark, which the command neither starts nor stops: a process has but one."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)


def test_it_says_what_it_did_and_does_only_what_is_missing(
    foreign: Path, tmp_path: Path, lake_spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.lake.spark.engine.Spark", lambda _settings, **_options: BorrowedSpark(lake_spark))
    monkeypatch.setattr(cli, "configure_logging", lambda _settings: None)
    environ = {"DELTAPORT_CATALOGS__LAKE__WAREHOUSE": str(tmp_path / "warehouse")}

    def adopt() -> str:
        done = CliRunner().invoke(cli.app, ["adopt", "demo.foreign"], env=environ)
        assert done.exit_code == 0, done.output
        return done.output

    version = DeltaTable(foreign).version()
    assert f"demo.foreign: {ROWS} ids given in 2 commits; it is at version {version + 2} now" in adopt()
    assert "demo.foreign: every row has an id already" in adopt()
    assert DeltaTable(foreign).version() == version + 2
    newer = pa.table({"_rowid": pa.array([None], pa.int64()), "k": pa.array([ROWS], pa.int64())})
    write_deltalake(foreign, newer, mode="append")
    assert f"demo.foreign: 1 id given in 1 commit; it is at version {version + 4} now" in adopt()
    assert ids_of(foreign) == list(range(ROWS + 1))
