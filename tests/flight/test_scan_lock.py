"""A scan that cannot be closed at once holds up nobody else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Chunk, ScanReport
from gateway.errors import CancelledError
from gateway.flight.streams import ScanStreams
from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from gateway.settings import ScanSettings
from gateway.wire.tickets import TablePath, encode_path
from tests.airport import AirportClient
from tests.builders import Lake

IN_LAKE = flight.FlightCallOptions(headers=[(b"airport-catalog", b"lake")])
BATCH = pa.record_batch({"k": [1, 2]})


class Rows:
    """A stream of one batch."""

    def __init__(self) -> None:
        self.report = ScanReport()

    def __iter__(self) -> Iterator[Chunk]:
        yield Chunk(BATCH, 1.0)

    def close(self) -> None: ...


class Stuck(Rows):
    """A stream that takes its time, to read and to close."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closing, self.go_on = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Chunk]:
        self.go_on.wait(60)
        yield from super().__iter__()

    def close(self) -> None:
        self.is_closing.set()
        self.go_on.wait(60)


@dataclass(frozen=True)
class Asked:
    """A scan of this stream, whose client may be gone."""

    stream: Rows
    call: Call = field(default_factory=Call)
    log_fields: dict[str, object] = field(default_factory=dict)

    def open(self) -> Rows:
        return self.stream


@pytest.fixture
def streams() -> Iterator[ScanStreams]:
    running = ScanStreams(ScanSettings())
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize("ended_by", ["watch", "close_all"])
def test_other_scans_begin_and_end_while_one_is_being_closed(streams: ScanStreams, ended_by: str) -> None:
    stuck, gone = Stuck(), Call(is_cancelled=lambda: ended_by == "watch")
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(lambda: list(streams.stream(Asked(stuck, gone))))
        try:
            wait_until(lambda: len(streams) == 1)
            if ended_by == "close_all":
                threads.submit(streams.close_all, "the test says so")
            assert stuck.is_closing.wait(30)
            other = threads.submit(lambda: list(streams.stream(Asked(Rows()))))
            assert other.result(timeout=30)[0][0].equals(BATCH)
            assert not streams.is_scanning("another")
        finally:
            stuck.go_on.set()
        with pytest.raises(CancelledError):
            first.result(timeout=30)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_reads_go_on_while_the_jvm_does_not_answer_and_a_scan_through_it_is_cancelled(
    start_gateway: Callable[..., Gateway], lake: Lake, lake_spark: Spark
) -> None:
    lake.numbers("direct", 10)
    lake.create("widened", "k INT", properties={"delta.enableTypeWidening": "true"})
    lake.sql("ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "widened")
    lake.fill("widened", "SELECT /*+ REPARTITION(20) */ id FROM range(0, 200000)")
    gateway = start_gateway(lake.warehouse, scan={"batch_rows": 100})
    streams = gateway.service.streams
    jvm: Any = lake_spark.jvm
    with AirportClient(gateway.location, "lake") as client, flight.connect(gateway.location) as connection:
        direct = lambda: client.scan(lake.schema, "direct", ["k"]).rows()  # noqa: E731
        assert len(direct()) == 10
        ticket = connection.get_flight_info(encode_path(TablePath(lake.schema, "widened")), IN_LAKE).endpoints[0].ticket
        scan = connection.do_get(ticket)
        assert scan.read_chunk().data.num_rows
        os.kill(jvm.pid, signal.SIGSTOP)
        try:
            scan.cancel()
            wait_until(lambda: len(streams) == 0)
            unplanned = connection.do_get(ticket)
            wait_until(lambda: len(streams) == 1)
            unplanned.cancel()
            with ThreadPoolExecutor(1) as others:
                for _ in range(3):
                    assert len(others.submit(direct).result(timeout=30)) == 10
            wait_until(lambda: len(streams) == 0)
        finally:
            os.kill(jvm.pid, signal.SIGCONT)
        assert len(client.scan(lake.schema, "widened", ["k"]).rows()) == 200_000
