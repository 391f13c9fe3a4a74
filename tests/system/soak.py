"""A gateway under work that is killed again and again: `python -m tests.system.soak`, or `make soak`.

Says what it does as it goes, ends by itself, and judges what it has seen also
when it ran out of time. Exits with 1 when the tables do not agree with what
clients were told, or when it did not get through all of its rounds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gateway.lake.spark.engine import Profile, Spark
from gateway.settings import SparkSettings
from tests.system.process import SHORT_LIVED, Server
from tests.system.workload import SCHEMA, Ledger, Outcome, Worker, judge, make_tables

_PATIENCE_SECONDS = 300
_STATEMENTS = 50  # between two kills
# For a JVM that lives for a minute the thorough compiler would take more time than it saves.
_SPARK = {
    **SHORT_LIVED,
    "conf": {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
}


def run(
    warehouse: Path,
    folder: Path,
    clients: int,
    rounds: list[str],
    statements: int,
    seed: int,
    report: Callable[[str], None] = lambda _line: None,
    seconds: float = float("inf"),
) -> Ledger:
    """A round is so many statements and its end: `gateway` and `spark` name what is killed, `stop` ends well.

    No round begins after so many seconds; the ledger says how many did.
    """
    ledger, started = Ledger(), time.monotonic()
    gateway = _Restarted(warehouse, folder)
    workers = [Worker(number, lambda: gateway.server.location, ledger, seed) for number in range(1, clients + 1)]
    for worker in workers:
        worker.start()
    pause = random.Random(seed)  # noqa: S311 - a workload, not a secret
    try:
        for number, end in enumerate(rounds, 1):
            if time.monotonic() - started > seconds:
                ledger.complain(f"only {number - 1} of {len(rounds)} rounds were done in {seconds:.0f} s")
                break
            waited = _wait_for(ledger, statements)
            time.sleep(pause.uniform(0, 2))
            came_back = _timed(lambda end=end: gateway.end(end))  # type: ignore[misc]
            at = time.monotonic() - started
            done = f"{waited}; {_ENDS[end]}, {came_back:.1f} s until the port is open"
            report(f"{at:5.0f} s  round {number} of {len(rounds)}: {done}")
        report(f"{time.monotonic() - started:5.0f} s  last round: {_wait_for(ledger, statements)}")
    finally:
        for worker in workers:
            worker.stop()
        patience = time.monotonic() + _PATIENCE_SECONDS
        for worker in workers:
            worker.join(max(patience - time.monotonic(), 1))
            if worker.is_alive():
                ledger.complain(f"{worker.name} hangs")
        gateway.server.stop()
    return ledger


_ENDS = {"gateway": "gateway killed", "spark": "Spark killed", "stop": "gateway stopped"}


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
        return Server(self._warehouse, self._folder / str(self._starts), spark=_SPARK).__enter__()


def _wait_for(ledger: Ledger, statements: int) -> str:
    """Until so many more were done; says how long that took."""
    started, before = time.monotonic(), ledger.done
    first = 0.0
    while (done := ledger.done - before) < statements:
        waited = time.monotonic() - started
        if done and not first:
            first = waited
        if waited > _PATIENCE_SECONDS:
            ledger.complain(f"fewer than {statements} statements were written in {_PATIENCE_SECONDS} s")
            break
        time.sleep(0.1)
    return f"{done} statements in {time.monotonic() - started:.0f} s, the first after {first:.0f} s"


def _timed(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


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


def _summary(ledger: Ledger) -> list[str]:
    """One line per kind of statement: how many of them ended in which way."""
    kinds = sorted({what.rsplit(" ", 1)[0] for what in ledger.counts if what != "read"})
    outcomes = [outcome.value for outcome in Outcome]
    return [
        f"{'':12}" + "".join(f"{outcome:>10}" for outcome in outcomes),
        *(f"{kind:12}" + "".join(f"{ledger.counts[f'{kind} {each}']:10}" for each in outcomes) for kind in kinds),
        f"{'read':12}{ledger.counts['read']:10}",
    ]


def main(
    kills: Annotated[int, typer.Option(min=1, help="How often something is killed or stopped.")] = 20,
    clients: Annotated[int, typer.Option(min=1)] = 8,
    seed: Annotated[int | None, typer.Option(help="To repeat a run; another one each time otherwise.")] = None,
    minutes: Annotated[float, typer.Option(min=1, help="No round begins later; what was done is judged.")] = 90,
) -> None:
    """Work, kill, start again, and prove that nothing was lost, doubled or half-written."""
    seed = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 - a workload, not a secret
    order = random.Random(seed)  # noqa: S311 - a workload, not a secret
    rounds = [order.choice(["gateway", "gateway", "spark", "stop"]) for _ in range(kills)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early: nothing was judged"))  # and no gateway is left
    _say(f"seed {seed}, {clients} clients, {kills} rounds")
    with tempfile.TemporaryDirectory(prefix="deltaport-soak-") as folder:
        warehouse = make_warehouse(Path(folder))
        ledger = run(warehouse, Path(folder), clients, rounds, _STATEMENTS, seed, _say, minutes * 60)
        _say("reading the tables without the gateway")
        wrong = judge(ledger, warehouse)
    for line in _summary(ledger):
        _say(line)
    for text in wrong[:20]:
        _say(f"WRONG: {text}")
    ends = ", ".join(f"{count} x {_ENDS[end]}" for end, count in Counter(rounds).items())
    _say(f"{ledger.done} statements done; {ends}: {f'{len(wrong)} WRONG' if wrong else 'nothing wrong'}")
    sys.exit(1 if wrong else 0)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - also into a file, line by line


if __name__ == "__main__":
    typer.run(main)
