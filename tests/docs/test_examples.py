"""SQL, Python and Go of every page run, in their order, against a gateway over the demo tables.

A block of text right behind an example is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.ops.lifecycle import Gateway
from tests.docs.pages import PAGES, ROOT, Block, all_blocks, blocks_of
from tests.docs.sql_session import SqlSession

# As the pages write it.
FLIGHT = "127.0.0.1:8815"
GO_MODULE = ROOT / "tests" / "go"


def pages_with(*languages: str) -> list[str]:
    return [page for page in PAGES if blocks_of(page, *languages)]


@pytest.mark.parametrize("page", pages_with("sql", "python"))
def test_the_examples_of_a_page_run_and_print_what_it_shows(page: str, demo_gateway: Gateway) -> None:
    namespace: dict[str, Any] = {"__name__": "example"}
    wrong = []
    try:
        with SqlSession(demo_gateway.location) as session:
            for block in blocks_of(page, "sql", "python"):
                text = block.text.replace(f"grpc://{FLIGHT}", demo_gateway.location)
                printed = _run_sql(session, text) if block.language == "sql" else _run_python(text, block, namespace)
                if block.output is not None and printed.strip() != block.output.strip():
                    wrong.append(f"{block} prints\n{printed}")
    finally:
        if (client := namespace.get("client")) is not None:
            client.close()
    assert not wrong, "\n".join(wrong)


def _run_sql(session: SqlSession, text: str) -> str:
    """What the last statement prints."""
    printed = [session.run(statement) for statement in session.statements(text)]
    return printed[-1] or ""


def _run_python(text: str, block: Block, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, str(block), "exec"), namespace)  # noqa: S102  the project's own pages
    return printed.getvalue()


@pytest.mark.parametrize("block", all_blocks("go"), ids=str)
def test_go_examples_run_and_print_what_the_page_shows(block: Block, demo_gateway: Gateway, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go here")
    folder = tmp_path / "example"
    folder.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO_MODULE / name, folder)
    source = block.text.replace(FLIGHT, demo_gateway.location.removeprefix("grpc://"))
    (folder / "main.go").write_text(source, encoding="utf-8")
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}

    def run(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, cwd=folder, env=environ, capture_output=True, text=True, timeout=seconds, check=False
        )

    listed = run(go, "list", "-deps", ".", seconds=900)
    if listed.returncode:
        pytest.skip(f"the Go modules cannot be had: {listed.stderr.strip().splitlines()[-1]}")
    built = run(go, "build", "-o", "example", ".", seconds=900)
    assert built.returncode == 0, built.stderr
    ran = run("./example", seconds=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == block.output
