"""Writes of the nasty client: whatever an upload is dressed in, what was sent is counted, stored and returned."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import flight

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import JsonClient, refused, running_gateway, staged_files, version_of
from tests.nasty import DISGUISES, EVERYTHING, Disguise
from tests.nasty.frames import EXCHANGE_FRAMES, PUT_FRAMES, leave_exchange, leave_put

Row = dict[str, Any]
COLUMNS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("small", pa.int32()),
        pa.field("raw", pa.binary()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("ratio", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("words", pa.list_(pa.string())),
        pa.field("never", pa.string()),
    ]
)
SETS = ["v", "price", "words", "never"]


def row(k: int, **values: Any) -> Row:
    """A row with something in every column, or null in those that are given so."""
    common = {
        "v": f"text {k}",
        "small": k % 7,
        "raw": bytes([k % 256, 0]),
        "price": Decimal(k).scaleb(-2),
        "day": date(2024, 2, 29),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "ratio": k / 8,
        "flag": k % 2 == 0,
        "words": ["é", None, str(k)],
        "never": None,
    }
    return {"k": k, **common, **values}


BLANK = {name: None for name in COLUMNS.names if name != "k"}
START = [row(k) for k in range(6)]
NEW = [row(10), row(11, **BLANK), row(12, words=[]), row(13, v="", raw=b""), row(14)]


def batches(rows: Sequence[Row], columns: Sequence[str], *sizes: int) -> list[pa.RecordBatch]:
    schema = pa.schema([COLUMNS.field(name).with_nullable(True) if name != "rowid" else pa.field("rowid", pa.int64())
                        for name in columns])  # fmt: skip
    whole = pa.RecordBatch.from_pylist([{name: each[name] for name in columns} for each in rows], schema=schema)
    assert sum(sizes) == len(rows)
    return [whole.slice(sum(sizes[:place]), size) for place, size in enumerate(sizes)]


@dataclass(frozen=True)
class Outcome:
    affected: int
    returned: list[Row] | None


class Airport:
    """The DuckDB client's frames."""

    def __init__(self, gateway: Gateway, lake: Lake, disguise: Disguise | None) -> None:
        self._schema = lake.schema
        self._client = AirportClient(gateway.location, CATALOG, disguise=disguise)
        self.close = self._client.close

    def insert(self, rows: list[pa.RecordBatch], *, returning: bool) -> Outcome:
        return _outcome(self._client.insert(self._schema, "n", rows, returning=returning))

    def update(self, rows: list[pa.RecordBatch], *, returning: bool) -> Outcome:
        return _outcome(self._client.update(self._schema, "n", rows, sets=SETS, returning=returning))

    def delete(self, row_ids: list[int], *, returning: bool) -> Outcome:
        return _outcome(self._client.delete(self._schema, "n", row_ids, returning=returning))


def _outcome(changed: Any) -> Outcome:
    return Outcome(changed.total_changed, None if changed.returned is None else changed.returned.to_pylist())


class Json:
    """The JSON dialect; there DELETE is an action, which has nothing to disguise."""

    def __init__(self, gateway: Gateway, lake: Lake, disguise: Disguise | None) -> None:
        self._client = JsonClient(gateway.location, lake.schema, disguise=disguise)
        self.close = self._client.close

    def insert(self, rows: list[pa.RecordBatch], *, returning: bool) -> Outcome:
        return _reply(self._client.insert(rows, returning=returning))

    def update(self, rows: list[pa.RecordBatch], *, returning: bool) -> Outcome:
        row_ids = [row_id for each in rows for row_id in each.column("rowid").to_pylist()]
        return _reply(self._client.update(row_ids, [each.drop_columns("rowid") for each in rows], returning=returning))

    def delete(self, row_ids: list[int], *, returning: bool) -> Outcome:
        return _reply(self._client.delete(row_ids, returning=returning))


def _reply(reply: dict[str, Any]) -> Outcome:
    assert reply["status"] == "success"
    return Outcome(reply["affected_rows"], reply.get("returning_data"))


DIALECTS = {"airport": Airport, "json": Json}


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("staging")


@pytest.fixture(scope="module")
def spooling_gateway(warehouse: Path, lake_spark: Spark, staging: Path) -> Iterator[Gateway]:
    """Spools whatever has two rows or more."""
    with running_gateway(warehouse, lake_spark, staging, memory_rows=1) as running:
        yield running


@pytest.fixture
def started(lake: Lake) -> None:
    ids = pa.array(range(len(START)), pa.int64())
    data = pa.Table.from_pylist(START, schema=COLUMNS).add_column(0, "_rowid", ids)
    write_deltalake(str(lake.path("n")), data)


def stored(gateway: Gateway, lake: Lake) -> dict[int, Row]:
    """Every row by its id, as a plain client sees them."""
    with AirportClient(gateway.location, CATALOG) as plain:
        scanned = plain.scan(lake.schema, "n", [*COLUMNS.names, "rowid"]).rows()
    return {each["rowid"]: {name: each[name] for name in COLUMNS.names} for each in scanned}


def without_ids(rows: list[Row] | None, columns: Sequence[str] = COLUMNS.names) -> list[Row]:
    """Just these columns, as the table spells them, in an order that any two lists of the same rows share."""
    assert rows is not None
    spelled = [{name.lower(): value for name, value in each.items()} for each in rows]
    return sorted(({name: each[name] for name in columns if name in each} for each in spelled), key=str)


# What is staged holds the table's own types, whatever came: there only the batches can make a difference.
SPOOLED = ("empty batches", "empty batches first", "one row each", "everything")
CASES = [(name, False) for name in DISGUISES] + [(name, True) for name in SPOOLED]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("disguise", "is_spooled"), CASES)
@pytest.mark.usefixtures("started")
def test_a_disguise_changes_nothing(
    gateway: Gateway,
    spooling_gateway: Gateway,
    lake: Lake,
    staging: Path,
    disguise: str,
    dialect: str,
    is_spooled: bool,
) -> None:
    serving = spooling_gateway if is_spooled else gateway
    client = DIALECTS[dialect](serving, lake, DISGUISES[disguise])
    expected = dict(enumerate(START))
    try:
        inserted = client.insert(batches(NEW, COLUMNS.names, 2, 1, 2), returning=True)
        expected |= dict(enumerate(NEW, start=len(START)))
        assert stored(serving, lake) == expected
        assert inserted.affected == 5
        assert without_ids(inserted.returned) == without_ids(NEW)

        changes = {3: row(3, v=None), 0: row(0, v="changed", words=None), 9: row(9, price=None), 7: row(7, v="x")}
        sent = [{**values, "rowid": row_id} for row_id, values in changes.items()]
        updated = client.update(batches(sent, [*SETS, "rowid"], 1, 3), returning=True)
        for row_id, values in changes.items():
            expected[row_id] = {**expected[row_id], **{name: values[name] for name in SETS}}
        assert stored(serving, lake) == expected
        assert updated.affected == 4
        columns = SETS if dialect == "airport" else COLUMNS.names
        assert without_ids(updated.returned) == without_ids([expected[row_id] for row_id in changes], columns)

        deleted = client.delete([8, 1, 5], returning=True)
        gone = [expected.pop(row_id) for row_id in (8, 1, 5)]
        assert deleted.affected == 3
        assert without_ids(deleted.returned) == without_ids(gone)
    finally:
        client.close()
    assert staged_files(staging) == []
    assert the_next_statement_works(serving, lake, expected)


def the_next_statement_works(gateway: Gateway, lake: Lake, expected: dict[int, Row]) -> bool:
    """A plain INSERT is stored beside exactly these rows."""
    with AirportClient(gateway.location, CATALOG) as plain:
        assert plain.insert(lake.schema, "n", batches([row(99)], COLUMNS.names, 1)).total_changed == 1
    rows = stored(gateway, lake)
    assert rows.pop(max(rows)) == row(99)
    return rows == expected


# Calls that are left in the middle.


def opening(gateway: Gateway, lake: Lake, operation: str) -> tuple[flight.FlightDescriptor, list[tuple[bytes, bytes]]]:
    """What a DoExchange begins with: its descriptor, and headers with a transaction of its own."""
    with AirportClient(gateway.location, CATALOG) as plain:
        found = plain.look_up_for_change(lake.schema, "n")
        transaction = plain.transaction_id() or ""
    headers = {"airport-operation": operation, "return-chunks": "0", "airport-catalog": CATALOG}
    headers["airport-transaction-id"] = transaction
    return found.descriptor, [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
@pytest.mark.usefixtures("started")
def test_an_exchange_left_at_any_frame_writes_all_or_nothing(
    spooling_gateway: Gateway, lake: Lake, staging: Path, operation: str
) -> None:
    first, columns = {
        "insert": (row(50), COLUMNS.names),
        "update": ({**row(0, v="left"), "rowid": 0}, [*SETS, "rowid"]),
        "delete": ({"rowid": 0}, ["rowid"]),
    }[operation]
    second = {**first, "k": 51} if operation == "insert" else {**first, "rowid": 1}
    sent = batches([first, first, second, second], columns, 2, 2)
    before = stored(spooling_gateway, lake)
    for frame in EXCHANGE_FRAMES:
        leave_exchange(spooling_gateway.location, *opening(spooling_gateway, lake, operation), sent, frame)
        assert spooling_gateway.service.gate.wait_empty(240), frame
        assert staged_files(staging) == [], frame
        if frame != "half-close":
            assert stored(spooling_gateway, lake) == before, frame
    after = stored(spooling_gateway, lake)
    whole = {
        "insert": before | dict(zip(range(6, 10), [first, first, second, second], strict=True)),
        "update": before | {id_: {**before[id_], **{name: first[name] for name in SETS}} for id_ in (0, 1)}
        if operation == "update"
        else {},
        "delete": {id_: each for id_, each in before.items() if id_ > 1},
    }[operation]
    assert after in (before, whole)
    assert the_next_statement_works(spooling_gateway, lake, after)


@pytest.mark.usefixtures("started")
def test_a_put_left_at_any_frame_writes_all_or_nothing(spooling_gateway: Gateway, lake: Lake, staging: Path) -> None:
    target = {"catalog_name": "lake", "schema_name": lake.schema, "table_name": "n"}
    before = stored(spooling_gateway, lake)
    new = [row(50), row(51), row(52), row(53)]
    for frame in PUT_FRAMES:
        command = json.dumps({"operation": "insert", **target}).encode()
        leave_put(spooling_gateway.location, command, batches(new, COLUMNS.names, 2, 2), frame)
        assert spooling_gateway.service.gate.wait_empty(240), frame
        assert staged_files(staging) == [], frame
        if frame != "half-close":
            assert stored(spooling_gateway, lake) == before, frame
    after = stored(spooling_gateway, lake)
    assert after in (before, before | dict(enumerate(new, start=len(before))))
    assert the_next_statement_works(spooling_gateway, lake, after)


# Empty uploads, repeated ids, and callers who meet.


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.usefixtures("started")
def test_empty_batches_alone_change_nothing(gateway: Gateway, lake: Lake, dialect: str) -> None:
    client = DIALECTS[dialect](gateway, lake, DISGUISES["empty batches"])
    before = stored(gateway, lake)
    try:
        for returning in (False, True):
            nothing = Outcome(0, [] if returning else None)
            assert client.insert(batches([], COLUMNS.names, 0, 0), returning=returning) == nothing
            if dialect == "airport":  # the JSON dialect refuses to change no row
                assert client.update(batches([], [*SETS, "rowid"], 0, 0), returning=returning) == nothing
                assert client.delete([], returning=returning) == nothing
    finally:
        client.close()
    assert version_of(lake) == 0
    assert the_next_statement_works(gateway, lake, before)


@pytest.mark.parametrize("is_spooled", [False, True], ids=["in memory", "spooled"])
@pytest.mark.parametrize("disguise", ["one batch", "empty batches"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.usefixtures("started")
def test_a_row_that_is_named_often_counts_once_and_keeps_its_last_values(
    gateway: Gateway, spooling_gateway: Gateway, lake: Lake, dialect: str, disguise: str, is_spooled: bool
) -> None:
    serving = spooling_gateway if is_spooled else gateway
    expected = stored(serving, lake)
    values = [(1, "a"), (2, "b"), (1, "c"), (2, "d"), (3, "e"), (1, "f")]
    sent = [{**row(0, v=text), "rowid": row_id} for row_id, text in values]
    uploaded = batches(sent, [*SETS, "rowid"], 2, 1, 3)
    client = DIALECTS[dialect](serving, lake, DISGUISES[disguise])
    try:
        if disguise != "one batch":  # what an earlier batch was answered with cannot be taken back
            refusal = refused(lambda: client.update(uploaded, returning=True))
            assert refusal.startswith("row id 1 comes in two batches, but UPDATE … RETURNING takes each row once")
            assert version_of(lake) == 0
        updated = client.update(uploaded, returning=disguise == "one batch")
        for each in sent:
            expected[each["rowid"]] |= {name: each[name] for name in SETS}
        assert stored(serving, lake) == expected
        assert updated.affected == 3
        if updated.returned is not None:
            assert sorted((each["rowid"], each["v"]) for each in updated.returned) == [(1, "f"), (2, "d"), (3, "e")]

        deleted = client.delete([4, 1, 4, 1, 1], returning=True)
        gone = [expected.pop(row_id) for row_id in (4, 1)]
        assert deleted.affected == 2
        assert without_ids(deleted.returned) == without_ids(gone)
    finally:
        client.close()
    assert the_next_statement_works(serving, lake, expected)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.usefixtures("started")
def test_callers_who_change_one_row_at_once_change_it_one_after_the_other(
    gateway: Gateway, lake: Lake, dialect: str
) -> None:
    before = stored(gateway, lake)
    clients = [DIALECTS[dialect](gateway, lake, EVERYTHING) for _ in range(4)]
    together = threading.Barrier(len(clients))

    def change(number: int) -> int | str:
        sent = batches([{**row(0, v=f"caller {number}"), "rowid": 2}], [*SETS, "rowid"], 1)
        together.wait(60)
        try:
            return clients[number].update(sent, returning=False).affected
        except (flight.FlightError, pa.ArrowException) as error:
            return str(error)

    with ThreadPoolExecutor(len(clients)) as threads:
        outcomes = list(threads.map(change, range(len(clients))))
    for client in clients:
        client.close()
    assert [outcome for outcome in outcomes if outcome != 1 and "conflict" not in str(outcome)] == []
    after = stored(gateway, lake)
    winners = [f"caller {number}" for number, outcome in enumerate(outcomes) if outcome == 1]
    assert after[2]["v"] in winners
    assert version_of(lake) == len(winners)
    assert after == before | {2: {**before[2], **{name: row(0)[name] for name in SETS}, "v": after[2]["v"]}}


@pytest.mark.usefixtures("started")
def test_inserts_at_once_under_one_transaction_count_what_they_store(gateway: Gateway, lake: Lake) -> None:
    before = stored(gateway, lake)
    with flight.connect(gateway.location) as asking:
        (begun,) = asking.do_action(flight.Action("create_transaction", b"{}"))
    identifier = json.loads(begun.body.to_pybytes())["transaction_id"]
    clients = [JsonClient(gateway.location, lake.schema, "n", EVERYTHING, identifier) for _ in range(4)]
    together = threading.Barrier(len(clients))

    def insert(number: int) -> int:
        together.wait(60)
        try:
            reply = clients[number].insert(batches([row(50 + number)], COLUMNS.names, 1))
        except (flight.FlightError, pa.ArrowException):
            return 0
        assert reply["affected_rows"] == 1
        return 50 + number

    with ThreadPoolExecutor(len(clients)) as threads:
        confirmed = {key for key in threads.map(insert, range(len(clients))) if key}
    for client in clients:
        client.close()
    assert confirmed
    assert {each["k"] for each in stored(gateway, lake).values()} == {each["k"] for each in before.values()} | confirmed


HIDDEN_NULLS = {"dictionaries": DISGUISES["dictionaries"], "run ends": DISGUISES["run ends"]}


@pytest.mark.parametrize("disguise", HIDDEN_NULLS)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.usefixtures("started")
def test_a_null_in_a_not_null_column_is_found_wherever_it_hides(
    gateway: Gateway, lake: Lake, dialect: str, disguise: str
) -> None:
    before = stored(gateway, lake)
    client = DIALECTS[dialect](gateway, lake, HIDDEN_NULLS[disguise])
    try:
        bad = batches([row(50), {**row(51), "k": None}], COLUMNS.names, 1, 1)
        assert refused(lambda: client.insert(bad, returning=True)) == "NOT NULL constraint failed: column 'k'"
    finally:
        client.close()
    assert version_of(lake) == 0
    assert the_next_statement_works(gateway, lake, before)
