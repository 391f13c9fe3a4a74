"""Every type through the whole service: in by an exchange, out by both routes, found by filters, readable in Spark."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings

from gateway.lake.spark.engine import Spark
from gateway.lake.values.types import ANNOTATION_KEY, stored_form
from gateway.lake.writing import writer
from gateway.ops.lifecycle import Gateway
from gateway.wire.filter_tree import ColumnRef, Comparison, Constant, Operator, TypeId, ValueType
from tests.airport import AirportClient
from tests.airport.arrow_types import duckdb_type
from tests.airport.exchange import upload_schema
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.lake.reading import ROUTES, open_table, read
from tests.lake.typed_values import BY_TEXT, KINDS, NESTED, Kind, array_of, exact

COLUMNS = {f"c{index}": kind for index, kind in enumerate([*KINDS, *NESTED])}
HUGE = pa.opaque(pa.binary(16), "hugeint", "DuckDB")
LONG = "😀" * (1 << 18)  # a megabyte


def drawn(kind: Kind, count: int) -> list[Any]:
    """Generated values, the same in every run."""
    found: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(kind.values())
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def rows_of(columns: dict[str, Kind], generated: int) -> pa.Table:
    """The values worth trying, generated ones and a row of nulls; `k` counts the rows."""
    values = {name: [*kind.samples, *drawn(kind, generated)] for name, kind in columns.items()}
    length = max(len(column) for column in values.values()) + 1
    for name, kind in columns.items():
        if kind.text == "VARCHAR":
            values[name].append(LONG)
        values[name] += [None] * (length - len(values[name]))
    arrays = [array_of(kind, values[name]) for name, kind in columns.items()]
    fields = [kind.field(name) for name, kind in columns.items()]
    return pa.Table.from_arrays(
        [pa.array(range(length), pa.int32()), *arrays], schema=pa.schema([pa.field("k", pa.int32()), *fields])
    )


def make_table(lake: Lake, table: str, fields: pa.Schema, **properties: str) -> Path:
    """A Delta table of the storage types, annotated."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructType

    forms = [stored_form(field) for field in fields]
    columns: list[dict[str, Any]] = [{"name": "_rowid", "type": "long", "nullable": True, "metadata": {}}]
    for form in forms:
        metadata = {} if form.annotation is None else {ANNOTATION_KEY: form.annotation}
        columns.append({"name": form.name, "type": form.delta, "nullable": True, "metadata": metadata})
    schema = StructType.fromJson({"type": "struct", "fields": columns})
    builder = DeltaTable.create(lake.spark).location(str(lake.path(table))).addColumns(schema)
    for name, value in {"delta.columnMapping.mode": "name", **properties}.items():
        builder = builder.property(name, value)
    builder.execute()
    return lake.path(table)


def insert(client: AirportClient, schema: str, table: str, rows: pa.Table, *, returning: bool = False) -> Any:
    """INSERT of a client in lossless mode: its own types go as they are."""
    found = client.catalog.table(schema, table)
    return client.exchange("insert", found, rows.schema, rows.to_batches(), transaction_id=None, returning=returning)


def by_key(rows: pa.Table) -> pa.Table:
    order = sorted(range(rows.num_rows), key=lambda place: rows.column("k")[place].as_py())
    pieces = [rows.slice(place, 1) for place in order]  # Arrow's own `take` has no kernel for views
    return pa.concat_tables(pieces) if pieces else rows


def assert_same(found: pa.Table, sent: pa.Table) -> None:
    found = by_key(found)
    assert found.num_rows == sent.num_rows
    for name in sent.column_names:
        one, other = (exact(_combined(rows.column(name))) for rows in (found, sent))
        assert one == other, (name, COLUMNS.get(name))


def _combined(column: pa.ChunkedArray) -> pa.Array:
    pieces = column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
    array = pieces.combine_chunks()
    return array.cast(pa.bool_()).cast(pa.int8()) if pa.types.is_boolean(array.type) else array


@dataclass(frozen=True)
class Everything:
    """One table with a column of every type, and what was sent to it."""

    lake: Lake
    path: Path
    sent: pa.Table
    returned: pa.Table


@pytest.fixture(scope="module")
def everything(spark: Any, warehouse: Path, gateway: Gateway) -> Everything:
    lake = Lake(spark, warehouse, "types")
    sent = rows_of(COLUMNS, 12)
    path = make_table(lake, "everything", sent.schema)
    with AirportClient(gateway.location, CATALOG) as client:
        changed = insert(client, lake.schema, "everything", sent, returning=True)
    assert changed.total_changed == sent.num_rows
    return Everything(lake, path, sent, changed.returned)


def test_clients_are_told_the_types_they_transmitted(everything: Everything, client: AirportClient) -> None:
    told = client.table(everything.lake.schema, "everything").schema
    for name, kind in COLUMNS.items():
        field = told.field(name)
        extension = (field.metadata or {}).get(b"ARROW:extension:name")
        shown = "GEOMETRY" if extension == b"geoarrow.wkb" else duckdb_type(field.type)
        assert shown == kind.text.replace("GEOMETRY", "BLOB") or shown == kind.text, name


def test_insert_returning_gives_the_values_that_were_sent(everything: Everything) -> None:
    assert_same(everything.returned.select(everything.sent.column_names), everything.sent)


def test_a_scan_gives_every_value_back_to_the_bit(everything: Everything, client: AirportClient) -> None:
    assert_same(client.scan(everything.lake.schema, "everything").table, everything.sent)


def test_an_append_gives_every_value_back_to_the_bit(
    everything: Everything, client: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = everything.lake
    path = make_table(lake, "appended", everything.sent.schema)
    monkeypatch.setattr(writer, "_MERGE_TRIES", 0)
    assert insert(client, lake.schema, "appended", everything.sent).total_changed == everything.sent.num_rows
    assert DeltaTable(str(path)).history(1)[0]["operation"] == "WRITE"
    assert_same(client.scan(lake.schema, "appended").table, everything.sent)


@pytest.mark.parametrize("route", ROUTES)
def test_both_routes_give_every_value_back_to_the_bit(everything: Everything, lake_spark: Spark, route: str) -> None:
    result = read(open_table(everything.path, lake_spark, engine=route).current())
    assert result.report.route == route
    assert_same(result.table, everything.sent)


FILTERED = {
    "TIME WITH TIME ZONE": None, "BIT": None, "BIGNUM": None, "INTERVAL": None, "GEOMETRY": None,
    "JSON": TypeId.VARCHAR, "TIMESTAMP WITH TIME ZONE": TypeId.TIMESTAMPTZ,
}  # fmt: skip


def constant(kind: Kind, value: Any) -> Constant | None:
    """A value as filters carry it; None for the types that the client compares by itself."""
    if kind.text.startswith("DECIMAL"):
        sent = ValueType(TypeId.DECIMAL, kind.sent.precision, kind.sent.scale)
        return Constant(sent, int(value.scaleb(kind.sent.scale, Context(prec=80))))
    type_id = FILTERED[kind.text] if kind.text in FILTERED else TypeId(kind.text)
    if type_id is None:
        return None
    if type_id in (TypeId.HUGEINT, TypeId.UHUGEINT):
        value = int.from_bytes(value, "little", signed=type_id is TypeId.HUGEINT)
    if type_id is TypeId.UUID:
        digits = value.hex()
        value = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return Constant(ValueType(type_id), bool(value) if type_id is TypeId.BOOLEAN else value)


@pytest.mark.parametrize("route", ROUTES)
def test_filters_are_pushed_down_and_find_their_rows(everything: Everything, lake_spark: Spark, route: str) -> None:
    snapshot = open_table(everything.path, lake_spark, engine=route).current()
    for row in range(3):
        conjuncts = []
        for name, kind in COLUMNS.items():
            if kind in NESTED or row >= len(kind.samples):
                continue
            wanted = constant(kind, kind.samples[row])
            if wanted is not None:
                operators = (Operator.EQUAL, Operator.LESS_EQUAL, Operator.GREATER_EQUAL)
                conjuncts += [Comparison(operators[row], ColumnRef(name, wanted.type), wanted)]
        result = read(snapshot, ["k"], conjuncts=tuple(conjuncts))
        assert row in result.table.column("k").to_pylist()
        assert result.report.filters_dropped == 0
        assert result.table.num_rows < everything.sent.num_rows


@pytest.mark.parametrize("route", ROUTES)
def test_filters_on_fields_of_structs_are_pushed_down(everything: Everything, lake_spark: Spark, route: str) -> None:
    snapshot = open_table(everything.path, lake_spark, engine=route).current()
    name = next(name for name, kind in COLUMNS.items() if kind.text.startswith("STRUCT(u UUID, h HUGEINT"))
    conjuncts = []
    for member, text in (("u", "UUID"), ("h", "HUGEINT")):
        wanted = constant(BY_TEXT[text], BY_TEXT[text].samples[0])
        assert wanted is not None
        conjuncts.append(Comparison(Operator.EQUAL, ColumnRef(name, wanted.type, (member,)), wanted))
    result = read(snapshot, ["k"], conjuncts=tuple(conjuncts))
    assert result.report.filters_dropped == 0
    assert 1 in result.column("k")
    assert result.table.num_rows < everything.sent.num_rows


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.text)
def test_each_value_worth_trying_is_found_by_its_filter(everything: Everything, kind: Kind) -> None:
    snapshot = open_table(everything.path).current()
    name = next(name for name, other in COLUMNS.items() if other is kind)
    stored = exact(_combined(everything.sent.column(name)))
    for row, value in enumerate(kind.samples):
        if (wanted := constant(kind, value)) is None:
            continue
        for operator in (Operator.EQUAL, Operator.LESS_EQUAL, Operator.GREATER_EQUAL):
            result = read(snapshot, ["k"], conjuncts=(Comparison(operator, ColumnRef(name, wanted.type), wanted),))
            assert row in result.column("k")
            if operator is Operator.EQUAL and not result.report.filters_dropped and value != 0:
                assert result.column("k") == [place for place, other in enumerate(stored) if other == stored[row]]


def test_spark_reads_the_storage_types(everything: Everything) -> None:
    frame = everything.lake.spark.read.format("delta").load(str(everything.path))
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    stored = {kind.text: kinds[name] for name, kind in COLUMNS.items()}
    assert stored["UTINYINT"] == "smallint"
    assert stored["UBIGINT"] == "decimal(20,0)"
    assert stored["HUGEINT"] == "binary"
    assert stored["UUID"] == "string"
    assert stored["TIME"] == "bigint"
    assert stored["TIMESTAMP_S"] == "timestamp_ntz"
    assert stored["INTERVAL"] == "struct<months:int,days:int,nanos:bigint>"
    assert stored["FLOAT[3]"] == "array<float>"
    uuids = next(name for name, kind in COLUMNS.items() if kind.text == "UUID")
    found = frame.where(f"{uuids} = 'b975e418-7a6d-4afd-b1a4-1f7174ce1805'").count()
    assert found >= 1


def test_the_annotation_survives_what_is_done_to_a_table(lake: Lake, client: AirportClient) -> None:
    inner = pa.struct([("u", pa.uuid()), ("n", pa.uint8())])
    fields = [pa.field("k", pa.int32()), pa.field("id", pa.uuid()), pa.field("s", pa.list_(pa.field("l", inner)))]
    schema = pa.schema([*fields, pa.field("p", inner), pa.field("gone", pa.time64("us"))])
    path = make_table(lake, "t", schema)
    raw = pa.array([b"\x01" * 16, None], pa.binary(16))
    nested = pa.array([{"u": b"\x02" * 16, "n": 255}, None], pa.struct([("u", pa.binary(16)), ("n", pa.uint8())]))
    lists = pa.ListArray.from_arrays([0, 1, 2], nested)
    values = [pa.array([0, 1], pa.int32()), raw, lists, nested, pa.array([1, None], pa.time64("us"))]
    sent = pa.Table.from_arrays(
        [array.cast(field.type) for array, field in zip(values, schema, strict=True)], schema=schema
    )
    insert(client, lake.schema, "t", sent)
    first = open_table(path).current()
    lake.sql("ALTER TABLE {t} RENAME COLUMN id TO name", "t")
    lake.sql("ALTER TABLE {t} RENAME COLUMN p.u TO v", "t")
    lake.sql("ALTER TABLE {t} RENAME COLUMN s.element.u TO v", "t")
    lake.sql("ALTER TABLE {t} DROP COLUMN gone", "t")
    lake.sql("ALTER TABLE {t} ADD COLUMN more STRING", "t")
    lake.sql("ALTER TABLE {t} ALTER COLUMN name COMMENT 'who'", "t")
    lake.sql("OPTIMIZE {t}", "t")
    now = read(open_table(path).current())
    assert duckdb_type(now.table.schema.field("name").type) == "UUID"
    assert duckdb_type(now.table.schema.field("p").type) == "STRUCT(v UUID, n UTINYINT)"
    assert duckdb_type(now.table.schema.field("s").type) == "STRUCT(v UUID, n UTINYINT)[]"
    assert exact(_combined(by_key(now.table).column("name"))) == exact(_combined(sent.column("id")))
    assert exact(_combined(by_key(now.table).column("p"))) == exact(_combined(sent.column("p")))
    before = read(open_table(path).at(first.version))
    assert before.table.schema.field("gone").type == pa.time64("us")
    assert_same(before.table.select(sent.column_names), sent)


def test_a_client_in_default_mode_works_on_columns_of_every_type(lake: Lake, client: AirportClient) -> None:
    spans = pa.list_(pa.struct([("i", pa.month_day_nano_interval()), ("u", pa.uuid())]))
    fields = [("k", pa.int32()), ("u", pa.uuid()), ("h", HUGE), ("j", pa.json_(pa.string())), ("b", pa.bool8())]
    schema = pa.schema([*fields, ("t", pa.time64("us")), ("a", pa.list_(pa.uint16(), 2)), ("n", spans)])
    make_table(lake, "t", schema, **{"delta.enableDeletionVectors": "true"})
    found = client.table(lake.schema, "t")
    text, span = "b975e418-7a6d-4afd-b1a4-1f7174ce1805", pa.MonthDayNano((1, 2, 3))
    rows = {
        "k": [0, 1], "u": [text, None], "h": [-5, None], "j": ["{}", None], "b": [True, None],
        "t": [7, None], "a": [[1, None], None], "n": [[{"i": span, "u": text}, None], None],
    }  # fmt: skip
    sent = upload_schema(found, found.column_names)
    batch = pa.record_batch([pa.array(rows[field.name], field.type) for field in sent], schema=sent)
    returned = client.insert(lake.schema, "t", batch, returning=True).returned
    assert returned is not None

    told = client.scan(lake.schema, "t", [*found.column_names, "rowid"])
    assert set(told.statistics) == set(found.column_names)
    scanned = by_key(told.table)
    raw = bytes.fromhex(text.replace("-", ""))
    expected = {
        "u": [raw, None], "h": [(-5).to_bytes(16, "little", signed=True), None], "j": ["{}", None], "b": [1, None],
        "t": [7, None], "a": [[1, None], None], "n": [[(span, raw), None], None],
    }  # fmt: skip
    for name, values in expected.items():
        assert exact(_combined(scanned.column(name))) == values, name
        assert exact(_combined(by_key(returned).column(name))) == values, name

    other = "00000000-0000-0000-0000-000000000001"
    change = pa.table({"u": [other], "h": pa.array([6], pa.decimal128(38, 0)), "rowid": scanned.column("rowid")[:1]})
    assert client.update(lake.schema, "t", change, sets=["u", "h"], returning=True).total_changed == 1
    gone = client.delete(lake.schema, "t", scanned.column("rowid").to_pylist(), returning=True).returned
    assert gone is not None
    expected["u"][0], expected["h"][0] = bytes(15) + b"\x01", (6).to_bytes(16, "little")
    for name, values in expected.items():
        assert exact(_combined(by_key(gone).column(name))) == values, name
