"""Random uploads in random disguises: the table, the counts and the returned rows follow a model of plain Python."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from gateway.catalog.names import TableName
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.conftest import MemoryService
from tests.flight.memory_changes import BatchForms
from tests.flight.test_nasty import Outcome
from tests.flight.writing import JsonClient, batch, numbers
from tests.nasty import DISGUISES

SIZES = st.lists(st.integers(0, 4), max_size=5)
TEXTS = st.none() | st.sampled_from(["", "a", "é", "x" * 300])
NAMES = st.sampled_from(sorted(DISGUISES))
RELAXED = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def pieces(data: st.DataObject, sizes: list[int], ids: list[int] | None = None) -> list[pa.RecordBatch]:
    """Batches of these sizes: new rows, or new values for rows with ids among these."""
    made = []
    for size in sizes:
        values = data.draw(st.lists(TEXTS, min_size=size, max_size=size))
        if ids is None:
            made.append(batch(k=data.draw(st.lists(st.integers(0, 99), min_size=size, max_size=size)), v=values))
        else:
            chosen = data.draw(st.lists(st.sampled_from(ids), min_size=size, max_size=size))
            made.append(batch(v=values, rowid=chosen))
    return made


def rows_in(uploaded: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [each for piece in uploaded for each in piece.to_pylist()]


def pairs(rows: list[dict[str, Any]] | None) -> list[str]:
    """What was returned of `k` and `v`, in an order that any two lists of the same rows share."""
    assert rows is not None
    lower = [{name.lower(): value for name, value in each.items()} for each in rows]
    return sorted(repr((each.get("k"), each["v"])) for each in lower)


class Model:
    """The rows by id, and what each statement should answer."""

    def __init__(self, rows: dict[int, tuple[int, str | None]]) -> None:
        self.rows = rows
        self.next_id = max(rows, default=-1) + 1

    def insert(self, sent: list[dict[str, Any]]) -> int:
        for each in sent:
            self.rows[self.next_id] = each["k"], each["v"]
            self.next_id += 1
        return len(sent)

    def update(self, sent: list[dict[str, Any]]) -> int:
        known = [each for each in sent if each["rowid"] in self.rows]
        for each in known:
            self.rows[each["rowid"]] = self.rows[each["rowid"]][0], each["v"]
        return len({each["rowid"] for each in known})

    def delete(self, row_ids: list[int]) -> int:
        gone = set(row_ids) & self.rows.keys()
        for row_id in gone:
            del self.rows[row_id]
        return len(gone)


# Not made smaller when it fails: each try takes seconds.
@settings(max_examples=8, phases=[Phase.generate], **RELAXED)
@given(st.data())
def test_any_sequence_of_uploads_does_what_plain_python_does(gateway: Gateway, lake: Lake, data: st.DataObject) -> None:
    table = f"t{len(list((lake.warehouse / lake.schema).glob('*')))}"
    numbers(lake, table, rows=3)
    gateway.service.lake.catalogs.get(CATALOG).refresh()
    model = Model({key: (key, f"v{key}") for key in range(3)})
    with AirportClient(gateway.location, CATALOG) as client:
        for operation in data.draw(st.permutations(["insert", "update", "delete"])):
            client.disguise = DISGUISES[data.draw(NAMES)]
            returning = data.draw(st.booleans())
            if operation == "insert":
                uploaded = pieces(data, data.draw(SIZES))
                outcome = client.insert(lake.schema, table, uploaded, returning=returning)
                assert outcome.total_changed == model.insert(rows_in(uploaded))
                if returning:
                    assert pairs(outcome.returned.to_pylist()) == pairs(rows_in(uploaded))
            elif operation == "update":
                uploaded = pieces(data, data.draw(SIZES), [0, 1, 2, 3, 4, 77])
                outcome = client.update(lake.schema, table, uploaded, sets=["v"])
                assert outcome.total_changed == model.update(rows_in(uploaded))
            else:
                row_ids = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 77]), max_size=5))
                before = dict(model.rows)
                outcome = client.delete(lake.schema, table, row_ids, returning=returning)
                assert outcome.total_changed == model.delete(row_ids)
                if returning:
                    gone = [{"k": before[row_id][0], "v": before[row_id][1]} for row_id in before.keys() - model.rows]
                    assert pairs(outcome.returned.to_pylist()) == pairs(gone)
            client.disguise = None
            scanned = client.scan(lake.schema, table, ["k", "v", "rowid"]).rows()
            assert {each["rowid"]: (each["k"], each["v"]) for each in scanned} == model.rows


# The RPC layer alone, over tables in memory: many more of them in the same time.


@pytest.fixture
def events(service: MemoryService) -> Any:
    start = pa.table({"k": pa.array([0, 1, 2], pa.int64()), "v": pa.array(["v0", "v1", "v2"])})
    return service.source.add(BatchForms(TableName(CATALOG, "s", "n"), start))


# Arrow cannot cast run ends to anything, and the table in memory has nothing better.
IN_MEMORY = st.sampled_from(sorted(DISGUISES.keys() - {"run ends"}))


@settings(max_examples=60, **RELAXED)
@given(st.data())
def test_both_dialects_bring_every_row_to_the_table(service: MemoryService, events: Any, data: st.DataObject) -> None:
    events.rows = {1: {"k": 0, "v": "v0"}, 2: {"k": 1, "v": "v1"}, 3: {"k": 2, "v": "v2"}}
    model = Model({row_id: (each["k"], each["v"]) for row_id, each in events.rows.items()})
    disguise = DISGUISES[data.draw(IN_MEMORY)]
    uploaded = pieces(data, [*data.draw(SIZES), 1])
    returning = data.draw(st.booleans())
    if data.draw(st.booleans()):
        with AirportClient(service.location, CATALOG, disguise=disguise) as client:
            changed = client.insert("s", "n", uploaded, returning=returning)
        outcome = Outcome(changed.total_changed, None if changed.returned is None else changed.returned.to_pylist())
    else:
        other = JsonClient(service.location, "s", "n", disguise)
        reply = other.insert(uploaded, returning=returning)
        other.close()
        outcome = Outcome(reply["affected_rows"], reply.get("returning_data"))
    assert outcome.affected == model.insert(rows_in(uploaded))
    assert {row_id: (each["k"], each["v"]) for row_id, each in events.rows.items()} == model.rows
    assert (outcome.returned is not None) == returning
    if returning:
        assert pairs(outcome.returned) == pairs(rows_in(uploaded))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("call", ["DoExchange", "DoPut"])
def test_compressed_batches_and_frames_of_metadata_alone_are_taken(
    service: MemoryService, events: Any, call: str, compression: str | None
) -> None:
    first, second = batch(k=[7, 8], v=["a" * 5000, None]), batch(k=[9], v=["b"])
    written = pa.ipc.IpcWriteOptions(compression=compression)
    headers = [(b"airport-operation", b"insert"), (b"return-chunks", b"0"), (b"airport-catalog", CATALOG.encode())]
    with flight.connect(service.location) as client:
        if call == "DoExchange":
            options = flight.FlightCallOptions(headers=headers, write_options=written)
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("s", "n"), options)
            writer.begin(first.schema, options=written)
        else:
            command = {"operation": "insert", "catalog_name": CATALOG, "schema_name": "s", "table_name": "n"}
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
            options = flight.FlightCallOptions(write_options=written)
            writer, reader = client.do_put(descriptor, first.schema, options)
        with writer:
            writer.write_metadata(b"before")
            writer.write_with_metadata(first, b"beside")
            writer.write_metadata(b"")
            writer.write_batch(second)
            writer.write_metadata(b"after")
            writer.done_writing()
            raw = reader.read_chunk().app_metadata if call == "DoExchange" else reader.read()
            reply = msgpack.unpackb(raw.to_pybytes())
    assert reply.get("total_changed", reply.get("affected_rows")) == 3
    assert [(each["k"], each["v"]) for each in events.rows.values()][3:] == [(7, "a" * 5000), (8, None), (9, "b")]
