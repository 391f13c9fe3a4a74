"""Tables whose columns are named as the gateway's own are, or as what it once used: made by others, over real Delta."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.errors import PreconditionError
from gateway.lake.spark.engine import Spark
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import refused, running_gateway
from tests.lake.reading import open_table
from tests.lake.test_internal_names import NAMES

# Names that stand beside those of a table somewhere on the way of its rows.
FREE = ["_deltaport_rowid", "_deltaport_position", "_deltaport_operation", "_deltaport_count", "_deltaport_statement"]
FREE += ["was_there", "is_there", "still_there", "a0", "b0", "c0", "k0", "last", "id", "kept", "nth", "modified"]
FREE += ["broken", "one", "s", "t", "new", "stored", "count", "value"]


def kept_for_itself(name: str) -> str:
    return f"column '{name}' has a name that the gateway keeps for itself: rename it to write to the table"


@pytest.fixture
def foreign(lake: Lake) -> str:
    columns = ", ".join(f"{name} BIGINT" for name in NAMES)
    lake.create("t", f"_rowid BIGINT, k BIGINT, {columns}", properties={"delta.columnMapping.mode": "name"})
    lake.fill("t", f"VALUES (0, 1, {', '.join(str(number) for number in range(len(NAMES)))})")
    return "t"


def test_others_tables_with_such_columns_are_read_and_not_written(
    client: AirportClient, lake: Lake, lake_spark: Spark, foreign: str
) -> None:
    expected = [{"k": 1, **{name: number for number, name in enumerate(NAMES)}}]
    assert client.scan(lake.schema, foreign, ["k", *NAMES]).rows() == expected
    new = pa.record_batch({"k": pa.array([2], pa.int64())})
    changed = pa.record_batch({"k": pa.array([3], pa.int64()), "rowid": pa.array([0], pa.int64())})
    for work in (
        lambda: client.insert(lake.schema, foreign, new),
        lambda: client.update(lake.schema, foreign, changed, sets=["k"]),
        lambda: client.delete(lake.schema, foreign, [0]),
    ):
        assert refused(work) == kept_for_itself(NAMES[0])
    with pytest.raises(PreconditionError) as failure:
        open_table(lake.path(foreign), lake_spark).adoption().run()
    assert str(failure.value) == kept_for_itself(NAMES[0])
    assert client.scan(lake.schema, foreign, ["k", *NAMES]).rows() == expected


def test_once_such_a_column_is_renamed_the_table_takes_rows(client: AirportClient, lake: Lake) -> None:
    lake.create("t", f"_rowid BIGINT, k BIGINT, {NAMES[0]} BIGINT", properties={"delta.columnMapping.mode": "name"})
    client.ddl.rename_column(lake.schema, "t", NAMES[0], "x")
    row = pa.record_batch({"k": pa.array([1], pa.int64()), "x": pa.array([2], pa.int64())})
    assert client.insert(lake.schema, "t", row).total_changed == 1
    assert client.scan(lake.schema, "t", ["k", "x"]).rows() == [{"k": 1, "x": 2}]


def numbered(beside: str, *rows: tuple[int, int]) -> pa.RecordBatch:
    """Rows of a table with all the free names: one value in each of its columns, and one in the column beside."""
    value, other = (pa.array(values, pa.int64()) for values in zip(*rows, strict=True))
    return pa.record_batch({**dict.fromkeys(FREE, value), beside: other})


@pytest.mark.parametrize("memory_rows", [100, 1], ids=["in memory", "spooled"])
def test_all_other_names_are_free_on_every_way_of_a_row(
    lake: Lake, lake_spark: Spark, tmp_path: Path, memory_rows: int
) -> None:
    columns = pa.schema([(name, pa.int64()) for name in (*FREE, "k")])
    with (
        running_gateway(lake.warehouse, lake_spark, tmp_path, memory_rows) as gateway,
        AirportClient(gateway.location, CATALOG) as client,
    ):
        client.ddl.create_schema(lake.schema)
        client.ddl.create_table(lake.schema, "t", columns, unique_columns=["count"], checks=["was_there > 0"])

        def stored() -> list[list[int]]:
            """Each row's id, and what its columns hold."""
            rows = client.scan(lake.schema, "t", [*FREE, "rowid"]).rows()
            return sorted([row["rowid"], *{row[name] for name in FREE}] for row in rows)

        def undo() -> None:
            client.action("rollback_transaction")

        assert client.insert(lake.schema, "t", numbered("k", (1, 0), (2, 0), (3, 0))).total_changed == 3
        assert stored() == [[0, 1], [1, 2], [2, 3]]
        assert "Duplicate key" in refused(lambda: client.insert(lake.schema, "t", numbered("k", (7, 0), (3, 0))))
        assert "CHECK constraint" in refused(lambda: client.insert(lake.schema, "t", numbered("k", (8, 0), (0, 0))))
        changed = client.update(lake.schema, "t", numbered("rowid", (5, 0), (6, 1)), sets=FREE)
        assert (changed.total_changed, stored()) == (2, [[0, 5], [1, 6], [2, 3]])
        undo()
        assert stored() == [[0, 1], [1, 2], [2, 3]]
        assert client.delete(lake.schema, "t", [0, 2]).total_changed == 2
        assert stored() == [[1, 2]]
        undo()
        assert stored() == [[0, 1], [1, 2], [2, 3]]


def test_all_other_names_are_free_where_rows_get_ids(lake: Lake, lake_spark: Spark) -> None:
    rows = pa.table({"_rowid": pa.array([4, 4, None], pa.int64()), **dict.fromkeys(FREE, pa.array([1, 2, 3]))})
    write_deltalake(str(lake.path("t")), rows)
    assert open_table(lake.path("t"), lake_spark).adoption().run().rows == 2
    found = DeltaTable(str(lake.path("t"))).to_pyarrow_table().to_pylist()
    assert len({row["_rowid"] for row in found} - {None}) == 3
    assert sorted([*{row[name] for name in FREE}] for row in found) == [[1], [2], [3]]
