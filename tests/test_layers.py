"""Imports point down: wire < catalog < lake < transactions < flight < ops, the leaves below all."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gateway"
ROOMS = ["telemetry", "access", "wire", "catalog", "lake", "transactions", "flight", "ops"]
LAKE = ["values", "sql", "tables", "spark", "commits", "pushdown", "reading", "writing", "adopting", "duck", "ddl"]
LEAVES = {"errors", "settings", ""}
ENGINES = ("pyspark", "delta", "deltalake", "py4j")
# These need Spark to load: what works on its rows, and what brings that together. All else is pure.
ON_SPARK = {
    "gateway.lake.adopting.adoption",
    "gateway.lake.adopting.numbering",
    "gateway.lake.ddl.altering",
    "gateway.lake.ddl.rewriting",
    "gateway.lake.ddl.spark_alter",
    "gateway.lake.delta_table",
    "gateway.lake.pushdown.spark",
    "gateway.lake.reading.own_reads",
    "gateway.lake.reading.reader",
    "gateway.lake.reading.spark_batches",
    "gateway.lake.reading.spark_reader",
    "gateway.lake.spark.columns",
    "gateway.lake.commits.delta_log",
    "gateway.lake.commits.fence",
    "gateway.lake.commits.reverting",
    "gateway.lake.writing.merge",
    "gateway.lake.writing.spark_keys",
    "gateway.lake.writing.undo",
    "gateway.lake.writing.violations",
    "gateway.lake.writing.writer",
    "gateway.ops.assembly",
    "gateway.ops.lifecycle",
}


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


# Told the modules' names, prints one line for each that asks for Spark: the imports that lead there.
LOAD_WITHOUT_SPARK = """
import importlib, sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j", "delta"):
            frame, chain = sys._getframe(1), [name]
            while frame is not None:
                if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
                    chain.append(frame.f_globals["__name__"])
                frame = frame.f_back
            raise ImportError(" -> ".join(reversed(chain)))

sys.meta_path.insert(0, NoSpark())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error)
"""


def test_pure_modules_load_without_spark() -> None:
    pure = sorted({_name(path) for path in MODULES} - ON_SPARK)
    command = [sys.executable, "-c", LOAD_WITHOUT_SPARK, *pure]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not printed, f"pure modules that load Spark:\n{printed}"


def test_modules_on_spark_are_there_and_need_it() -> None:
    tops = {_name(path): _loaded_names(path) for path in MODULES}
    needless = [name for name in sorted(ON_SPARK) if not tops[name] & (ON_SPARK | {"pyspark", "delta"})]
    assert not needless, f"pure by now, so no longer to be listed: {needless}"


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _loaded_names(path: Path) -> set[str]:
    """What a module imports when it is loaded: gateway's modules in full, others by their first name."""
    body = ast.parse(path.read_text()).body
    names = [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module]
    return {name if name.startswith("gateway.") else name.split(".", maxsplit=1)[0] for name in names}


def test_wire_loads_without_any_engine() -> None:
    code = (
        "import sys, gateway.wire.tickets, gateway.wire.listing, gateway.wire.messages;"
        f"print([name for name in {ENGINES!r} if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
