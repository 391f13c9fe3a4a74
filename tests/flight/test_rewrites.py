"""ALTER … TYPE … USING over real tables: any expression of DuckDB's, and nothing but the column changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.airport import AirportClient
from tests.builders import Lake
from tests.flight.writing import refused, version_of


def rows(client: AirportClient, lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in client.scan(lake.schema, "t", columns).rows()), key=repr)


def test_using_may_be_any_expression_over_the_row(client: AirportClient, lake: Lake) -> None:
    columns = "k BIGINT, uuid STRING, `a.b` ARRAY<BIGINT>, seen TIMESTAMP, `back``tick` DECIMAL(38, 0)"
    lake.create(
        "t", columns, properties={"delta.columnMapping.mode": "name", "delta.feature.timestampNtz": "supported"}
    )
    lake.fill(
        "t", "VALUES (1, 'Straße', array(3, NULL, 1), TIMESTAMP '2024-03-31 00:30:00', -9), (2, NULL, NULL, NULL, NULL)"
    )
    for field, using in (
        (pa.field("uuid", pa.string()), "upper(uuid) || k"),
        (pa.field("a.b", pa.list_(pa.string())), "list_transform(list_sort(\"a.b\"), lambda e: e || '-' || k)"),
        (pa.field("seen", pa.timestamp("us")), "seen AT TIME ZONE 'Europe/Paris'"),
        (pa.field("back`tick", pa.uint8()), 'TRY_CAST("back`tick" AS UTINYINT)'),
        (pa.field("k", pa.struct([("n", pa.int64()), ("t", pa.time64("us"))])), "{'n': k, 't': seen::TIME}"),
    ):
        client.ddl.change_column_type(lake.schema, "t", field, using=using)
    local = datetime(2024, 3, 31, 1, 30)  # noqa: DTZ001
    assert rows(client, lake, "uuid", "a.b", "seen", "back`tick", "k") == [
        ("STRAẞE1", [None, "1-1", "3-1"], local, None, {"n": 1, "t": local.time()}),
        (None, None, None, None, {"n": 2, "t": None}),
    ]
    client.ddl.change_column_type(lake.schema, "t", pa.field("k", pa.int32()), using="42")
    assert rows(client, lake, "k") == [(42,), (42,)]


@pytest.mark.parametrize(
    ("using", "why"),
    [
        ("random()", "same values whenever it is run"),
        ("(SELECT max(k) FROM t)", "sub-queries"),
        ("sum(k)", "row by row"),
        ("k AS BIGINT) FROM read_text('/etc/passwd') --", "cannot be read"),
        ("nosuch + 1", "column 'nosuch'"),
        ("lower(k)", "'k' cannot be changed: Binder Error: No function matches"),
        ("CASE k WHEN 2 THEN 'two' ELSE '1' END", "'k' has a value that does not fit; nothing was changed"),
        ("list_sum(range(500_000_000 + k))", "memory; nothing was changed"),
        ("CASE WHEN k < 2 THEN k END", "NOT NULL"),
    ],
)
def test_what_cannot_be_computed_changes_nothing(client: AirportClient, lake: Lake, using: str, why: str) -> None:
    lake.create("t", "k BIGINT NOT NULL, v STRING")
    lake.fill("t", "VALUES (1, 'a'), (2, 'b')")
    before = version_of(lake, "t")
    text = refused(lambda: client.ddl.change_column_type(lake.schema, "t", pa.field("k", pa.int32()), using=using))
    assert why in text
    assert "passwd" not in text
    assert version_of(lake, "t") == before
    assert rows(client, lake, "k", "v") == [(1, "a"), (2, "b")]


def test_all_else_of_a_table_stays_as_it_is(client: AirportClient, lake: Lake) -> None:
    """Row tracking, deletion vectors, variants, partitions, generated columns, names that are mapped."""
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
    }
    columns = "k BIGINT, x STRING, j VARIANT, p DATE, g BIGINT GENERATED ALWAYS AS (k * 2), at TIMESTAMP"
    lake.create("t", columns, partitioned_by="p", properties=properties)
    lake.fill(
        "t",
        "(k, x, j, p, at) SELECT id, concat(id, '.5'), parse_json(concat('{\"a\": ', id, '}')),"
        " date_add(DATE '0001-01-01', CAST(id AS INT) % 2), TIMESTAMP '1500-02-03 04:05:06.000007' FROM range(6)",
    )
    lake.sql("DELETE FROM {t} WHERE k = 3", "t")
    kept = "SELECT k, to_json(j), p, g, at, _metadata.row_id, _metadata.row_commit_version FROM {t} ORDER BY k"
    before = lake.sql(kept, "t").collect()
    client.ddl.change_column_type(lake.schema, "t", pa.field("x", pa.decimal128(38, 3)))
    assert [row[:6] for row in lake.sql(kept, "t").collect()] == [row[:6] for row in before]
    assert [str(x) for _, x in rows(client, lake, "k", "x")] == ["0.500", "1.500", "2.500", "4.500", "5.500"]


def test_moments_keep_their_microseconds_whatever_the_year(client: AirportClient, lake: Lake) -> None:
    lake.create("t", "seen TIMESTAMP, local TIMESTAMP_NTZ, d DATE")
    texts = ["0001-01-01 00:00:00.000001", "1582-10-10 12:00:00", "1900-01-01 00:00:00.5", "9999-12-31 23:59:59.999999"]
    lake.fill("t", "VALUES " + ", ".join(f"(TIMESTAMP '{t}', TIMESTAMP_NTZ '{t}', DATE '{t[:10]}')" for t in texts))
    for name in ("seen", "local", "d"):
        client.ddl.change_column_type(lake.schema, "t", pa.field(name, pa.string()))
    assert rows(client, lake, "seen", "local", "d") == [(f"{text}+00", text, text[:10]) for text in texts]
    for name, kind in (("seen", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("d", pa.date32())):
        client.ddl.change_column_type(lake.schema, "t", pa.field(name, kind))
    found = rows(client, lake, "seen", "local", "d")
    assert {row[0] for row in found} == {datetime.fromisoformat(text).replace(tzinfo=UTC) for text in texts}
    assert all((at.replace(tzinfo=None), at.date()) == (local, day) for at, local, day in found)
