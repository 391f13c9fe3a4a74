"""Filtered reads of tables with deletion vectors: only the row groups that may match, and never a deleted row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gateway.catalog.capabilities import ScanRequest
from gateway.lake.delta_table import DeltaTable
from gateway.lake.pushdown.translation import Binding, Bindings, conditions_of
from gateway.lake.reading.reader import RowGroupStream
from gateway.lake.reading.row_groups import RowGroups
from gateway.wire.filter_tree import And, ColumnRef, Comparison, Constant, Expression, In, IsNull, Operator, Or, TypeId
from gateway.wire.filter_tree import ValueType as Kind
from tests.builders import Lake
from tests.lake.reading import open_table, read

ROWS, GROUP = 4_000, 250
FIRST_DAY = date(2024, 1, 1)
BIGINT, VARCHAR, DATE = Kind(TypeId.BIGINT), Kind(TypeId.VARCHAR), Kind(TypeId.DATE)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def grouped(spark: Any, warehouse: Path) -> Lake:
    """Two files of many row groups, every seventh row deleted, a column renamed, and one added with later rows."""
    session = spark.newSession()
    session.conf.set("parquet.block.row.count.limit", str(GROUP))
    lake = Lake(session, warehouse, __name__)
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    lake.create("t", "_rowid BIGINT, k BIGINT, v STRING, d DATE", properties=properties)
    columns = "id AS _rowid, id AS k, concat('v', id) AS v, date_add(DATE'2024-01-01', cast(id AS INT)) AS d"
    lake.fill("t", f"SELECT /*+ COALESCE(1) */ {columns} FROM range(0, {ROWS})")
    lake.sql("DELETE FROM {t} WHERE k % 7 = 0", "t")
    lake.sql("ALTER TABLE {t} RENAME COLUMN v TO w", "t")
    lake.sql("ALTER TABLE {t} ADD COLUMN extra BIGINT", "t")
    later = columns.replace("AS v", "AS w")
    lake.fill("t", f"SELECT /*+ COALESCE(1) */ {later}, id % 10 AS extra FROM range({ROWS}, {ROWS + 1_000})")
    return lake


def expected() -> list[Row]:
    old = [k for k in range(ROWS) if k % 7]
    return [
        {"k": k, "w": f"v{k}", "d": FIRST_DAY + timedelta(k), "extra": None if k < ROWS else k % 10, "rowid": k}
        for k in [*old, *range(ROWS, ROWS + 1_000)]
    ]


def compared(name: str, operator: Operator, value: Any, kind: Kind) -> Expression:
    return Comparison(operator, ColumnRef(name, kind), Constant(kind, value))


def k_is(value: int) -> Expression:
    return compared("k", Operator.EQUAL, value, BIGINT)


FILTERS: dict[str, tuple[Expression, Callable[[Row], bool]]] = {
    "one row": (k_is(1_234), lambda row: row["k"] == 1_234),
    "a deleted row": (k_is(1_400), lambda row: row["k"] == 1_400),
    "beyond all rows": (k_is(1_000_000), lambda _row: False),
    "by row id": (compared("rowid", Operator.EQUAL, 3_333, BIGINT), lambda row: row["rowid"] == 3_333),
    "a range": (
        And((compared("k", Operator.GREATER_EQUAL, 990, BIGINT), compared("k", Operator.LESS, 1_010, BIGINT))),
        lambda row: 990 <= row["k"] < 1_010,
    ),
    "a list": (
        In(ColumnRef("k", BIGINT), tuple(Constant(BIGINT, k) for k in (3, 7, 2_600, 4_500)), False),
        lambda row: row["k"] in (3, 7, 2_600, 4_500),
    ),
    "a renamed column": (compared("w", Operator.EQUAL, "v77", VARCHAR), lambda row: row["w"] == "v77"),
    "a column that old files lack": (
        And((compared("extra", Operator.EQUAL, 5, BIGINT), compared("k", Operator.LESS, 4_100, BIGINT))),
        lambda row: row["extra"] == 5 and row["k"] < 4_100,
    ),
    "nulls of a column that old files lack": (
        And((IsNull(ColumnRef("extra", BIGINT), False), compared("k", Operator.LESS, 20, BIGINT))),
        lambda row: row["extra"] is None and row["k"] < 20,
    ),
    "a date": (
        compared("d", Operator.EQUAL, (FIRST_DAY - date(1970, 1, 1)).days + 600, DATE),
        lambda row: row["d"] == FIRST_DAY + timedelta(600),
    ),
    "two places": (Or((k_is(5), k_is(3_999))), lambda row: row["k"] in (5, 3_999)),
    "most rows": (compared("k", Operator.GREATER, 1_500, BIGINT), lambda row: row["k"] > 1_500),
}


@pytest.fixture(params=["vectors are written", "vectors are not written any more"], scope="module")
def table(request: pytest.FixtureRequest, grouped: Lake) -> DeltaTable:
    """What is in the files stays there when the property goes."""
    if "not" in request.param:
        grouped.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')", "t")
    return open_table(grouped.path("t"))


@pytest.mark.parametrize("case", FILTERS)
def test_a_filter_gives_the_rows_that_match_and_no_deleted_one(table: DeltaTable, case: str) -> None:
    condition, matches = FILTERS[case]
    rows = read(table.current(), conjuncts=(condition,)).table.to_pylist()
    wanted = expected()
    assert [row for row in rows if row not in wanted] == []
    assert sorted(row["k"] for row in rows if matches(row)) == [row["k"] for row in wanted if matches(row)]


# Nothing is known of a column in files that lack it, so all their row groups count as matching.
BROAD = ("most rows", "a column that old files lack")


@pytest.mark.parametrize("case", [case for case in FILTERS if case not in BROAD])
def test_few_rows_are_read_from_few_row_groups(table: DeltaTable, case: str) -> None:
    snapshot = table.current()
    stream = snapshot.open(ScanRequest(snapshot.shape, frozenset(snapshot.shape.names), (FILTERS[case][0],)))
    assert isinstance(stream, RowGroupStream)
    stream.close()


def test_a_lookup_decodes_one_row_group(grouped: Lake) -> None:
    log = open_table(grouped.path("t")).current().log
    bindings = Bindings({"k": Binding("k", pa.int64())})
    files = range(log.files.num_rows)
    plan = RowGroups().plan(log, conditions_of([k_is(1_234)], bindings), log.schema.columns, files)
    assert plan is not None
    assert [group for part in plan.parts for group in part.groups] == [(4, 1_000)]


def test_rows_of_a_filtered_read_come_in_batches_of_at_most_the_wanted_rows(grouped: Lake) -> None:
    few = compared("k", Operator.LESS, 600, BIGINT)
    result = read(open_table(grouped.path("t"), batch_rows=64).current(), conjuncts=(few,))
    assert max(batch.num_rows for batch in result.batches) <= 64
    assert result.column("k") == [k for k in range(600) if k % 7]
