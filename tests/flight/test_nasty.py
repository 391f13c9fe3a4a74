"""Writes of the nasty client: whatever an upload is dressed in, what was sent is counted, stored and returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import JsonClient, running_gateway, staged_files
from tests.nasty import DISGUISES, Disguise

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
        told = SETS if dialect == "airport" else COLUMNS.names
        assert without_ids(updated.returned) == without_ids([expected[row_id] for row_id in changes], told)

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
