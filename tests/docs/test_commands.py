"""The commands that the documentation shows can be given as they stand.

Those that end by themselves within seconds are run. The others are listed
below, each with the reason, and are checked as far as that goes.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gateway.lake.spark.engine import Spark
from gateway.ops import cli
from gateway.ops.lifecycle import Gateway
from tests.conftest import settings_for
from tests.docs.pages import ROOT, all_blocks, blocks_of

# `make` sets up an environment or runs the whole suite: it only says what it would do.
# `deltaport` commands of this table: their arguments are parsed, and nothing is done.
NOT_RUN = {
    "serve": "runs until it is stopped; tests/system starts it",
    "adopt": "starts a Spark of its own; tests/system runs it",
    "undrop": "needs a dropped table; tests/lake/test_ddl.py has one",
}
# `docker` may not be there, and would build an image: its file is read.
COMMANDS = [(str(block), line) for block in all_blocks("sh") for line in block.text.splitlines()]


def commands(program: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for _, line in COMMANDS if shlex.split(line)[0] == program]


def test_every_command_is_of_a_program_that_is_checked() -> None:
    programs = {shlex.split(line)[0] for _, line in COMMANDS}
    assert programs == {"make", "deltaport", "curl", "docker"}


@pytest.mark.parametrize("arguments", commands("make"), ids=shlex.join)
def test_make_knows_what_it_is_asked(arguments: list[str]) -> None:
    asked = subprocess.run(
        ["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize("arguments", commands("deltaport"), ids=shlex.join)
def test_deltaport_does_what_it_is_asked(arguments: list[str], tmp_path: Path) -> None:
    name, *rest = arguments
    if name in NOT_RUN:
        group: Any = typer.main.get_command(cli.app)
        group.commands[name].make_context(name, rest)
        return
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    ran = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


@pytest.fixture
def reading_gateway(tmp_path: Path) -> Iterator[Gateway]:
    settings = settings_for(tmp_path, spark={"enabled": False})
    running = Gateway(settings, Spark(settings.spark))
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize("arguments", commands("curl"), ids=shlex.join)
def test_the_http_port_answers(arguments: list[str], reading_gateway: Gateway) -> None:
    [address] = arguments
    path = address.removeprefix("http://127.0.0.1:9815")
    with urllib.request.urlopen(f"{reading_gateway.http_address}{path}", timeout=60) as reply:  # noqa: S310
        assert reply.status == 200
        assert reply.read()


def test_docker_is_asked_for_services_that_are_composed() -> None:
    for arguments in commands("docker"):
        assert arguments == ["compose", "up", "--build"]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert services["gateway"]["build"] == "."
    assert "9090" in services["prometheus"]["ports"][0]


def test_serve_prints_what_the_readme_shows(tmp_path: Path) -> None:
    settings = {"FLIGHT__PORT": "0", "HTTP__PORT": "0", "SPARK__ENABLED": "false"}
    serving = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **{f"DELTAPORT_{key}": value for key, value in settings.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with serving:
        try:
            assert serving.stdout is not None
            shown = blocks_of("README.md", "text")[0].text
            printed = "".join(serving.stdout.readline() for _ in shown.splitlines())
        finally:
            serving.terminate()
    for scheme, port in (("grpc", 8815), ("http", 9815)):
        printed = re.sub(rf"({scheme}://127\.0\.0\.1):\d+", rf"\1:{port}", printed)
    assert printed == shown
