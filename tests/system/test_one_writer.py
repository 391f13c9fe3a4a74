"""One writer per warehouse, with real processes: two gateways, a paused one, a killed one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from tests.system.process import SHORT_LIVED, Server, wait_until

pytestmark = pytest.mark.spark  # every test starts gateways of its own

ROOT = Path(__file__).parents[2]
TAKEN = "another gateway writes this warehouse"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    place = tmp_path / "warehouse" / "demo" / "n"
    write_deltalake(place, pa.table({"_rowid": pa.array([0], pa.int64()), "k": pa.array([0], pa.int64())}))
    return place


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    with contextlib.ExitStack() as running:

        def enter(name: str) -> Server:
            server = running.enter_context(Server(tmp_path / "warehouse", tmp_path / name, spark=SHORT_LIVED))
            running.callback(_signal_both, server, signal.SIGCONT)
            return server

        yield enter


def _signal_both(server: Server, number: int) -> None:
    """To the process and its JVM."""
    if server.exit_code is None:
        for pid in (server.pid, _jvm(server)):
            if pid is not None:
                os.kill(pid, number)


def _jvm(server: Server) -> int | None:
    with contextlib.suppress(OSError):  # one that has just ended
        return server.jvm_pid()
    return None


def _wait_for_writes(server: Server, state: str) -> None:
    wait_until(lambda: server.readiness()["writes"] == state)


def _insert(server: Server, key: int) -> int:
    with server.attach() as client:
        return client.insert("demo", "n", pa.record_batch({"k": pa.array([key], pa.int64())})).total_changed


def _is_refused(server: Server, key: int) -> bool:
    with pytest.raises(flight.FlightUnavailableError, match=TAKEN):
        _insert(server, key)
    return True


def _keys(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table().column("k").to_pylist())


@pytest.mark.timeout(1800)
def test_a_second_gateway_only_reads_until_the_jvm_of_the_first_is_gone(
    start: Callable[[str], Server], table: Path, tmp_path: Path
) -> None:
    first = start("first")
    _wait_for_writes(first, "ready")
    second = start("second")
    _wait_for_writes(second, f"read-only: {TAKEN}")
    assert second.readiness()["read_only_catalogs"] == ["lake"]
    assert (first.metric("deltaport_writer"), second.metric("deltaport_writer")) == (1, 0)
    assert "writer_lock_refused" in (tmp_path / "second" / "gateway.log").read_text()
    assert _insert(first, 1) == 1
    assert _is_refused(second, 2)
    with second.attach() as client:
        assert sorted(row["k"] for row in client.scan("demo", "n", ["k"]).rows()) == [0, 1]

    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "adopt", "demo.n", "--config", str(tmp_path / "first" / "gateway.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (ended.returncode, TAKEN in ended.stderr) == (1, True), ended.stderr

    _signal_both(first, signal.SIGSTOP)  # a stopped holder holds: nobody guesses by a clock
    assert all(_is_refused(second, 3) for _ in range(5))  # each of them tries for the lock
    assert second.readiness()["writes"] == f"read-only: {TAKEN}"
    _signal_both(first, signal.SIGCONT)
    assert _insert(first, 4) == 1

    jvm = _jvm(first)
    os.kill(first.pid, signal.SIGKILL)  # its JVM ends a little later, and may write until then
    _wait_for_writes(second, "ready")
    assert not _is_running(jvm)
    assert _insert(second, 5) == 1
    assert _keys(table) == [0, 1, 4, 5]

    _replaces_its_jvm(second, tmp_path / "warehouse" / "_deltaport" / "writer.lock")
    assert _insert(second, 6) == 1
    assert _keys(table) == [0, 1, 4, 5, 6]


@pytest.mark.timeout(1800)
def test_what_a_dead_writer_left_half_done_is_finished_by_the_next_also_by_one_that_wrote_before(
    start: Callable[[str], Server], table: Path, tmp_path: Path
) -> None:
    first = start("first")
    _wait_for_writes(first, "ready")
    assert _insert(first, 1) == 1
    second = start("second")
    _wait_for_writes(second, f"read-only: {TAKEN}")
    jvm = _jvm(first)
    assert jvm is not None
    os.kill(jvm, signal.SIGKILL)
    _wait_for_writes(second, "ready")
    assert _insert(second, 2) == 1
    _wait_for_writes(first, f"read-only: {TAKEN}")

    _signal_both(second, signal.SIGSTOP)
    _begin_replacing(table, tmp_path / "warehouse")
    _signal_both(second, signal.SIGKILL)
    _wait_for_writes(first, "ready")
    wait_until((table / "_delta_log").exists)
    with first.attach() as client:
        assert client.scan("demo", "n", ["k"]).rows() == []
    assert _insert(first, 3) == 1
    assert _keys(table) == [3]
    assert list((tmp_path / "warehouse" / "_deltaport" / "journal").iterdir()) == []


def _begin_replacing(table: Path, root: Path) -> None:
    """CREATE OR REPLACE as it is when the old table has left its place and the new one has not come."""
    dropped, building = root / "_dropped" / "20260101T000000Z-00000000" / "demo" / "n", root / "_deltaport" / "building"
    empty = pa.table({"_rowid": pa.array([], pa.int64()), "k": pa.array([], pa.int64())})
    write_deltalake(building / "new", empty)
    dropped.parent.mkdir(parents=True)
    table.rename(dropped)
    steps = [(table, dropped), (building / "new", table)]
    note = {"moves": [[place.relative_to(root).parts for place in step] for step in steps]}
    journal = root / "_deltaport" / "journal"
    journal.mkdir(parents=True, exist_ok=True)
    (journal / "note.json").write_text(json.dumps(note))


def _replaces_its_jvm(server: Server, lock: Path) -> None:
    """Kill the JVM; the next one of the same gateway takes the lock again."""
    jvm = _jvm(server)
    assert jvm is not None
    assert f"pid {jvm} " in lock.read_text()
    os.kill(jvm, signal.SIGKILL)
    wait_until(lambda: f"pid {jvm} " not in lock.read_text())
    _wait_for_writes(server, "ready")
    assert f"pid {_jvm(server)} " in lock.read_text()


def _is_running(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
