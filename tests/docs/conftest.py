"""A gateway over demo tables, as `make serve` runs one; each page gets tables of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.lake.demo import make_demo
from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway


@pytest.fixture(scope="session")
def demo_warehouse(lake_spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    make_demo(lake_spark, folder, "_rowid", lambda _table: None)
    return folder


@pytest.fixture
def demo_gateway(demo_warehouse: Path, start_gateway: Callable[..., Gateway], tmp_path: Path) -> Gateway:
    own = tmp_path / "warehouse"
    shutil.copytree(demo_warehouse, own)
    return start_gateway(own, catalogs={"lake__default": True})
