"""Reads over the wire, of Delta tables that Spark made alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake

Start = Callable[..., Gateway]


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def test_a_table_made_by_others_is_there_at_the_next_attach(gateway: Gateway, lake: Lake) -> None:
    lake.numbers("n", 10)
    with AirportClient(gateway.location, "lake") as client:
        assert client.table(lake.schema, "n").column_names == ["k", "v"]
        before = client.scan(lake.schema, "n", ["k", "v", "rowid"])
        assert sorted_rows(before.rows()) == [{"k": k, "v": f"v{k}", "rowid": k} for k in range(10)]
        lake.sql("INSERT INTO {t} VALUES (10, 10, 'late')", "n")
        assert client.scan(lake.schema, "n").num_rows == 11  # a scan looks at its own table's log


def test_the_catalogs_version_moves_with_a_schema_and_not_with_rows(gateway: Gateway, lake: Lake) -> None:
    lake.numbers("n", 3)
    catalog = gateway.service.lake.catalogs.get("lake")
    catalog.refresh()
    first = catalog.version
    lake.sql("INSERT INTO {t} VALUES (3, 3, 'x')", "n")
    catalog.refresh()
    assert catalog.version == first
    lake.sql("ALTER TABLE {t} ADD COLUMN more INT COMMENT 'new'", "n")
    catalog.refresh()
    second = catalog.version
    assert second > first
    lake.sql("ALTER TABLE {t} ALTER COLUMN more COMMENT 'newer'", "n")
    catalog.refresh()
    assert catalog.version > second
    shutil.rmtree(lake.path("n"))
    catalog.refresh()
    assert (lake.schema, "n") not in catalog.listing().tables


def test_a_filter_on_the_key_reads_one_file_of_many(gateway: Gateway, lake: Lake, client: AirportClient) -> None:
    lake.numbers("n", 1000, files=8)
    found = client.table(lake.schema, "n")
    scanned = client.scan(lake.schema, "n", ["k", "v"], [found.ref("k").eq(700)])
    assert scanned.rows() == [{"k": 700, "v": "v700"}]
    table = gateway.service.lake.catalogs.get("lake").table(lake.schema, "n")
    whole = client.scan(lake.schema, "n", ["k"], [found.ref("rowid").between(10, 12)])
    assert sorted(row["k"] for row in whole.rows()) == [10, 11, 12]
    assert table.current().size.files == 8


def make_zoo(lake: Lake) -> list[str]:
    """Tables with every feature a reader may stumble over."""
    lake.create(
        "mapped",
        "_rowid BIGINT, a INT NOT NULL, gone STRING, old_name STRING, nested STRUCT<x: INT, y: ARRAY<STRING>>, "
        "m MAP<STRING, INT>, d DECIMAL(38, 10), f FLOAT, b BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
        "yes BOOLEAN",
        properties={"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"},
    )
    lake.fill(
        "mapped",
        "SELECT id, cast(id AS INT), 'g', concat('o', id), named_struct('x', cast(id AS INT), 'y', array('a', NULL)), "
        "map('k', cast(id AS INT)), cast(id AS DECIMAL(38, 10)) / 3, cast(id AS FLOAT), "
        "cast(concat('b', id) AS BINARY), "
        "date_add(DATE'2024-01-01', cast(id AS INT)), timestamp_micros(id * 1000001), "
        "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999', id % 2 = 0 FROM range(50)",
    )
    lake.fill("mapped", "SELECT 50, 50, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL")
    lake.sql("ALTER TABLE {t} DROP COLUMN gone", "mapped")
    lake.sql("ALTER TABLE {t} RENAME COLUMN old_name TO `new name`", "mapped")
    lake.sql("DELETE FROM {t} WHERE a % 7 = 3", "mapped")
    lake.create("parted", "v INT, p STRING, q DATE", partitioned_by="p, q")
    lake.fill(
        "parted", "VALUES (1, 'a/b', DATE'2024-01-01'), (2, NULL, NULL), (3, 'ü %', DATE'1999-12-31'), (4, '', NULL)"
    )
    lake.create("ancient", "k INT, at TIMESTAMP")
    lake.fill("ancient", "VALUES (1, TIMESTAMP'9999-12-31 00:00:00'), (2, TIMESTAMP'0001-01-01 00:00:00'), (3, NULL)")
    lake.create("widened", "k INT", properties={"delta.enableTypeWidening": "true"})
    lake.fill("widened", "VALUES (1)")
    lake.sql("ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT", "widened")
    lake.fill("widened", "VALUES (5000000000)")
    lake.create("empty", "k INT, v STRING")
    return ["mapped", "parted", "ancient", "widened", "empty"]


def test_both_routes_give_one_result(start_gateway: Start, client: AirportClient, lake: Lake) -> None:
    tables = make_zoo(lake)
    other = start_gateway(lake.warehouse, scan={"engine": "spark"})
    with AirportClient(other.location, "lake") as through_spark:
        for table in tables:
            direct = client.scan(lake.schema, table)
            spark = through_spark.scan(lake.schema, table)
            assert client.table(lake.schema, table).schema == through_spark.table(lake.schema, table).schema
            assert sorted_rows(direct.rows()) == sorted_rows(spark.rows()), table
            expected = lake.spark.read.format("delta").load(str(lake.path(table))).count()
            assert direct.num_rows == expected
    ancient = client.scan(lake.schema, "ancient", ["at"])
    assert {row["at"] for row in ancient.rows()} == {
        datetime(9999, 12, 31, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        None,
    }


def test_a_large_scan_is_cut_and_every_row_comes_once(start_gateway: Start, lake: Lake) -> None:
    lake.numbers("n", 5000, files=8)
    lake.sql("INSERT INTO {t} VALUES (NULL, 5000, 'without id')", "n")
    for engine in ("direct", "spark"):
        small = {"endpoint_bytes": 20_000, "piece_bytes": 8_000, "max_endpoints": 3, "engine": engine}
        other = start_gateway(lake.warehouse, scan=small)
        with AirportClient(other.location, "lake", threads=3) as client:
            scanned = client.scan(lake.schema, "n", ["k"])
        assert scanned.endpoints == 3
        assert sorted(row["k"] for row in scanned.rows()) == list(range(5001))
        assert all(0 <= progress <= 1 for progress in scanned.progress)


def test_progress_moves(start_gateway: Start, lake: Lake) -> None:
    lake.numbers("n", 20_000, files=4)
    other = start_gateway(lake.warehouse, scan={"batch_rows": 2048})
    with AirportClient(other.location, "lake") as client:
        progress = client.scan(lake.schema, "n").progress
    assert progress == sorted(progress)
    assert progress[0] < progress[-1] == 1.0


def test_a_client_that_knows_the_old_schema_gets_its_shape_or_a_clear_error(gateway: Gateway, lake: Lake) -> None:
    lake.numbers("n", 3, properties={"delta.columnMapping.mode": "name"})
    with AirportClient(gateway.location, "lake") as old:
        old.table(lake.schema, "n")
        lake.sql("ALTER TABLE {t} ADD COLUMN extra INT", "n")
        assert old.scan(lake.schema, "n").batches[0].schema.names == ["k", "v", "rowid"]
        lake.sql("ALTER TABLE {t} DROP COLUMN v", "n")
        assert sorted(row["k"] for row in old.scan(lake.schema, "n", ["k"]).rows()) == [0, 1, 2]
        with pytest.raises(flight.FlightError, match="column 'v' no longer exists: the schema changed, attach again"):
            old.scan(lake.schema, "n", ["v"])
    with AirportClient(gateway.location, "lake") as new:
        assert new.table(lake.schema, "n").column_names == ["k", "extra"]


def test_time_travel_across_schema_changes(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 3)
    lake.sql("ALTER TABLE {t} ADD COLUMN extra INT", "n")
    lake.sql("INSERT INTO {t} VALUES (3, 3, 'v3', 7)", "n")
    assert client.table(lake.schema, "n").column_names == ["k", "v", "extra"]
    assert client.flight_info(lake.schema, "n", ("VERSION", 1)).column_names == ["k", "v"]
    assert client.scan(lake.schema, "n", ["k", "v"], at=("VERSION", 1)).num_rows == 3
    assert client.scan(lake.schema, "n", at=("TIMESTAMP", "2999-01-01")).num_rows == 4
    with pytest.raises(flight.FlightError, match=r"has no version 9; it has 0 to 3"):
        client.scan(lake.schema, "n", at=("VERSION", 9))
    with pytest.raises(flight.FlightError, match="no version is as old as 1999"):
        client.scan(lake.schema, "n", at=("TIMESTAMP", "1999-01-01"))


def test_a_transaction_reads_one_version_and_its_statistics(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 3)
    with client.begin() as transaction:
        assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 3
        lake.sql("INSERT INTO {t} VALUES (3, 300, 'x')", "n")
        assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 3
        assert client.column_statistics(lake.schema, "n", "k", transaction=transaction)["max"] == 2
    assert client.column_statistics(lake.schema, "n", "k")["max"] == 300


def test_a_broken_table_never_breaks_the_rest(gateway: Gateway, lake: Lake) -> None:
    lake.numbers("good", 3)
    corrupt = lake.path("corrupt") / "_delta_log"
    corrupt.mkdir(parents=True)
    (corrupt / f"{0:020d}.json").write_text('{"metaData": ')
    (lake.path("no_log")).mkdir()
    lake.numbers("lost", 3)
    for file in lake.path("lost").glob("*.parquet"):
        file.unlink()
    with AirportClient(gateway.location, "lake") as client:
        listed = {table.name for table in client.tables() if table.schema_name == lake.schema}
        assert listed == {"good", "lost"}
        with pytest.raises(flight.FlightError, match="a data file of version 1 is missing"):
            client.scan(lake.schema, "lost")
        assert client.scan(lake.schema, "good").num_rows == 3


def test_a_table_dropped_under_a_scan_ends_in_rows_or_a_clear_error(gateway: Gateway, lake: Lake) -> None:
    lake.numbers("n", 100_000, files=4)
    with AirportClient(gateway.location, "lake") as client:
        scan = client.open_scan(lake.schema, "n")
        shutil.rmtree(lake.path("n"))
        with pytest.raises(flight.FlightError, match=r"not found|is missing"):
            scan.read()
        with pytest.raises(flight.FlightError, match="not found"):
            client.scan(lake.schema, "n")


def test_a_table_replaced_by_another_is_never_read_by_an_old_ticket(gateway: Gateway, lake: Lake) -> None:
    lake.numbers("n", 3)
    with AirportClient(gateway.location, "lake") as client:
        scan = client.open_scan(lake.schema, "n")
        shutil.rmtree(lake.path("n"))
        lake.numbers("n", 5)
        with pytest.raises(flight.FlightError, match="was replaced by another one"):
            scan.read()
        assert client.scan(lake.schema, "n").num_rows == 5


def test_a_table_without_row_ids_declares_a_rowid_all_the_same(client: AirportClient, lake: Lake) -> None:
    lake.create("plain", "k INT, rowid STRING")
    lake.fill("plain", "VALUES (1, 'mine')")
    found = client.table(lake.schema, "plain")
    assert found.column_names == ["k", "rowid"]
    assert found.rowid is not None
    assert client.scan(lake.schema, "plain", ["k", "rowid"]).num_rows == 1


def test_comments_defaults_constraints_and_not_null_are_declared(client: AirportClient, lake: Lake) -> None:
    lake.create(
        "declared",
        "k INT NOT NULL COMMENT 'the key', v STRING DEFAULT 'x', w INT DEFAULT 1 + 1",
        comment="a table",
        properties={"delta.feature.allowColumnDefaults": "supported"},
    )
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (k > 0)", "declared")
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT odd CHECK (k % 2 = 1)", "declared")
    found = client.table(lake.schema, "declared")
    assert found.comment == "a table"
    k, v, w = (found.schema.field(name) for name in ("k", "v", "w"))
    assert (k.nullable, k.metadata[b"comment"]) == (False, b"the key")
    assert (v.metadata[b"default"], w.metadata[b"default"]) == (b"'x'", b"1 + 1")
    assert b"k > 0" in found.schema.metadata[b"check_constraints"]


def test_mapped_tables_and_several_catalogs(start_gateway: Start, lake: Lake, tmp_path: Path) -> None:
    lake.numbers("n", 3)
    other = start_gateway(tmp_path / "none", catalogs={"far__tables": f'{{"sales.orders": "{lake.path("n")}"}}'})
    with AirportClient(other.location, "FAR") as client:
        assert [(table.schema_name, table.name) for table in client.tables()] == [("sales", "orders")]
        assert client.scan("sales", "orders").num_rows == 3
    with AirportClient(other.location, "lake") as client:
        assert client.tables() == []
    with AirportClient(other.location, "nowhere") as client, pytest.raises(flight.FlightError, match="lake, far"):
        client.tables()
