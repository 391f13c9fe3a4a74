"""The whole process, as an operator runs it: real commands, real signals, no Spark unless a test says so."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from tests.airport import AirportClient

ROOT = Path(__file__).parents[2]


class Running:
    """A gateway in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed: list[str] = []

    def read_until(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line)
            if word in line:
                return line
        pytest.fail(f"ended before it printed {word}: {''.join(self.printed)}")

    def address(self, scheme: str) -> str:
        found = re.search(rf"{scheme}://[\d.]+:\d+", "".join(self.printed))
        assert found
        return found[0]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.address("http") + path, timeout=20) as reply:  # noqa: S310
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def environment(**settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DELTAPORT_") or "JARS" in name}
    return {**kept, **{f"DELTAPORT_{name}": value for name, value in settings.items()}}


def run(*arguments: str, cwd: Path = ROOT, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=cwd,
        env={**environment(**settings), "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(**settings: str) -> Running:
        defaults = {
            "FLIGHT__PORT": "0",
            "HTTP__PORT": "0",
            "CATALOGS__LAKE__WAREHOUSE": str(tmp_path / "warehouse"),
            "SPARK__ENABLED": "false",
        }
        with (tmp_path / "stderr").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve"],
                cwd=ROOT,
                env={**environment(**{**defaults, **settings}), "COLUMNS": "200"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        running = Running(process)
        started.append(running)
        running.read_until("ATTACH")
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
        running.process.stdout.close()  # type: ignore[union-attr]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    place = tmp_path / "warehouse" / "demo" / "numbers"
    write_deltalake(
        place, pa.table({"_rowid": pa.array(range(100), pa.int64()), "k": pa.array(range(100), pa.int64())})
    )
    return place


def test_serve_prints_both_addresses_and_a_line_to_paste(serve: Callable[..., Running], numbers: Path) -> None:
    gateway = serve()
    location = gateway.address("grpc")
    assert f"ATTACH 'lake' (TYPE airport, LOCATION '{location}');" in gateway.printed[-1]
    with AirportClient(location, "lake") as client:
        assert client.scan("demo", "numbers").num_rows == 100


def test_the_http_port_tells_what_is_ready(serve: Callable[..., Running], numbers: Path) -> None:
    gateway = serve()
    assert gateway.get("/livez") == (200, "alive\n")
    status, text = gateway.get("/readyz")
    assert status == 200
    assert json.loads(text) == {
        "reads": "ready",
        "spark": "off",
        "writes": "unavailable",
        "reason": "Spark is switched off",
    }
    assert gateway.get("/nothing")[0] == 404


def test_metrics_count_calls_rows_and_scans(serve: Callable[..., Running], numbers: Path) -> None:
    gateway = serve()
    with AirportClient(gateway.address("grpc"), "lake") as client:
        k = client.table("demo", "numbers").ref("k")
        assert client.scan("demo", "numbers", ["k"], [k.eq(7)]).rows() == [{"k": 7}]
    _, text = gateway.get("/metrics")
    for line in (
        'deltaport_scans_total{outcome="ok",reason="default",route="direct"} 1.0',
        "deltaport_scan_rows_total 1.0",
        'deltaport_filters_total{use="pushed"} 1.0',
        'deltaport_catalog_tables{catalog="lake"} 1.0',
        'deltaport_spark_state{state="off"} 1.0',
        'deltaport_calls_total{action="endpoints",method="do_action",outcome="ok"} 1.0',
    ):
        assert line in text


def test_log_lines_are_json_without_tokens(serve: Callable[..., Running], numbers: Path, tmp_path: Path) -> None:
    gateway = serve()
    with AirportClient(gateway.address("grpc"), "lake", token="hunter2-token") as client:
        client.scan("demo", "numbers")
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.wait(60)
    lines = [json.loads(line) for line in (tmp_path / "stderr").read_text().splitlines() if line.startswith("{")]
    (scan,) = [line for line in lines if line["event"] == "scan_ended"]
    assert (scan["outcome"], scan["rows"], scan["table"], scan["route"]) == ("ok", 100, "demo.numbers", "direct")
    assert "hunter2" not in (tmp_path / "stderr").read_text()


def test_sigterm_ends_the_process_in_peace(serve: Callable[..., Running], numbers: Path) -> None:
    gateway = serve()
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(60) == 0


@pytest.mark.parametrize("which", ["FLIGHT__PORT", "HTTP__PORT"])
def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ports = {"FLIGHT__PORT": "0", "HTTP__PORT": "0", which: port}
        ended = run("serve", SPARK__ENABLED="false", cwd=tmp_path, **ports)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_spark_that_cannot_start_leaves_reads_alone(
    serve: Callable[..., Running], numbers: Path, tmp_path: Path
) -> None:
    gateway = serve(SPARK__ENABLED="true", JARS_DIR=str(tmp_path / "no-jars"))
    for _ in range(300):
        details = json.loads(gateway.get("/readyz")[1])
        if details["spark"] == "failed":
            break
    assert (details["reads"], details["writes"]) == ("ready", "unavailable")
    assert "deltaport fetch-jars" in details["reason"]
    with AirportClient(gateway.address("grpc"), "lake") as client:
        assert client.scan("demo", "numbers").num_rows == 100


def test_a_wrong_setting_is_named_and_the_exit_code_is_2(tmp_path: Path) -> None:
    ended = run("check-config", SCANN__ENGINE="spark", cwd=tmp_path)
    assert ended.returncode == 2
    assert "DELTAPORT_SCANN__ENGINE: unknown environment variable" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_check_config_prints_what_is_in_force_without_secrets(tmp_path: Path) -> None:
    ended = run("check-config", TRANSACTIONS__SECRET="hunter2", SCAN__ENGINE="spark", cwd=tmp_path)
    assert ended.returncode == 0
    assert "engine: spark" in ended.stdout
    assert "hunter2" not in ended.stdout + ended.stderr


def test_tables_lists_what_is_there_and_what_is_broken(numbers: Path, tmp_path: Path) -> None:
    broken = tmp_path / "warehouse" / "demo" / "broken" / "_delta_log"
    broken.mkdir(parents=True)
    (broken / "00000000000000000000.json").write_text("not json")
    (tmp_path / "warehouse" / "bare").mkdir()
    ended = run("tables", CATALOGS__LAKE__WAREHOUSE=str(tmp_path / "warehouse"), cwd=tmp_path)
    assert ended.returncode == 0
    rows = {tuple(line.split()[:3]): line for line in ended.stdout.splitlines()}
    assert "100" in rows["lake", "demo", "numbers"]
    assert "broken: " in rows["lake", "demo", "broken"]
    assert "(no tables)" in rows["lake", "bare", "(no"]


def test_version_is_printed(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run("version", cwd=tmp_path).stdout)


def test_a_client_killed_in_the_middle_of_a_scan_is_not_noticed_by_others(
    serve: Callable[..., Running], tmp_path: Path
) -> None:
    wide = pa.table({"k": pa.array(range(300), pa.int64()), "text": ["x" * 200_000] * 300})
    write_deltalake(tmp_path / "warehouse" / "demo" / "wide", wide)
    gateway = serve(SCAN__CONCURRENT="1", SCAN__BATCH_BYTES="1000000")
    location = gateway.address("grpc")
    code = (
        "import sys; from tests.airport import AirportClient;"
        f"scan = AirportClient({location!r}, 'lake').open_scan('demo', 'wide');"
        "next(scan.chunks(scan.endpoints[0])); print('reading', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    reader.kill()
    reader.wait()
    for pipe in (reader.stdin, reader.stdout):
        pipe.close()  # type: ignore[union-attr]
    # The only slot is free again: this scan gets it.
    with AirportClient(location, "lake") as client:
        assert client.scan("demo", "wide", ["k"]).num_rows == 300


def test_sigterm_ends_the_process_in_spite_of_an_upload_that_stalls(
    serve: Callable[..., Running], numbers: Path, tmp_path: Path
) -> None:
    # A Spark that cannot start: without any, the table would be read-only and the upload be refused at once.
    gateway = serve(FLIGHT__DRAIN_SECONDS="1", SPARK__ENABLED="true", JARS_DIR=str(tmp_path / "no-jars"))
    rows = pa.record_batch({"k": pa.array([1], pa.int64())})
    with AirportClient(gateway.address("grpc"), "lake") as client, flight.connect(gateway.address("grpc")) as other:
        found = client.look_up_for_change("demo", "numbers")
        headers = [(b"airport-operation", b"insert"), (b"airport-catalog", b"lake")]
        sender, answers = other.do_exchange(found.descriptor, flight.FlightCallOptions(headers=headers))
        sender.begin(rows.schema)
        assert answers.schema is not None
        sender.write_batch(rows)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
        with pytest.raises((pa.ArrowException, flight.FlightError, OSError)):
            sender.close()
    assert DeltaTable(numbers).version() == 0


def test_a_dropped_table_is_brought_back_by_command(tmp_path: Path, numbers: Path) -> None:
    place = tmp_path / "warehouse" / "_dropped" / "20260102T030405Z-abcd" / "demo" / "numbers"
    place.parent.mkdir(parents=True)
    numbers.rename(place)
    settings = {"CATALOGS__LAKE__WAREHOUSE": str(tmp_path / "warehouse")}
    brought = run("undrop", "DEMO.numbers", **settings)
    assert brought.stdout == "demo.numbers, dropped at 2026-01-02 03:04:05+00:00, is back\n"
    assert numbers.is_dir()
    again = run("undrop", "demo.numbers", **settings)
    assert (again.returncode, again.stderr) == (1, "deltaport: no dropped table 'demo.numbers' is kept\n")
