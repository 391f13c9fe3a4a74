"""The demo warehouse, as the quick start uses it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.lake.demo import make_demo
from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.conftest import CATALOG


def test_the_demo_can_be_read_as_of_now_by_version_and_by_time(
    lake_spark: Spark, start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    made: list[str] = []
    make_demo(lake_spark, tmp_path, "_rowid", made.append)
    assert made == ["demo.customers", "demo.orders", "demo.events"]
    now = datetime.now(UTC)
    with AirportClient(start_gateway(tmp_path).location, CATALOG) as client:

        def events(at: tuple[str, str] | None = None) -> int:
            return client.scan("demo", "events", ["kind"], at=at).table.num_rows

        assert client.scan("demo", "orders", ["order_id"]).table.num_rows == 100_000
        assert events() == 6_000 - 60
        assert events(("VERSION", "2")) == 4_000
        counts = [events(("TIMESTAMP", (now - timedelta(days=days)).isoformat())) for days in (0, 1, 2, 3)]
        assert counts == [5_940, 6_000, 4_000, 2_000]
