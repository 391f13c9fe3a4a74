"""Adoption of tables that a stranger's Spark made: ids for every row, and nothing else changed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.errors import NotFoundError, PreconditionError, UnavailableError
from gateway.lake.adopting.adoption import Adopted, Limits
from gateway.lake.spark.engine import Spark
from gateway.lake.tables.snapshots import MARK_APPLICATION
from tests.airport import AirportClient
from tests.builders import Lake
from tests.lake.reading import open_table, read

ONE_FILE = Limits(commit_files=1)
Adopt = Callable[..., Adopted]


@pytest.fixture
def adopt(lake: Lake, lake_spark: Spark) -> Adopt:
    def run(table: str = "t", limits: Limits | None = None, **more: Any) -> Adopted:
        return open_table(lake.path(table), lake_spark).adoption(limits).run(**more)

    return run


def version(lake: Lake) -> int:
    return DeltaTable(lake.path("t")).version()


def commit(lake: Lake, number: int) -> list[dict[str, Any]]:
    text = (lake.path("t") / "_delta_log" / f"{number:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def marks(lake: Lake, number: int) -> list[int]:
    return [
        action["txn"]["version"]
        for action in commit(lake, number)
        if action.get("txn", {}).get("appId") == MARK_APPLICATION
    ]


def columns(lake: Lake) -> list[str]:
    return [field.name for field in DeltaTable(lake.path("t")).schema().fields]


def ids(lake: Lake) -> list[int | None]:
    found = read(open_table(lake.path("t")).current(), ["rowid"]).table["rowid"].to_pylist()
    return sorted(found, key=lambda each: -1 if each is None else each)


def contents(lake: Lake) -> list[str]:
    """Every row without its id, as text that no two different rows share."""
    table = read(open_table(lake.path("t")).current()).table
    return sorted(repr(row) for row in table.drop_columns(["rowid"]).to_pylist())


def assert_all_rows_have_ids(lake: Lake, rows: int) -> None:
    found = ids(lake)
    assert len(found) == rows
    assert None not in found
    assert len(set(found)) == rows
    assert DeltaTable(lake.path("t")).transaction_version(MARK_APPLICATION) >= max(i for i in found if i is not None)


def plain(lake: Lake, rows: int = 40, files: int = 4) -> None:
    """A table without row ids, one range of keys per file, older files first."""
    for first in range(0, rows, rows // files):
        keys = range(first, first + rows // files)
        data = pa.table({"k": pa.array(keys, pa.int64()), "v": [f"v{key}" for key in keys]})
        write_deltalake(lake.path("t"), data, mode="append")


def numbered(lake: Lake, *rows: tuple[int | None, int, str]) -> None:
    """One more file of a table that has the id column: id, key, text."""
    kinds = pa.schema([("_rowid", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
    write_deltalake(lake.path("t"), pa.table(list(map(list, zip(*rows, strict=True))), schema=kinds), mode="append")


def delete(lake: Lake, condition: str) -> None:
    DeltaTable(lake.path("t")).delete(condition)


def test_rows_get_dense_ids_in_file_order_once(lake: Lake, adopt: Adopt) -> None:
    plain(lake)
    before = contents(lake)
    assert adopt() == Adopted(rows=40, commits=2, version=version(lake))
    assert ids(lake) == list(range(40))
    assert contents(lake) == before
    assert columns(lake) == ["_rowid", "k", "v"]
    assert marks(lake, version(lake)) == [39]
    files = pa.table(DeltaTable(lake.path("t")).get_add_actions(flatten=True))
    assert files["null_count._rowid"].to_pylist() == [0] * files.num_rows
    ranges = sorted(zip(files["min._rowid"].to_pylist(), files["max._rowid"].to_pylist(), strict=True))
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(ranges))
    assert adopt() == Adopted(rows=0, commits=0, version=version(lake))  # a second run has nothing to do
    note = next(a["commitInfo"] for a in commit(lake, version(lake)) if "commitInfo" in a)["userMetadata"]
    assert json.loads(note)["deltaport"]["statements"] == [
        {"operation": "adopt", "caller": "deltaport adopt", "rows": 40}
    ]


def test_an_empty_table_gets_the_column_alone(lake: Lake, adopt: Adopt) -> None:
    DeltaTable.create(lake.path("t"), pa.schema([("k", pa.int64())]))
    assert adopt().commits == 1
    assert columns(lake) == ["_rowid", "k"]


KINDS: dict[str, dict[str, Any]] = {
    "partitioned": {"partitioned_by": "p", "properties": {"delta.enableDeletionVectors": "false"}},
    "tracked": {"properties": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}},
    "mapped": {"properties": {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_stay_as_they_are(lake: Lake, adopt: Adopt, kind: str) -> None:
    lake.create(
        "t",
        "k BIGINT, p STRING, ts TIMESTAMP, d DECIMAL(20,3), b BINARY, f DOUBLE,"
        " s STRUCT<x: INT, y: ARRAY<STRING>>, m MAP<STRING, STRUCT<z: BIGINT>>",
        **KINDS[kind],
    )
    for _ in range(2):  # the very same rows twice: only their place tells them apart
        lake.fill(
            "t",
            "SELECT id, if(id % 3 = 0, NULL, concat('a b%/', id % 3)), timestamp_micros(id * 1000001), id / 7, "
            "cast(concat('b', id) AS BINARY), if(id % 5 = 0, double('NaN'), -0.0D), "
            "if(id % 4 = 0, NULL, named_struct('x', int(id), 'y', array('p', NULL))), "
            "map(concat('k', id), named_struct('z', if(id % 2 = 0, NULL, id))) FROM range(30)",
        )
    lake.sql("DELETE FROM {t} WHERE k = 7", "t")
    if kind == "mapped":
        lake.sql("ALTER TABLE {t} RENAME COLUMN d TO `a.b c`", "t")
    before = contents(lake)
    tracked = lake.sql("SELECT k, _metadata.row_id FROM {t} ORDER BY 1, 2", "t").collect() if kind == "tracked" else []
    assert adopt().rows == 58
    assert contents(lake) == before
    assert_all_rows_have_ids(lake, 58)
    if tracked:
        assert lake.sql("SELECT k, _metadata.row_id FROM {t} ORDER BY 1, 2", "t").collect() == tracked


def test_rows_appended_by_others_get_ids_above_every_other(lake: Lake, adopt: Adopt) -> None:
    numbered(lake, *((k, k, "old") for k in range(5)))
    delete(lake, "k = 4")
    numbered(lake, *((None, k, "new") for k in range(10, 13)))
    adopt()
    assert ids(lake) == [0, 1, 2, 3, 4, 5, 6]
    delete(lake, "_rowid = 6")
    numbered(lake, (None, 20, "newer"))
    assert adopt().rows == 1
    assert ids(lake) == [0, 1, 2, 3, 4, 5, 7]  # 6 was given once and is the mark's to remember


def test_of_rows_with_one_id_the_oldest_keeps_it(lake: Lake, adopt: Adopt) -> None:
    numbered(lake, *((k, k, "old") for k in range(3)))
    numbered(lake, *((k, k, "old") for k in range(3, 6)))
    numbered(lake, *((k, k + 100, "copy") for k in range(4)))
    numbered(lake, (None, 200, "twin"), (5, 201, "twin"), (None, 202, "twin"))
    before = contents(lake)
    assert adopt().rows == 7
    assert contents(lake) == before
    assert_all_rows_have_ids(lake, 13)
    rows = read(open_table(lake.path("t")).current()).table.to_pylist()
    assert sorted((row["rowid"], row["k"]) for row in rows if row["k"] < 100) == [(k, k) for k in range(6)]
    assert adopt().commits == 0


def test_a_run_that_was_ended_is_resumed(lake: Lake, adopt: Adopt) -> None:
    plain(lake)
    heard: list[tuple[int, int]] = []

    def die(done: int, total: int) -> None:
        heard.append((done, total))
        if done:
            raise KeyboardInterrupt

    before = contents(lake)
    with pytest.raises(KeyboardInterrupt):
        adopt(limits=ONE_FILE, progress=die)
    assert heard == [(0, 40), (10, 40)]
    assert ids(lake) == [None] * 30 + list(range(10))
    assert contents(lake) == before
    assert adopt(limits=ONE_FILE).rows == 30
    assert ids(lake) == list(range(40))


def test_foreign_commits_between_the_steps_do_no_harm(lake: Lake, adopt: Adopt) -> None:
    plain(lake)
    steps = iter(
        [
            lambda: numbered(lake, *((None, k, "late") for k in range(100, 105))),
            lambda: delete(lake, "k % 10 = 3"),
            lambda: lake.sql("OPTIMIZE {t}", "t"),
        ]
    )
    adopt(limits=ONE_FILE, progress=lambda _done, _total: next(steps, lambda: None)())
    assert_all_rows_have_ids(lake, 40)
    assert len(contents(lake)) == 40


def test_the_mark_moving_under_a_commit_makes_it_run_again(
    lake: Lake, adopt: Adopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.lake.adopting import numbering

    plain(lake)
    read, calls = numbering._read, []

    def meddle(session: Any, *rest: Any) -> Any:
        if not calls:
            lake.spark.conf.set("spark.databricks.delta.write.txnAppId", MARK_APPLICATION)
            lake.spark.conf.set("spark.databricks.delta.write.txnVersion", "2")
            lake.fill("t", "SELECT id, 500 + id, 'theirs' FROM range(3)")
            lake.spark.conf.unset("spark.databricks.delta.write.txnAppId")
            lake.spark.conf.unset("spark.databricks.delta.write.txnVersion")
        calls.append(1)
        return read(session, *rest)

    monkeypatch.setattr(numbering, "_read", meddle)
    adopt()
    assert len(calls) == 2
    assert_all_rows_have_ids(lake, 43)


def test_statistics_are_kept_of_the_row_id(lake: Lake, adopt: Adopt) -> None:
    lake.create("t", "k BIGINT, v STRING", properties={"delta.dataSkippingStatsColumns": "k"})
    lake.fill("t", "SELECT id, 'v' FROM range(3)")
    adopt()
    assert DeltaTable(lake.path("t")).metadata().configuration["delta.dataSkippingStatsColumns"] == "_rowid,k"
    assert "max._rowid" in pa.table(DeltaTable(lake.path("t")).get_add_actions(flatten=True)).column_names


def test_a_row_id_column_beyond_the_indexed_ones_moves_to_the_front(lake: Lake, adopt: Adopt) -> None:
    indexed = {"delta.dataSkippingNumIndexedCols": "2"}
    lake.create("t", "k BIGINT, v STRING, _rowid BIGINT", properties=indexed)
    lake.fill("t", "SELECT id, 'v', NULL FROM range(3)")
    adopt()
    assert columns(lake) == ["_rowid", "k", "v"]
    assert "max._rowid" in pa.table(DeltaTable(lake.path("t")).get_add_actions(flatten=True)).column_names


def test_what_cannot_be_adopted_is_refused(lake: Lake, adopt: Adopt) -> None:
    plain_schema, typed = pa.schema([("k", pa.int64())]), pa.schema([("_ROWID", pa.string()), ("k", pa.int64())])
    DeltaTable.create(lake.path("ao"), plain_schema, configuration={"delta.appendOnly": "true"})
    DeltaTable.create(lake.path("typed"), typed)
    for table in ("ao", "typed"):
        with pytest.raises(PreconditionError):
            adopt(table)
    with pytest.raises(NotFoundError):
        adopt("nowhere")
    DeltaTable.create(lake.path("t"), plain_schema)
    with pytest.raises(UnavailableError):
        open_table(lake.path("t")).adoption().run()


def test_an_adopted_table_takes_update_and_delete(lake: Lake, adopt: Adopt, client: AirportClient) -> None:
    plain(lake, 4, 1)
    adopt()
    changed = pa.record_batch({"v": pa.array(["x"]), "rowid": pa.array([1], pa.int64())})
    assert client.update(lake.schema, "t", changed, sets=["v"]).total_changed == 1
    assert client.delete(lake.schema, "t", [2]).total_changed == 1
    added = pa.record_batch({"k": pa.array([9], pa.int64()), "v": pa.array(["new"])})
    assert client.insert(lake.schema, "t", added).total_changed == 1
    rows = sorted(client.scan(lake.schema, "t", ["k", "v", "rowid"]).rows(), key=lambda row: row["k"])
    assert [(row["k"], row["v"], row["rowid"]) for row in rows] == [
        (0, "v0", 0),
        (1, "x", 1),
        (3, "v3", 3),
        (9, "new", 4),
    ]
