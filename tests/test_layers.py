"""Imports point down: wire < catalog < lake < transactions < flight < ops, the leaves below all."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gateway"
ROOMS = ["telemetry", "wire", "catalog", "lake", "transactions", "flight", "ops"]
LAKE = ["values", "sql", "tables", "spark", "commits", "pushdown", "reading", "writing", "adopting", "casts", "ddl"]
LEAVES = {"errors", "settings", ""}
ENGINES = ("pyspark", "delta", "deltalake", "py4j")


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


def _imports(path: Path) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, [alias.name for alias in node.names]))
    return found


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if _room(path) != "__main__")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = _room(path)
    for module, names in _imports(path):
        if module.split(".")[0] != "gateway":
            continue
        parts = module.split(".")
        room = parts[1] if len(parts) > 1 else ""
        if room in LEAVES:
            continue
        assert here not in LEAVES, f"the leaf {here} imports {module}"
        assert ROOMS.index(room) <= ROOMS.index(here), f"{here} imports {module}, which is above it"
        if room != here:
            private = [name for name in names if name.startswith("_")]
            assert not private, f"{here} takes {private} out of {module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("lake/*/*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down_inside_the_lake(path: Path) -> None:
    here = path.parent.name
    for module, names in _imports(path):
        parts = module.split(".")
        if parts[:2] != ["gateway", "lake"]:
            continue
        assert parts[2] in LAKE, f"{here} imports {module}, which is above it"
        assert LAKE.index(parts[2]) <= LAKE.index(here), f"{here} imports {module}, which is above it"
        if parts[2] != here:
            private = [name for name in names if name.startswith("_")]
            assert not private, f"{here} takes {private} out of {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_lake_knows_the_engines(path: Path) -> None:
    if _room(path) == "lake":
        return
    assert not [module for module, _ in _imports(path) if module.split(".")[0] in ENGINES]


def test_wire_loads_without_any_engine() -> None:
    code = (
        "import sys, gateway.wire.tickets, gateway.wire.listing, gateway.wire.messages;"
        f"print([name for name in {ENGINES!r} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
