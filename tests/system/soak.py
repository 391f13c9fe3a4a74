"""A gateway under work that is killed again and again: `python -m tests.system.soak`, or `make soak`.

Exits with 1 when the tables do not agree with what clients were told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gateway.lake.spark.engine import Profile, Spark
from gateway.settings import SparkSettings
from tests.system.process import Server
from tests.system.workload import SCHEMA, Ledger, Worker, judge, make_tables

_PATIENCE_SECONDS = 300


def run(warehouse: Path, folder: Path, clients: int, rounds: list[str], statements: int, seed: int) -> Ledger:
    """A round is so many statements and its end: `gateway` and `spark` name what is killed, `stop` ends well."""
    ledger = Ledger()
    gateway = _Restarted(warehouse, folder)
    workers = [Worker(number, lambda: gateway.server.location, ledger, seed) for number in range(1, clients + 1)]
    for worker in workers:
        worker.start()
    pause = random.Random(seed)  # noqa: S311 - a workload, not a secret
    try:
        for end in rounds:
            _wait_for(ledger, statements)
            time.sleep(pause.uniform(0, 2))
            gateway.end(end)
        _wait_for(ledger, statements)
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(_PATIENCE_SECONDS)
            if worker.is_alive():
                ledger.complain(f"{worker.name} hangs")
        gateway.server.stop()
    return ledger


class _Restarted:
    """A gateway that comes back whenever it ends; `server` is the one of now."""

    def __init__(self, warehouse: Path, folder: Path) -> None:
        self._warehouse = warehouse
        self._folder = folder
        self._starts = 0
        self.server = self._start()

    def end(self, how: str) -> None:
        if how == "spark":
            if (jvm := self.server.jvm_pid()) is not None:
                os.kill(jvm, signal.SIGKILL)
            return  # the gateway starts another one by itself
        if how == "gateway":
            self.server.kill()
        else:
            self.server.stop()
        self.server = self._start()

    def _start(self) -> Server:
        self._starts += 1
        return Server(self._warehouse, self._folder / str(self._starts), spark=True).__enter__()


def _wait_for(ledger: Ledger, statements: int) -> None:
    wanted, deadline = ledger.done + statements, time.monotonic() + _PATIENCE_SECONDS
    while ledger.done < wanted:
        if time.monotonic() > deadline:
            ledger.complain(f"fewer than {statements} statements were written in {_PATIENCE_SECONDS} s")
            return
        time.sleep(0.1)


def make_warehouse(root: Path, make: Callable[[object, Path], None] = make_tables) -> Path:
    """With a Spark of its own, which is gone afterwards."""
    warehouse = root / "warehouse"
    (warehouse / SCHEMA).mkdir(parents=True)
    conf = {"spark.sql.warehouse.dir": str(root / "spark-warehouse")}
    spark = Spark(SparkSettings(warm_up=False, conf=conf))
    spark.start()
    try:
        spark.wait_ready(_PATIENCE_SECONDS)
        with spark.session(Profile.LATENCY) as session:
            make(session, warehouse)
    finally:
        spark.stop()
    return warehouse


def main(
    kills: Annotated[int, typer.Option(min=1, help="How often something is killed or stopped.")] = 20,
    clients: Annotated[int, typer.Option(min=1)] = 8,
    seed: Annotated[int | None, typer.Option(help="To repeat a run; another one each time otherwise.")] = None,
) -> None:
    """Work, kill, start again, and prove that nothing was lost, doubled or half-written."""
    seed = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - a workload, not a secret
    typer.echo(f"seed {seed}")
    order = random.Random(seed)  # noqa: S311 - a workload, not a secret
    rounds = [order.choice(["gateway", "gateway", "spark", "stop"]) for _ in range(kills)]
    with tempfile.TemporaryDirectory(prefix="deltaport-soak-") as folder:
        warehouse = make_warehouse(Path(folder))
        ledger = run(warehouse, Path(folder), clients, rounds, 50, seed)
        wrong = judge(ledger, warehouse)
    for what, count in sorted(ledger.counts.items()):
        typer.echo(f"{what:20} {count}")
    for text in wrong[:20]:
        typer.echo(f"WRONG: {text}")
    typer.echo(f"{len(rounds)} rounds ({', '.join(rounds)}): {'nothing wrong' if not wrong else f'{len(wrong)} wrong'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
