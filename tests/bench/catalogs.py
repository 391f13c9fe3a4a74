"""Starting the gateway over many tables, and listing them."""

from __future__ import annotations

import time
from pathlib import Path

from tests.airport import AirportClient, requests
from tests.airport.replies import decode_listing
from tests.bench.data import MANY_TABLES, Data
from tests.bench.report import Results, Single
from tests.bench.timing import Timing, repeat, timed
from tests.system.process import CATALOG, Server

_STARTS = 3
_LISTINGS = 100


def measure_start(data: Data, folder: Path, results: Results) -> None:
    """From the making of the process until the port answers, with Spark starting behind it."""
    opened, answered = [], []
    for number in range(_STARTS):
        with Server(data.many, folder / f"start-{number}", spark=True) as server, server.attach() as client:
            opened.append(time.monotonic() - server.started)
            reply = _list(client)
            answered.append(time.monotonic() - server.started)
            _check(client, reply)
    note = f"median of {_STARTS} starts, Spark starting meanwhile"
    results.add(
        Single("start.port", "process start until the port is open", Timing(tuple(opened)).p50, "s", note),
        Single(
            "start.answered",
            "process start until list_schemas is answered",
            Timing(tuple(answered)).p50,
            "s",
            f"{MANY_TABLES:,} tables; slowest {max(answered):.2f} s",
        ),
    )


def measure_listing(data: Data, folder: Path, results: Results) -> None:
    with Server(data.many, folder / "listing") as server, server.attach() as client:
        first = timed(lambda: _list(client))
        timing = repeat(_LISTINGS, lambda: _list(client))
        reply = _list(client)
        _check(client, reply)
    title = f"list_schemas of {MANY_TABLES:,} tables"
    results.add(Single("listing.first", f"{title}, first call", first * 1000, "ms", f"{len(reply):,} bytes"))
    results.add_latency("listing", title, timing)


def _list(client: AirportClient) -> bytes:
    return client.catalog_action("list_schemas", requests.list_schemas(CATALOG))


def _check(client: AirportClient, reply: bytes) -> None:
    listed = sum(len(client.open_contents(entry.name, entry.contents)) for entry in decode_listing(reply).schemas)
    if listed != MANY_TABLES:
        raise RuntimeError(f"{listed:,} tables were listed where {MANY_TABLES:,} were expected")
