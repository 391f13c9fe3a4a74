"""What was measured, what is asked for, and how both are shown and kept.

A duel times the gateway against a rival; a single figure stands alone. Both
end up as numbers under keys, and bars are a list that names keys: a new
promise is one more line in `BARS`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from tests.bench.timing import Timing

_WIDTH = 160
_RIVALS = {
    "deltalake": "deltalake in process",
    "spark": "Spark's toArrow",
    "plain": "plain Spark by hand",
    "tuned": "tuned Spark by hand",
    "append": "Spark's append",
    "cast": "Spark's own cast by hand",
    "unsynced": "without fsync",
    "clean": "without vectors",
}


@dataclass(frozen=True)
class Duel:
    """The same query by the gateway and by a rival. With `rows` it is told as rows per second, else in ms."""

    key: str
    title: str
    rival: str
    gateway: Timing
    other: Timing
    rows: int | None = None

    @property
    def speed(self) -> float:
        """How fast the gateway is as a multiple of the rival."""
        return self.other.p50 / self.gateway.p50

    def numbers(self) -> dict[str, float]:
        """`speed` is above 1 where the gateway wins, `time` is its inverse."""
        name = f"{self.key}.{self.rival}"
        return {f"{name}.speed": self.speed, f"{name}.time": 1 / self.speed}


@dataclass(frozen=True)
class Single:
    key: str
    title: str
    value: float
    unit: str
    note: str = ""


@dataclass
class Results:
    """Filled by the groups of measurements, in the order they run."""

    duels: list[Duel] = field(default_factory=list)
    singles: list[Single] = field(default_factory=list)

    def add(self, *measured: Duel | Single) -> None:
        for each in measured:
            if isinstance(each, Duel):
                self.duels.append(each)
            else:
                self.singles.append(each)

    def add_latency(self, key: str, title: str, timing: Timing, note: str = "") -> None:
        """Two figures, `key.p50` and `key.p99`, shown as one."""
        self.add(Single(f"{key}.p50", f"{title}, p50 of {len(timing.seconds)}", timing.p50 * 1000, "ms", note))
        self.add(Single(f"{key}.p99", f"{title}, p99", timing.p99 * 1000, "ms"))

    def numbers(self) -> dict[str, float]:
        found = {single.key: single.value for single in self.singles}
        for duel in self.duels:
            found.update(duel.numbers())
        return found


@dataclass(frozen=True)
class Bar:
    """A promise: the number under `key` is at least or at most the limit. A goal is hoped for, not asked for."""

    title: str
    key: str
    comparison: Literal["at least", "at most"]
    limit: float
    unit: str = "x"
    goal: float | None = None

    def holds(self, measured: float) -> bool:
        return measured >= self.limit if self.comparison == "at least" else measured <= self.limit

    def says(self) -> str:
        goal = "" if self.goal is None else f" (goal {_number(self.goal, self.unit)})"
        return f"{self.comparison} {_number(self.limit, self.unit)}{goal}"


BARS = (
    Bar("full scan: speed, deltalake in process being 1", "scan.full.deltalake.speed", "at least", 0.4, goal=0.5),
    Bar("full scan: speed, Spark's toArrow being 1", "scan.full.spark.speed", "at least", 5),
    Bar("point lookup: p50, deltalake in process being 1", "lookup.deltalake.time", "at most", 2.5),
    Bar("data files a point lookup opens", "lookup.files_opened", "at most", 1, "files"),
    Bar("data files read by a point lookup, seen from outside", "lookup.files_touched", "at most", 1, "files"),
    Bar("full scan, vectors on all files: time, without being 1", "vectors.full.clean.time", "at most", 1.5),
    Bar("2 columns, vectors on all files: time, without being 1", "vectors.two_columns.clean.time", "at most", 1.5),
    Bar("lookup, vectors on all files: time, without being 1", "vectors.lookup.clean.time", "at most", 1.5),
    Bar("memory growth during a full scan", "memory.growth", "at most", 300, "MB"),
    Bar("memory growth with a slow reader", "memory.growth_slow", "at most", 300, "MB"),
    Bar("list_schemas answered after process start", "start.answered", "at most", 3, "s"),
    Bar("INSERT of one row: speed, a plain session by hand being 1", "write.insert.plain.speed", "at least", 2.5),
    Bar("UPDATE of one row: speed, a plain session by hand being 1", "write.update.plain.speed", "at least", 2),
    Bar("INSERT of one row: time, a tuned session by hand being 1", "write.insert.tuned.time", "at most", 1.4),
    Bar("UPDATE of one row: time, a tuned session by hand being 1", "write.update.tuned.time", "at most", 1.4),
    Bar("UPDATE of 1,000 scattered rows: time, by hand being 1", "write.large_scattered.tuned.time", "at most", 1.3),
    Bar("bulk INSERT: time, Spark's append being 1", "write.bulk.append.time", "at most", 2),
    Bar("ALTER of BIGINTs to VARCHAR: time, Spark's own cast being 1", "alter.cast.cast.time", "at most", 2),
    Bar("memory growth during a bulk INSERT", "write.memory", "at most", 400, "MB"),
    Bar("32 INSERT clients: statements/s, one client being 1", "writers.insert_32.speed", "at least", 12),
    Bar("32 INSERT clients: p99, one client being 1", "writers.insert_32.p99", "at most", 4),
    Bar("32 INSERT clients: refused", "writers.insert_32.failures", "at most", 0, "statements"),
    Bar("16 UPDATE clients: statements/s, one client being 1", "writers.update.speed", "at least", 6),
    Bar("16 UPDATE clients: refused", "writers.update.failures", "at most", 0, "statements"),
    Bar("point lookup while 16 clients write: p50, idle being 1", "writers.lookup", "at most", 4),
)


def console() -> Console:
    """Standard output; where it is no terminal, wide enough for the tables."""
    out = Console()
    return out if out.is_terminal else Console(width=_WIDTH)


def show(results: Results, console: Console) -> bool:
    """Print both tables; False when a bar is short. Bars whose measurement did not run are left out."""
    console.print(_measurements(results))
    shown = Table(title="Bars", title_justify="left", box=None, pad_edge=False)
    shown.add_column("bar")
    shown.add_column("measured", justify="right")
    shown.add_column("asked for")
    shown.add_column("")
    all_hold = True
    for bar, measured, holds in _judged(results):
        verdict = "[green]holds[/]" if holds else "[red]short[/]"
        shown.add_row(bar.title, _number(measured, bar.unit), bar.says(), verdict)
        all_hold = all_hold and holds
    console.print()
    console.print(shown)
    return all_hold


def save(results: Results, rows: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(results, rows), indent=2) + "\n", encoding="utf-8")


def default_path() -> Path:
    return Path("bench-results") / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}.json"


def _judged(results: Results) -> Iterator[tuple[Bar, float, bool]]:
    numbers = results.numbers()
    for bar in BARS:
        if (measured := numbers.get(bar.key)) is not None:
            yield bar, measured, bar.holds(measured)


def _document(results: Results, rows: int) -> dict[str, Any]:
    return {
        "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "rows": rows,
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("deltalake", "pyarrow", "pyspark")},
        },
        "numbers": results.numbers(),
        "bars": [{**asdict(bar), "measured": measured, "holds": holds} for bar, measured, holds in _judged(results)],
        "singles": [asdict(single) for single in results.singles],
        "duels": [asdict(duel) for duel in results.duels],
    }


def _measurements(results: Results) -> Table:
    shown = Table(title="Measurements", title_justify="left", box=None, pad_edge=False)
    shown.add_column("")
    shown.add_column("gateway", justify="right")
    shown.add_column("rivals", justify="right")
    shown.add_column("")
    for key in dict.fromkeys(duel.key for duel in results.duels):
        by_rival = {duel.rival: duel for duel in results.duels if duel.key == key}
        first = next(iter(by_rival.values()))
        rivals = "\n".join(f"{_RIVALS[name]} {_rival(duel)}" for name, duel in by_rival.items())
        noise = f"slowest round {first.gateway.spread:.1f}x the fastest" if first.rows else ""
        shown.add_row(first.title, _speed(first, first.gateway), rivals, noise)
    for single in results.singles:
        shown.add_row(single.title, _number(single.value, single.unit), "", single.note)
    return shown


def _rival(duel: Duel) -> str:
    """What the rival did, and how fast the gateway is in its terms."""
    return f"{_speed(duel, duel.other)} ({duel.speed:.2f}x)"


def _speed(duel: Duel, timing: Timing) -> str:
    if duel.rows is None:
        return f"{timing.p50 * 1000:.1f} / {timing.p99 * 1000:.1f} ms"
    return f"{duel.rows / timing.p50 / 1e6:.2f} M rows/s"


def _number(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}x"
    digits = 2 if unit == "s" else 1
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") + f" {unit}"
