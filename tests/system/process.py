"""The gateway as its users run it: a process of its own, and what can be seen of it from outside.

Started by exec on free ports with a settings file, watched through /proc and
its metrics, stopped with SIGTERM or killed. Its log stays in the folder it ran in.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.airport import AirportClient

CATALOG = "lake"
_ROOT = Path(__file__).resolve().parents[2]
_SAMPLE_SECONDS = 0.01
_START_SECONDS = 60
_STOP_SECONDS = 90
_TICKS = os.sysconf("SC_CLK_TCK")
_TAIL_BYTES = 2000
# Spark of a gateway that is soon killed: statements come at once, so there is nothing to warm up for, and a dead one is
# missed early.
SHORT_LIVED = {"warm_up": False, "check_seconds": 1}
_started: list[Path] = []  # the logs of all gateways, in order


def log_tails(since: float) -> Iterator[tuple[str, str]]:
    """The ends of the logs that gateways wrote to since then, by the folder each ran in."""
    for log in _started:
        if log.exists() and log.stat().st_mtime >= since:
            yield log.parent.name, log.read_text(errors="replace")[-_TAIL_BYTES:]


class Server:
    """One gateway over one warehouse; leaving the block stops it. `started` is when the process was made.

    Further settings are given by section: `staging={"memory_rows": 10}`; settings of Spark switch it on.
    """

    def __init__(
        self, warehouse: Path, folder: Path, *, spark: bool | dict[str, Any] = False, **sections: dict[str, Any]
    ) -> None:
        flight_port, self._http_port = _free_ports(2)
        self._flight_port = flight_port
        self.location = f"grpc://127.0.0.1:{flight_port}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "gateway.yaml"
        settings: dict[str, dict[str, Any]] = {
            "flight": {"host": "127.0.0.1", "port": flight_port},
            "http": {"host": "127.0.0.1", "port": self._http_port},
            "catalogs": {CATALOG: {"warehouse": str(warehouse), "default": True}},
            "spark": {"enabled": True, **spark} if isinstance(spark, dict) else {"enabled": spark},
        }
        for section, values in sections.items():
            settings[section] = {**settings.get(section, {}), **values}
        config.write_text(yaml.safe_dump(settings))
        self._log_path = folder / "gateway.log"
        _started.append(self._log_path)
        with self._log_path.open("wb") as log:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
                cwd=folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        try:
            self._wait_for_port()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def attach(self) -> AirportClient:
        return AirportClient(self.location, CATALOG)

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """As the kernel does when memory runs out; returns when the process and its JVM are gone."""
        jvm = self.jvm_pid()
        self._process.kill()
        self._process.wait()
        # The JVM notices a little later, and until then may still finish what it does.
        wait_until(lambda: jvm is None or not _is_running(jvm))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def jvm_pid(self) -> int | None:
        """The Spark JVM, a child of the gateway; None while there is none."""
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if Path(f"/proc/{child}/exe").resolve().name == "java":
                    return int(child)
        return None

    def wait_for_spark(self) -> None:
        """Until statements can be written."""
        wait_until(lambda: self.readiness()["writes"] == "ready")

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels, as /metrics tells it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))

    def readiness(self) -> dict[str, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/readyz", timeout=60) as reply:
            return dict(json.load(reply))

    def spark_state(self) -> str:
        return self.readiness()["spark"]

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def read_bytes(self) -> int:
        """Bytes the process has read so far, from files and sockets, cached or not."""
        text = Path(f"/proc/{self._process.pid}/io").read_text()
        return int(text.split("rchar:", 1)[1].split()[0])

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @contextmanager
    def watched_memory(self) -> Iterator[list[int]]:
        """Resident bytes, sampled until the block ends; the list is complete only after it."""
        samples = [self.resident_bytes()]
        done = threading.Event()

        def sample() -> None:
            while not done.wait(_SAMPLE_SECONDS):
                samples.append(self.resident_bytes())

        thread = threading.Thread(target=sample, name="memory-watch", daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            done.set()
            thread.join()

    def _wait_for_port(self) -> None:
        while time.monotonic() - self.started < _START_SECONDS:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self._flight_port), timeout=1).close()
            except OSError:
                time.sleep(0.005)
            else:
                return
        tail = self._log_path.read_text(errors="replace")[-_TAIL_BYTES:]
        raise RuntimeError(f"the gateway did not open its port; its log ends with:\n{tail}")


def wait_until(condition: Callable[[], bool], seconds: float = 600) -> None:
    """Wait for a condition; the deadline is for machines with a lot to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def _environment() -> dict[str, str]:
    """The caller's own, without gateway settings: what is measured is said in the file alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DELTAPORT_")}
    if (jars := os.environ.get("DELTAPORT_JARS_DIR")) is not None:
        kept["DELTAPORT_JARS_DIR"] = jars
    return {**kept, "PYTHONPATH": str(_ROOT)}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
