"""Counts what one SELECT and one UPDATE pass through: `python -m tests.walks`.

A module counts when one of its functions is entered between the RPC and its answer,
a crossing when a function calls one of another top-level room; each pair of functions
counts once. The SELECT is the action `endpoints` and DoGet, the UPDATE is DoExchange.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from pyarrow import flight

import gateway
from gateway.flight import server
from gateway.lake.spark.engine import Profile
from gateway.lake.sql.quoting import table_at
from gateway.settings import LogSettings
from gateway.telemetry.logging import configure_logging
from tests.airport import AirportClient
from tests.bench.writes import PROPERTIES, running
from tests.system.process import CATALOG

_PACKAGE = f"{Path(gateway.__file__).parent}/"


class Walk:
    """What was entered since it began."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.crossings: set[tuple[str, str, str, str]] = set()

    def trace(self, frame: FrameType, event: str, _argument: object) -> None:
        entered = _module(frame)
        if event != "call" or entered is None:
            return
        self.modules.add(entered)
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        if caller is not None and (origin := _module(caller)) is not None and _room(origin) != _room(entered):
            self.crossings.add((origin, caller.f_code.co_name, entered, frame.f_code.co_name))

    def print_as(self, name: str) -> None:
        print(f"{name}: {len(self.modules)} modules, {len(self.crossings)} crossings")  # noqa: T201
        for module in sorted(self.modules):
            print(f"  {module}")  # noqa: T201


def _module(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
    return file.removeprefix(_PACKAGE).removesuffix(".py").replace("/", ".") if file.startswith(_PACKAGE) else None


def _room(module: str) -> str:
    return module.partition(".")[0]


class TracedServer(server.FlightServer):
    """Flight's threads are not Python's own, so each call sets and ends its own trace."""

    walk: Walk | None = None

    def do_action(self, context: Any, action: flight.Action) -> Any:
        if action.type != "endpoints":
            return super().do_action(context, action)
        return self._traced(lambda: super(TracedServer, self).do_action(context, action))

    def do_get(self, context: Any, ticket: flight.Ticket) -> Any:
        return self._traced(lambda: super(TracedServer, self).do_get(context, ticket))

    def do_exchange(self, *call: Any) -> None:
        self._traced(lambda: super(TracedServer, self).do_exchange(*call))

    def _streaming(self, *call: Any) -> Iterator[Any]:
        batches = super()._streaming(*call)
        while (batch := self._traced(lambda: next(batches, None))) is not None:
            yield batch

    def _traced(self, work: Callable[[], Any]) -> Any:
        if TracedServer.walk is not None:
            sys.setprofile(TracedServer.walk.trace)
        try:
            return work()
        finally:
            sys.setprofile(None)


def _walked(name: str, statement: Callable[[], object]) -> None:
    statement()  # what is loaded or made once is not part of the walk
    TracedServer.walk = Walk()
    statement()
    TracedServer.walk.print_as(name)
    TracedServer.walk = None


def main() -> None:
    from gateway.ops import assembly

    configure_logging(LogSettings(level="error"))
    assembly.FlightServer = TracedServer  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as (spark, gateway, warehouse):
        with spark.session(Profile.LATENCY) as session:
            columns = "(_rowid BIGINT, k BIGINT, v STRING)"
            session.sql(f"CREATE TABLE {table_at(str(warehouse / 'w' / 't'))} {columns} USING delta {PROPERTIES}")
        with AirportClient(gateway.location, CATALOG) as client:
            client.insert("w", "t", pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}).to_batches())
            change = pa.table({"v": ["z"], "rowid": pa.array([1], pa.int64())}).to_batches()
            _walked("SELECT", lambda: client.scan("w", "t"))
            _walked("UPDATE", lambda: client.update("w", "t", change, sets=["v"]))


if __name__ == "__main__":
    main()
