"""CREATE, ALTER and DROP as DuckDB's client sends them, over real Delta tables."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from gateway.lake.ddl import altering
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.airport.catalog import UnknownNameError
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import refused

PEOPLE = pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float64()), ("tag", pa.string())])


@pytest.fixture
def schema(client: AirportClient, request: pytest.FixtureRequest) -> str:
    """An empty schema of this test's own."""
    name = f"d{hashlib.sha256(request.node.name.encode()).hexdigest()[:10]}"
    client.ddl.create_schema(name)
    return name


@pytest.fixture
def other(gateway: Gateway) -> Iterator[Callable[[], AirportClient]]:
    """Further clients, each attached when it is asked for."""
    attached: list[AirportClient] = []

    def attach() -> AirportClient:
        attached.append(AirportClient(gateway.location, CATALOG))
        return attached[-1]

    yield attach
    for each in attached:
        each.close()


def rows(client: AirportClient, schema: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
    scanned = client.scan(schema, table, columns or None).rows()
    return sorted((tuple(row.values()) for row in scanned), key=repr)


def people(client: AirportClient, schema: str, table: str = "people", **options: Any) -> str:
    client.ddl.create_table(schema, table, PEOPLE, **options)
    return table


def ada(**values: Any) -> pa.RecordBatch:
    row = {"id": 1, "name": "Ada", "score": 1.5, "tag": None, **values}
    return pa.RecordBatch.from_pylist([row], PEOPLE)


def test_a_table_that_was_made_takes_rows_and_changes(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    people(client, schema)
    client.insert(schema, "people", ada())
    client.update(schema, "people", pa.RecordBatch.from_pydict({"name": ["Bo"], "rowid": [0]}), sets=["name"])
    assert rows(client, schema, "people") == [(1, "Bo", 1.5, None)]
    assert rows(other(), schema, "people") == [(1, "Bo", 1.5, None)]
    client.delete(schema, "people", [0])
    assert rows(client, schema, "people") == []


def test_tables_are_dropped_and_made_again_under_the_same_name(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    people(client, schema)
    client.insert(schema, "people", ada())
    begun = client.open_scan(schema, "people")
    client.ddl.drop_table(schema, "people")
    assert "not found" in refused(begun.read)
    with pytest.raises(UnknownNameError):
        other().table(schema, "people")
    client.ddl.create_table(schema, "people", pa.schema([("k", pa.int64())]))
    client.insert(schema, "people", pa.RecordBatch.from_pydict({"k": [7]}))
    assert rows(client, schema, "people") == [(7,)]
    client.ddl.drop_table(schema, "people")
    client.ddl.drop_schema(schema)


def test_a_column_is_added_renamed_and_dropped(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    people(client, schema)
    client.insert(schema, "people", ada())
    client.ddl.add_column(schema, "people", pa.field("born", pa.timestamp("us")))
    client.ddl.rename_column(schema, "people", "name", "full name")
    assert rows(client, schema, "people") == [(1, "Ada", 1.5, None, None)]
    client.ddl.remove_column(schema, "people", "tag")
    with client.begin() as block:
        assert client.scan(schema, "people", transaction=block).num_rows == 1
        client.ddl.add_column(schema, "people", pa.field("more", pa.int32()))
        assert client.scan(schema, "people", ["more"], transaction=block).rows() == [{"more": None}]
    altered = other().table(schema, "people")
    assert altered.column_names == ["id", "full name", "score", "born", "more"]
    assert rows(client, schema, "people", "full name") == [("Ada",)]


def test_a_table_is_renamed_with_its_rows(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    people(client, schema)
    client.insert(schema, "people", ada())
    client.ddl.rename_table(schema, "people", "folk")
    assert rows(client, schema, "folk", "name") == [("Ada",)]
    client.insert(schema, "folk", ada(id=2, name="Bo"))
    assert rows(other(), schema, "folk", "name") == [("Ada",), ("Bo",)]
    people(client, schema)
    assert rows(client, schema, "people") == []


# A script of one statement of each kind, beside DuckDB itself


class Twin:
    """Runs each statement here and in a DuckDB of its own, and compares the table after each."""

    def __init__(self, client: AirportClient, schema: str, duck: duckdb.DuckDBPyConnection) -> None:
        self.client = client
        self.schema = schema
        self.duck = duck
        self.table = "t"

    def run(self, sql: str, *acts: Callable[[], object]) -> None:
        for act in acts:
            act()
        self.duck.execute(sql)
        table = f'"{self.schema}"."{self.table}"'
        mine = self.client.scan(self.schema, self.table)
        theirs = self.duck.sql(f"SELECT * FROM {table}").to_arrow_table()
        described = [(row[0], row[2]) for row in self.duck.execute(f"DESCRIBE {table}").fetchall()]
        declared = self.client.table(self.schema, self.table).schema
        columns = [field for field in declared if not (field.metadata or {}).get(b"is_rowid")]
        assert [(field.name, "YES" if field.nullable else "NO") for field in columns] == described, sql
        assert sorted(mine.rows(), key=repr) == sorted(theirs.to_pylist(), key=repr), sql

    def sql(self, text: str) -> str:
        return text.replace("{t}", f'"{self.schema}"."{self.table}"')


def test_a_script_of_every_statement_gives_what_duckdb_gives(client: AirportClient, schema: str) -> None:
    nested = pa.struct([("a", pa.int32()), ("b", pa.string())])
    columns = pa.schema([*PEOPLE, ("st", nested)])
    ddl = client.ddl

    def put(*rows: dict[str, Any]) -> None:
        kinds = client.table(schema, twin.table).schema
        names = [field.name for field in kinds if not (field.metadata or {}).get(b"is_rowid")]
        whole = [{name: row.get(name) for name in names} for row in rows]
        declared = pa.schema([pa.field(name, kinds.field(name).type) for name in names])
        client.insert(schema, twin.table, pa.RecordBatch.from_pylist(whole, declared))

    with duckdb.connect() as duck:
        twin = Twin(client, schema, duck)
        duck.execute(f'CREATE SCHEMA "{schema}"')
        twin.run(
            twin.sql(
                "CREATE TABLE {t} (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL, score DOUBLE, tag VARCHAR UNIQUE,"
                " st STRUCT(a INTEGER, b VARCHAR), CHECK (score >= 0))"
            ),
            lambda: ddl.create_table(
                schema, "t", columns, not_null=[1, 0], checks=["(score >= 0)"], primary_key_columns=["id"],
                unique_columns=["tag"],
            ),
            lambda: ddl.create_table(schema, "t", columns, if_not_exists=True),
        )  # fmt: skip
        two = [
            {"id": 1, "name": "Ada", "score": 1.5, "tag": "x", "st": {"a": 1, "b": "one"}},
            {"id": 2, "name": "Bo", "score": None, "tag": None, "st": None},
        ]
        twin.run(
            twin.sql("INSERT INTO {t} VALUES (1, 'Ada', 1.5, 'x', {'a': 1, 'b': 'one'}), (2, 'Bo', NULL, NULL, NULL)"),
            lambda: put(*two),
        )
        twin.run(
            twin.sql(
                "ALTER TABLE {t} ADD COLUMN extra INTEGER; ALTER TABLE {t} ADD COLUMN IF NOT EXISTS extra INTEGER"
            ),
            lambda: ddl.add_column(schema, "t", pa.field("extra", pa.int32())),
            lambda: ddl.add_column(schema, "t", pa.field("EXTRA", pa.int8()), if_not_exists=True),
        )
        twin.run(
            twin.sql("ALTER TABLE {t} ALTER extra SET DEFAULT 42; INSERT INTO {t} (id, name) VALUES (3, 'Cy')"),
            lambda: ddl.set_default(schema, "t", "extra", "42"),
            lambda: put({"id": 3, "name": "Cy", "extra": 42}),
        )
        assert client.table(schema, "t").schema.field("extra").metadata[b"default"] == b"42"
        assert "extra" in refused(lambda: ddl.set_not_null(schema, "t", "extra"))
        rowids = {row["id"]: row["rowid"] for row in client.scan(schema, "t", ["id", "rowid"]).rows()}
        twin.run(
            twin.sql("UPDATE {t} SET extra = id WHERE extra IS NULL; ALTER TABLE {t} ALTER extra SET NOT NULL"),
            lambda: client.update(
                schema, "t", pa.RecordBatch.from_pylist(
                    [{"extra": key, "rowid": rowids[key]} for key in (1, 2)],
                    pa.schema([("extra", pa.int32()), ("rowid", pa.int64())]),
                ), sets=["extra"],
            ),
            lambda: ddl.set_not_null(schema, "t", "extra"),
        )  # fmt: skip
        twin.run(twin.sql("ALTER TABLE {t} ALTER extra DROP NOT NULL"), lambda: ddl.drop_not_null(schema, "t", "extra"))
        twin.run(
            twin.sql("ALTER TABLE {t} ALTER extra TYPE BIGINT"),
            lambda: ddl.change_column_type(schema, "t", pa.field("extra", pa.int64())),
        )
        twin.run(
            twin.sql("ALTER TABLE {t} ALTER extra DROP DEFAULT"), lambda: ddl.set_default(schema, "t", "extra", "NULL")
        )
        twin.run(
            twin.sql("ALTER TABLE {t} ALTER extra SET DATA TYPE VARCHAR USING concat('x', extra)"),
            lambda: ddl.change_column_type(schema, "t", pa.field("extra", pa.string()), using="concat('x', extra)"),
        )
        wider = pa.struct([("a", pa.string()), ("b", pa.string()), ("c", pa.list_(pa.float64()))])
        twin.run(
            twin.sql("ALTER TABLE {t} ALTER st TYPE STRUCT(a VARCHAR, b VARCHAR, c DOUBLE[])"),
            lambda: ddl.change_column_type(schema, "t", pa.field("st", wider)),
        )
        twin.run(
            twin.sql('ALTER TABLE {t} RENAME COLUMN extra TO "ex tra"'),
            lambda: ddl.rename_column(schema, "t", "extra", "ex tra"),
        )
        twin.run(
            twin.sql("ALTER TABLE {t} RENAME st.b TO bb"), lambda: ddl.rename_field(schema, "t", ["st", "b"], "bb")
        )
        twin.run(twin.sql("ALTER TABLE {t} DROP COLUMN st.a"), lambda: ddl.remove_field(schema, "t", ["st", "a"]))
        twin.run(
            twin.sql('ALTER TABLE {t} DROP COLUMN "ex tra"; ALTER TABLE {t} DROP COLUMN IF EXISTS nosuch'),
            lambda: ddl.remove_column(schema, "t", "ex tra", cascade=True),
            lambda: ddl.remove_column(schema, "t", "nosuch", if_exists=True),
        )
        assert "does not send" in refused(lambda: ddl.add_field(schema, "t", ["st"], pa.int32()))
        ddl.rename_table(schema, "t", "t2")
        renamed = twin.sql("ALTER TABLE {t} RENAME TO t2")
        twin.table = "t2"
        twin.run(renamed)
        twin.table = "made"
        twin.run(
            twin.sql("CREATE TABLE {t} AS SELECT i AS id, 'n' || i AS name FROM range(3) r(i)"),
            lambda: ddl.create_table_as(schema, "made", pa.table({"id": [0, 1, 2], "name": ["n0", "n1", "n2"]})),
        )
        twin.table = "empty"
        twin.run(
            twin.sql("CREATE TABLE {t} AS SELECT 1 AS id WHERE false"),
            lambda: ddl.create_table_as(schema, "empty", pa.schema([("id", pa.int32())]).empty_table()),
        )
        for table in ("t2", "made", "empty"):
            ddl.drop_table(schema, table)
        ddl.drop_schema(schema)


# What others see


def test_spark_reads_and_keeps_the_rules_of_a_table_that_was_made_here(
    client: AirportClient, schema: str, spark: Any, warehouse: Path
) -> None:
    people(client, schema, not_null=[0], checks=["score >= 0"], primary_key_columns=["id"])
    client.ddl.set_default(schema, "people", "tag", r"'it''s \ me'")
    client.insert(schema, "people", ada(tag="t"))
    table = f"delta.`{warehouse / schema / 'people'}`"
    spark.sql(f"INSERT INTO {table} (_rowid, id, name, score) VALUES (9, 2, 'Bo', NULL)")
    assert rows(client, schema, "people", "id", "tag") == [(1, "t"), (2, r"it's \ me")]
    for values in ("(10, 3, 'Cy', -1)", "(10, NULL, 'Cy', 1)"):
        with pytest.raises(Exception, match=r"CHECK constraint|NOT NULL"):
            spark.sql(f"INSERT INTO {table} (_rowid, id, name, score) VALUES {values}")
    assert "Duplicate key" in refused(lambda: client.insert(schema, "people", ada(tag="u")))
    client.ddl.rename_column(schema, "people", "id", "key")
    client.ddl.rename_column(schema, "people", "score", "points")
    declared = client.table(schema, "people").schema
    assert declared.metadata[b"check_constraints"].endswith(b'"points" >= 0')
    renamed = pa.schema([("key", pa.int32()), ("name", pa.string()), ("points", pa.float64()), ("tag", pa.string())])
    assert "Duplicate key" in refused(
        lambda: client.insert(schema, "people", pa.RecordBatch.from_pylist([{"key": 1}], renamed))
    )
    with pytest.raises(Exception, match="CHECK constraint"):
        spark.sql(f"INSERT INTO {table} (_rowid, key, name, points) VALUES (10, 3, 'Cy', -1)")


def test_tables_that_others_made_are_altered_as_far_as_they_allow(client: AirportClient, lake: Lake) -> None:
    lake.create("t", "k BIGINT, v STRING, p INT", partitioned_by="p")
    lake.fill("t", "VALUES (1, 'a', 1), (2, 'b', 2)")
    client.ddl.add_column(lake.schema, "t", pa.field("extra", pa.int32()))
    assert "column mapping" in refused(lambda: client.ddl.rename_column(lake.schema, "t", "v", "w"))
    assert "allowColumnDefaults" in refused(lambda: client.ddl.set_default(lake.schema, "t", "v", "'x'"))
    client.ddl.change_column_type(lake.schema, "t", pa.field("v", pa.string()), using="v || 'x'")
    client.ddl.add_constraint(lake.schema, "t", "UNIQUE(k)")
    table = DeltaTable(str(lake.path("t")))
    assert table.metadata().partition_columns == ["p"]
    assert rows(client, lake.schema, "t", "k", "v", "p") == [(1, "ax", 1), (2, "bx", 2)]
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "t")
    client.ddl.rename_column(lake.schema, "t", "p", "part")
    assert DeltaTable(str(lake.path("t"))).metadata().partition_columns == ["part"]
    assert rows(client, lake.schema, "t", "k", "part") == [(1, 1), (2, 2)]


@pytest.mark.parametrize("name", ["count", "a.b", "rows", "k0", "back`tick"])
def test_a_key_on_a_column_of_any_name(client: AirportClient, schema: str, name: str) -> None:
    client.ddl.create_table(schema, "t", pa.schema([(name, pa.int64())]))
    client.insert(schema, "t", pa.RecordBatch.from_pydict({name: [1, 2, None, None]}))
    quoted = '"' + name + '"'
    client.ddl.add_constraint(schema, "t", f"UNIQUE({quoted})")
    assert "Duplicate key" in refused(lambda: client.insert(schema, "t", pa.RecordBatch.from_pydict({name: [2]})))
    client.ddl.create_table(schema, "u", pa.schema([(name, pa.int64())]))
    client.insert(schema, "u", pa.RecordBatch.from_pydict({name: [1, 1]}))
    assert f"same ({name})" in refused(lambda: client.ddl.add_constraint(schema, "u", f"UNIQUE({quoted})"))


def test_a_client_that_attached_before_gets_its_old_shape_or_has_to_attach_again(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    people(client, schema)
    client.insert(schema, "people", ada())
    old = other()
    old.table(schema, "people")
    client.ddl.remove_column(schema, "people", "tag")
    client.ddl.change_column_type(schema, "people", pa.field("score", pa.string()), using="name")
    assert rows(old, schema, "people", "id", "name") == [(1, "Ada")]
    for column in ("tag", "score"):
        assert "attach again" in refused(lambda column=column: old.scan(schema, "people", [column]))
    assert "attach again" in refused(lambda: old.insert(schema, "people", ada(id=2)))
    client.ddl.rename_table(schema, "people", "folk")
    for work in (lambda: old.scan(schema, "people"), lambda: old.insert(schema, "people", ada(id=2))):
        assert "not found" in refused(work)
    assert rows(client, schema, "folk", "score") == [("Ada",)]


# Values that do not fit, rows that break a rule


def test_what_the_rows_do_not_allow_changes_nothing(
    client: AirportClient, schema: str, other: Callable[[], AirportClient], warehouse: Path
) -> None:
    client.ddl.create_table(schema, "t", pa.schema([("a", pa.int64()), ("b", pa.string()), ("f", pa.float64())]))
    data = pa.RecordBatch.from_pydict({"a": [1, 1, 2**40], "b": ["7", None, "x"], "f": [0.5, 1.5, -2.5]})
    client.insert(schema, "t", data)
    before = rows(client, schema, "t")
    version = DeltaTable(str(warehouse / schema / "t")).version()
    ddl = client.ddl
    for work, named in (
        (lambda: ddl.change_column_type(schema, "t", pa.field("a", pa.int32())), "'a' has a value that does not fit"),
        (lambda: ddl.change_column_type(schema, "t", pa.field("b", pa.int32())), "'b' has a value that does not fit"),
        (lambda: ddl.change_column_type(schema, "t", pa.field("f", pa.date32())), "'f' has a value that does not fit"),
        (lambda: ddl.set_not_null(schema, "t", "b"), "NULLs"),
        (lambda: ddl.add_constraint(schema, "t", "PRIMARY KEY(a)"), "same (a)"),
        (lambda: ddl.add_constraint(schema, "t", "CHECK (a < 100)"), "a < 100"),
    ):
        assert named in refused(work)
    assert DeltaTable(str(warehouse / schema / "t")).version() == version
    ddl.change_column_type(schema, "t", pa.field("f", pa.int8()))
    assert [row[2] for row in rows(other(), schema, "t")] == [0, 2, -2], "rounded as DuckDB rounds"
    assert [row[:2] for row in rows(client, schema, "t")] == [row[:2] for row in before]


def test_a_column_becomes_a_type_that_delta_lacks_and_back(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    uuid, ddl = "b975e418-7a6d-4afd-b1a4-1f7174ce1805", client.ddl
    names = ("u", "l", "z")
    ddl.create_table(
        schema, "t", pa.schema([("u", pa.string()), ("l", pa.list_(pa.string())), ("z", pa.timestamp("us"))])
    )
    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    row = {"u": uuid.upper(), "l": ["1.5", None], "z": noon.replace(tzinfo=None)}
    client.insert(schema, "t", pa.RecordBatch.from_pylist([row], client.table(schema, "t").schema.remove(3)))
    ddl.change_column_type(schema, "t", pa.field("u", pa.uuid()))
    ddl.change_column_type(schema, "t", pa.field("l", pa.list_(pa.uint64(), 2)))
    ddl.change_column_type(schema, "t", pa.field("z", pa.timestamp("us", "UTC")))
    declared = other().table(schema, "t").schema
    assert [declared.field(name).type for name in names[:2]] == [pa.uuid(), pa.list_(pa.uint64(), 2)]
    assert rows(other(), schema, "t", *names) == [(UUID(uuid), [2, None], noon)]
    ddl.change_column_type(schema, "t", pa.field("u", pa.string()))
    assert rows(other(), schema, "t", "u") == [(uuid,)]
    assert "'u' cannot be changed: Catalog Error: Type with name mood does not exist!" in refused(
        lambda: ddl.change_column_type(schema, "t", pa.field("u", pa.string()), using="CAST(u AS mood)")
    )


# CREATE TABLE AS whose rows never arrive


def _cut_off(gateway: Gateway, client: AirportClient, table: Any, transaction: str | None) -> None:
    """An insert whose client goes away in the middle."""
    more = {"airport-operation": "insert", "return-chunks": "0"}
    headers = client.identity.headers(transaction=transaction, data=True, more=more)
    with flight.connect(gateway.location) as connection:
        options = flight.FlightCallOptions(headers=[(name.encode(), value.encode()) for name, value in headers])
        sender, answers = connection.do_exchange(table.descriptor, options)
        sent = pa.RecordBatch.from_pydict({"id": [1]})
        sender.begin(sent.schema)
        assert answers.schema is not None
        sender.write_batch(sent)
        answers.cancel()
        with pytest.raises((pa.ArrowException, flight.FlightError, OSError)):
            sender.close()
    assert gateway.service.gate.wait_empty(60)


def test_a_table_made_by_a_query_goes_again_when_its_rows_do_not_arrive(
    gateway: Gateway, client: AirportClient, schema: str, other: Callable[[], AirportClient], warehouse: Path
) -> None:
    columns = pa.schema([("id", pa.int64())])
    statement = client.transaction_id()
    made = client.ddl._create_table(schema, "cut", columns)
    _cut_off(gateway, client, made, statement)
    with pytest.raises(UnknownNameError):
        other().table(schema, "cut")
    assert list((warehouse / "_deltaport" / "journal").iterdir()) == []
    client.ddl.create_table(schema, "kept", columns)
    _cut_off(gateway, client, client.table(schema, "kept"), client.transaction_id())
    assert rows(other(), schema, "kept") == [], "an INSERT that follows a CREATE TABLE is a statement of its own"
    client.ddl.create_table_as(schema, "cut", pa.table({"id": [5]}))
    assert rows(other(), schema, "cut") == [(5,)]


# Beside others


def test_statements_and_changes_of_the_table_do_not_spoil_each_other(
    gateway: Gateway, client: AirportClient, schema: str
) -> None:
    client.ddl.create_table(schema, "t", pa.schema([("a", pa.int64())]))
    landed: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            with AirportClient(gateway.location, CATALOG) as writer:
                number += 1
                kinds = writer.table(schema, "t").schema
                names = [field for field in kinds if not (field.metadata or {}).get(b"is_rowid")]
                row = {field.name: number if field.name == "a" else None for field in names}
                declared = pa.schema([pa.field(field.name, field.type) for field in names])
                try:
                    writer.insert(schema, "t", pa.RecordBatch.from_pylist([row], declared))
                    landed.append(number)
                except flight.FlightError as error:
                    assert "attach again" in str(error), error

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for step in range(2):
            client.ddl.add_column(schema, "t", pa.field(f"c{step}", pa.int32()))
            client.ddl.rename_column(schema, "t", f"c{step}", f"d{step}")
    finally:
        stop.set()
        writer.join()
    assert sorted(row["a"] for row in client.scan(schema, "t", ["a"]).rows()) == sorted(landed)
    assert client.table(schema, "t").column_names == ["a", "d0", "d1"]


def many_files(path: Path) -> None:
    """40 MB that cannot be compressed, more than all buffers between the files and a client hold."""
    rows = pa.table({"part": list(range(40)), "data": [os.urandom(1 << 20) for _ in range(40)]})
    write_deltalake(str(path), rows, partition_by=["part"])


@pytest.mark.parametrize("engine", ["direct", "spark"])
def test_a_scan_of_a_table_that_is_dropped_or_renamed_meanwhile_ends_in_one_clear_error(
    start_gateway: Callable[..., Gateway], tmp_path: Path, engine: str
) -> None:
    for table in ("dropped", "renamed"):
        many_files(tmp_path / "w" / "s" / table)
    gateway = start_gateway(tmp_path / "w", scan={"engine": engine, "batch_bytes": 1 << 20})
    with AirportClient(gateway.location, CATALOG) as reader, AirportClient(gateway.location, CATALOG) as changer:
        for table, change in (
            ("dropped", lambda: changer.ddl.drop_table("s", "dropped")),
            ("renamed", lambda: changer.ddl.rename_table("s", "renamed", "other")),
        ):
            scan = reader.open_scan("s", table)
            chunks = (chunk for endpoint in scan.endpoints for chunk in scan.chunks(endpoint))
            read = [next(chunks)]
            change()
            said = refused(lambda: read.extend(chunks))  # noqa: B023
            assert said == f"table 's.{table}' was dropped or renamed while it was read"
            assert 0 < sum(chunk.batch.num_rows for chunk in read) < 40, (
                "each of the declared shape, or the client objects"
            )
        assert changer.scan("s", "other", ["part"]).num_rows == 40
        assert len(gateway.service.streams) == 0


# In a BEGIN block that has read the table before


def three_rows(client: AirportClient, schema: str) -> None:
    client.ddl.create_table(schema, "t", pa.schema([("a", pa.int32()), ("b", pa.string())]))
    client.insert(schema, "t", pa.RecordBatch.from_pydict({"a": pa.array([1, 2, 3], pa.int32()), "b": ["x", "y", "z"]}))


def set_to(client: AirportClient, schema: str, column: str, value: object, *row_ids: int, **options: Any) -> int:
    """UPDATE t SET column = value WHERE rowid IN …"""
    kind = client.table(schema, "t").schema.field(column).type
    values = pa.RecordBatch.from_pydict({column: pa.array([value] * len(row_ids), kind), "rowid": list(row_ids)})
    return client.update(schema, "t", values, sets=[column], **options).total_changed


def test_a_block_goes_on_with_the_table_that_it_altered_itself(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    three_rows(client, schema)
    block = client.begin()
    assert client.scan(schema, "t", transaction=block).num_rows == 3
    set_to(client, schema, "b", "own", 1, transaction=block)
    client.ddl.change_column_type(schema, "t", pa.field("a", pa.int64()))  # rewrites every row
    assert set_to(client, schema, "a", 1 << 40, 0, 1, transaction=block) == 2
    client.ddl.rename_column(schema, "t", "b", "d")
    client.insert(schema, "t", pa.RecordBatch.from_pydict({"a": [4], "d": ["new"]}), transaction=block)
    gone = client.delete(schema, "t", [0, 3], returning=True, transaction=block)
    assert gone.returned is not None
    returned = sorted((row["a"], row["d"]) for row in gone.returned.to_pylist())
    assert returned == [(4, "new"), (1 << 40, "x")], "its own new row, too"
    scanned = client.scan(schema, "t", transaction=block).rows()
    assert sorted(tuple(row.values()) for row in scanned) == [(3, "z"), (1 << 40, "own")]
    assert sorted(rows(other(), schema, "t")) == [(3, "z"), (1 << 40, "own")]


def test_what_others_changed_before_and_after_a_blocks_own_alter_is_a_conflict_still(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    three_rows(client, schema)
    block = client.begin()
    client.scan(schema, "t", transaction=block)
    set_to(other(), schema, "b", "theirs", 1)
    client.ddl.change_column_type(schema, "t", pa.field("a", pa.int64()))
    other().delete(schema, "t", [2])
    assert set_to(client, schema, "b", "mine", 0, transaction=block) == 1, "nobody else changed this one"
    for row_id in (1, 2):
        assert "conflict: rows of table" in refused(
            lambda row_id=row_id: set_to(client, schema, "b", "mine", row_id, transaction=block)
        )
    assert "conflict: rows of table" in refused(lambda: client.delete(schema, "t", [0, 1], transaction=block))
    assert rows(other(), schema, "t") == [(1, "mine"), (2, "theirs")]


def test_an_alter_by_others_is_a_conflict_for_a_block_whether_it_altered_the_table_or_not(
    client: AirportClient, schema: str, other: Callable[[], AirportClient]
) -> None:
    three_rows(client, schema)
    block = client.begin()
    client.scan(schema, "t", transaction=block)
    other().ddl.change_column_type(schema, "t", pa.field("a", pa.int64()))
    client.ddl.add_column(schema, "t", pa.field("c", pa.int32()))
    said = refused(lambda: set_to(client, schema, "b", "mine", 0, transaction=block))
    assert "conflict: rows of table" in said
    assert rows(other(), schema, "t") == [(1, "x", None), (2, "y", None), (3, "z", None)]


def test_a_rollback_across_an_alter_of_columns_is_refused_and_changes_nothing(
    client: AirportClient, schema: str
) -> None:
    three_rows(client, schema)

    def roll_back() -> object:
        return json.loads(client.action("rollback_transaction")[0])["undone_by"]

    client.delete(schema, "t", [2])
    client.ddl.rename_column(schema, "t", "b", "d")
    assert "columns were altered since" in refused(roll_back)
    set_to(client, schema, "d", "new", 1)
    client.ddl.change_column_type(schema, "t", pa.field("a", pa.int64()))
    assert "columns were altered since" in refused(roll_back)
    assert rows(client, schema, "t") == [(1, "x"), (2, "new")]


class Crash(BaseException):
    """The process ends here: nothing of it runs any more."""


def test_an_alter_that_is_cut_off_leaves_the_old_table_or_the_new_one(
    client: AirportClient, schema: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ddl.create_table(schema, "t", pa.schema([("a", pa.int32())]))
    client.insert(schema, "t", pa.RecordBatch.from_pydict({"a": pa.array([1, 2], pa.int32())}))
    path = str(warehouse / schema / "t")
    run = altering.run_alteration

    def before_the_commit(*arguments: Any) -> bool:
        def crash() -> None:
            raise Crash

        return run(*arguments[:-1], crash)

    def after_the_commit(*arguments: Any) -> bool:
        run(*arguments)
        raise ConnectionResetError("the JVM's answer was lost")

    version = DeltaTable(path).version()
    with monkeypatch.context() as patch:
        patch.setattr(altering, "run_alteration", before_the_commit)
        assert "internal error" in refused(
            lambda: client.ddl.change_column_type(schema, "t", pa.field("a", pa.int64()))
        )
    assert DeltaTable(path).version() == version
    assert rows(client, schema, "t") == [(1,), (2,)]
    with monkeypatch.context() as patch:
        patch.setattr(altering, "run_alteration", after_the_commit)
        changed = client.ddl.change_column_type(schema, "t", pa.field("a", pa.int64()))
    assert changed.schema.field("a").type == pa.int64(), "the log says that it was made"
    assert rows(client, schema, "t") == [(1,), (2,)]
