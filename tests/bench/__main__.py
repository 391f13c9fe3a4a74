"""Measures the gateway: `python -m tests.bench`, or `make bench`.

Exits with 1 when a bar is short. The bars are meant for the default number of
rows on a machine that does little else; fewer rows are for a quick look.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.lake.spark.engine import Profile
from gateway.settings import LogSettings
from gateway.telemetry.logging import configure_logging
from tests.bench import report
from tests.bench.alterations import measure_alterations
from tests.bench.catalogs import measure_listing, measure_start
from tests.bench.concurrency import measure_concurrency
from tests.bench.data import Data, locate, make_large, make_loaded, make_many
from tests.bench.engines import spark_session
from tests.bench.reads import measure_lookups, measure_memory, measure_scans, measure_spark, measure_vectors
from tests.bench.writes import measure_writes

Group = Callable[[Data, Path, report.Results], None]

# In this order: Spark comes last, so that its JVM is not there while others are measured.
GROUPS: dict[str, Group] = {
    "start": measure_start,
    "listing": measure_listing,
    "scans": measure_scans,
    "lookups": measure_lookups,
    "vectors": measure_vectors,
    "memory": measure_memory,
    "spark": measure_spark,
    "writes": measure_writes,
    "alter": measure_alterations,
    "concurrency": measure_concurrency,
}


def main(
    rows: Annotated[int, typer.Option(min=1_000, help="Rows of the large table.")] = 10_000_000,
    keep: Annotated[
        Path | None, typer.Option(help="Where tables are made and kept; else a folder for temporary files.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(GROUPS)}; may be repeated.")] = None,
    json: Annotated[Path | None, typer.Option(help="Where the numbers go; else bench-results/<time>.json.")] = None,
) -> None:
    """Measure the gateway and compare it with deltalake in process and with Spark."""
    chosen = only or list(GROUPS)
    if unknown := [name for name in chosen if name not in GROUPS]:
        raise typer.BadParameter(f"{unknown[0]} is not one of {', '.join(GROUPS)}", param_hint="--only")
    configure_logging(LogSettings(format="json", level="error"))
    folder = (keep or Path(tempfile.gettempdir()) / "deltaport-bench").resolve()
    runs = folder / f"run-{os.getpid()}"
    runs.mkdir(parents=True)
    console, progress = report.console(), Console(stderr=True)
    data = _make_data(locate(folder, rows), folder, progress)
    results = report.Results()
    path = json or report.default_path()
    for name, measure in GROUPS.items():
        if name in chosen:
            progress.print(f"Measuring: {name}")
            measure(data, runs / name, results)
            report.save(results, rows, path)  # a run that is ended keeps what it has measured
    all_hold = report.show(results, console)
    console.print(f"\n{rows:,} rows in {len(data.files())} files; numbers in {path}", highlight=False, soft_wrap=True)
    shutil.rmtree(runs)
    sys.exit(0 if all_hold else 1)


def _make_data(data: Data, folder: Path, progress: Console) -> Data:
    if not (data.large.exists() and data.loaded.exists()):
        progress.print(f"Making the large tables, {data.rows:,} rows each")
        with spark_session(folder, Profile.THROUGHPUT) as session:
            make_large(data, session)
            make_loaded(data, session)
    if not data.many.exists():
        progress.print("Making the small tables")
        make_many(data)
    return data


if __name__ == "__main__":
    typer.run(main)
