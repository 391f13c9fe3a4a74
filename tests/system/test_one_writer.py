"""One writer per warehouse, with real processes: two gateways, a paused one, a killed one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from tests.airport import AirportClient
from tests.bench.server import Server

ROOT = Path(__file__).parents[2]
READ_ONLY = "read-only: another gateway writes this warehouse"
_SECONDS = 240  # a JVM's start on a busy machine is slow; nothing here is measured


@pytest.fixture
def table(tmp_path: Path) -> Path:
    place = tmp_path / "warehouse" / "demo" / "n"
    write_deltalake(place, pa.table({"_rowid": pa.array([0], pa.int64()), "k": pa.array([0], pa.int64())}))
    return place


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    with contextlib.ExitStack() as running:

        def enter(name: str) -> Server:
            server = Server(tmp_path / "warehouse", tmp_path / name, spark=True)
            running.callback(_resume_and_stop, server)
            return server.__enter__()

        yield enter


def _resume_and_stop(server: Server) -> None:
    _signal_all(server, signal.SIGCONT)
    server.stop()


def _signal_all(server: Server, number: int) -> None:
    """To the process and its JVM."""
    for pid in (server._process.pid, *_children(server._process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in _words(task / "children")]
    return []


def _words(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().split()
    return []


def _readiness(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server._http_port}/readyz", timeout=20) as reply:
        told: dict[str, Any] = json.load(reply)
    return told


def _wait_for_writes(server: Server, state: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while (told := _readiness(server))["writes"] != state:
        assert time.monotonic() < deadline, told
        time.sleep(0.1)


def _insert(server: Server, key: int) -> int:
    with AirportClient(server.location, "lake") as client:
        return client.insert("demo", "n", pa.record_batch({"k": pa.array([key], pa.int64())})).total_changed


def _keys(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table().column("k").to_pylist())


@pytest.mark.timeout(900)
def test_a_second_gateway_reads_and_takes_over_only_when_the_jvm_of_the_first_is_gone(
    start: Callable[[str], Server], table: Path, tmp_path: Path
) -> None:
    first = start("first")
    _wait_for_writes(first, "ready")
    second = start("second")
    _wait_for_writes(second, READ_ONLY)
    assert _readiness(second)["read_only_catalogs"] == ["lake"]
    assert (first.metric("deltaport_writer"), second.metric("deltaport_writer")) == (1, 0)
    assert "writer_lock_refused" in (tmp_path / "second" / "gateway.log").read_text()

    assert _insert(first, 1) == 1
    with pytest.raises(flight.FlightUnavailableError, match="another gateway writes this warehouse"):
        _insert(second, 2)
    with second.attach() as client:
        assert sorted(row["k"] for row in client.scan("demo", "n", ["k"]).rows()) == [0, 1]

    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "adopt", "demo.n", "--config", str(tmp_path / "first" / "gateway.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    assert "another gateway writes this warehouse" in ended.stderr

    _signal_all(first, signal.SIGSTOP)  # a stopped holder holds
    refusals = 0
    for _ in range(5):  # each of them tries for the lock
        with pytest.raises(flight.FlightUnavailableError, match="another gateway writes this warehouse"):
            _insert(second, 3)
        refusals += 1
    assert refusals == 5
    assert _readiness(second)["writes"] == READ_ONLY
    _signal_all(first, signal.SIGCONT)
    assert _insert(first, 4) == 1

    (jvm,) = _children(first._process.pid)
    os.kill(first._process.pid, signal.SIGKILL)
    first._process.wait()
    _wait_for_writes(second, "ready")
    assert not Path(f"/proc/{jvm}").exists() or "Z" in Path(f"/proc/{jvm}/stat").read_text().split(")")[1][:3]
    assert _insert(second, 5) == 1
    assert _keys(table) == [0, 1, 4, 5]

    # A JVM that is killed inside a gateway: the next one of the same gateway takes the lock again.
    (jvm,) = _children(second._process.pid)
    os.kill(jvm, signal.SIGKILL)
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            assert _insert(second, 6) == 1
            break
        except flight.FlightError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert _keys(table) == [0, 1, 4, 5, 6]
    assert (
        f"pid {_children(second._process.pid)[0]} "
        in (tmp_path / "warehouse" / "_deltaport" / "writer.lock").read_text()
    )
