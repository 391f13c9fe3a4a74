"""Statements that are sent again under one idempotency key, over the service with a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.flight.writing import JsonClient, batch, numbers, refused, rows_of, version_of


@pytest.fixture
def json(gateway: Gateway, lake: Lake) -> Iterator[JsonClient]:
    numbers(lake)
    client = JsonClient(gateway.location, lake.schema)
    yield client
    client.close()


def test_a_statement_sent_again_is_written_once_also_by_the_next_gateway(
    json: JsonClient, client: AirportClient, lake: Lake, warehouse: Path, start_gateway: Callable[..., Gateway]
) -> None:
    one = batch(k=[10], v=["new"])
    first = json.insert(one, idempotency_key="a", returning=True)
    assert json.insert(one, idempotency_key="a", returning=True) == first
    change = {"idempotency_key": "b", "returning": True}
    updated = json.update([0], batch(v=["changed"]), **change)
    deleted = json.delete([1], idempotency_key="c", returning=True)
    version = version_of(lake)
    assert version == 3
    restarted = JsonClient(start_gateway(warehouse).location, lake.schema)
    assert restarted.insert(one, idempotency_key="a", returning=True) == first
    assert restarted.update([0], batch(v=["changed"]), **change) == updated
    assert restarted.delete([1], idempotency_key="c", returning=True) == deleted
    assert deleted["returning_data"] == [{"k": 1, "v": "v1", "rowid": 1}]
    restarted.close()
    assert version_of(lake) == version
    assert rows_of(client, lake) == [(0, "changed", 0), (2, "v2", 2), (3, "v3", 3), (10, "new", 4)]


def test_a_key_is_for_one_statement(json: JsonClient, lake: Lake) -> None:
    json.insert(batch(k=[10], v=["new"]), idempotency_key="a")
    text = refused(lambda: json.insert(batch(k=[11], v=["other"]), idempotency_key="a"))
    assert "idempotency key 'a' was used with another statement" in text
    assert "printable" in refused(lambda: json.delete([0], idempotency_key="x" * 201))
    assert version_of(lake) == 1
