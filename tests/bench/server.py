"""The gateway as its users run it: a process of its own, and what can be seen of it from outside.

Started by exec on free ports with a settings file, watched through /proc and
its metrics, stopped with SIGTERM. Its log stays in the folder it ran in.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.airport import AirportClient

CATALOG = "lake"
_ROOT = Path(__file__).resolve().parents[2]
_SAMPLE_SECONDS = 0.01
_START_SECONDS = 60
_STOP_SECONDS = 90
_TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """One gateway over one warehouse; leaving the block stops it. `started` is when the process was made."""

    def __init__(self, warehouse: Path, folder: Path, *, spark: bool = False) -> None:
        flight_port, self._http_port = _free_ports(2)
        self._flight_port = flight_port
        self.location = f"grpc://127.0.0.1:{flight_port}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "gateway.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "flight": {"host": "127.0.0.1", "port": flight_port},
                    "http": {"host": "127.0.0.1", "port": self._http_port},
                    "catalogs": {CATALOG: {"warehouse": str(warehouse), "default": True}},
                    "spark": {"enabled": spark},
                }
            )
        )
        self._log_path = folder / "gateway.log"
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

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels, as /metrics tells it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))

    def spark_state(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/readyz", timeout=10) as reply:
            return str(json.load(reply)["spark"])

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
        tail = self._log_path.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the gateway did not open its port; its log ends with:\n{tail}")


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
