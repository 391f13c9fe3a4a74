"""The contract as a Go program sees it: tests/go, with arrow-go and grpc-go, against a gateway over real tables.

The program is built into a temporary folder, its modules come from Go's own
cache or its proxy. Without Go, or without the modules, there is nothing to run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.ops.lifecycle import Gateway
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import numbers

SOURCES = Path(__file__).parent.parent / "go"
TESTS = re.findall(r"^func (Test\w+)\(", (SOURCES / "contract_test.go").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="session")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program. A build with nothing in Go's cache takes over a minute of processor time."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go here")
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *arguments], cwd=SOURCES, env=environ, capture_output=True, text=True, timeout=900, check=False
        )

    listed = run("list", "-mod=readonly", "-deps", "-test", ".")
    if listed.returncode:
        pytest.skip(f"the Go modules cannot be had: {listed.stderr.strip().splitlines()[-1]}")
    program = tmp_path_factory.mktemp("go") / "contract"
    built = run("test", "-mod=readonly", "-c", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr
    return program


@pytest.mark.parametrize("test", TESTS)
def test_contract(contract: Path, gateway: Gateway, lake: Lake, test: str) -> None:
    numbers(lake)
    if test == "TestErrors":
        lake.create("plain", "k BIGINT, v STRING")
        numbers(lake, "log", delta__appendOnly="true")
        numbers(lake, "future")
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["fromTheFuture"]}
        commit = lake.path("future") / "_delta_log" / f"{1:020d}.json"
        commit.write_text(json.dumps({"protocol": protocol}) + "\n")
    gateway.service.lake.catalogs.get(CATALOG).refresh()  # a schema that was never listed is not found
    environ = {"CONTRACT_ADDRESS": gateway.location.removeprefix("grpc://"), "CONTRACT_SCHEMA": lake.schema}
    ran = subprocess.run(
        [contract, "-test.v", "-test.run", f"^{test}$"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"--- PASS: {test}" in ran.stdout
