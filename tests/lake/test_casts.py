"""Casts of a column give in Spark what DuckDB's CAST gives, or fail where it fails."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gateway.lake.altering import MISFIT
from gateway.lake.casts import cast_expression
from gateway.lake.spark import Profile, Spark

SQL_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.decimal128(6, 2): "DECIMAL(6,2)",
    pa.string(): "VARCHAR",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
}
VALUES: dict[pa.DataType, list[Any]] = {
    pa.float64(): [0.5, 1.5, -2.5, 127.4, 1e300, float("nan"), None, 128.0, 0.1],
    pa.decimal128(6, 2): ["0.50", "1.50", "-2.50", "127.49", "1000.00", None],
    pa.int64(): [0, 1, -1, 127, 128, 256, 2**40, None],
    pa.string(): ["7", "-1", "true", "x", "", "2024-02-30", "2024-02-29", "0.25", None],
    pa.date32(): ["2024-02-29", "0001-01-01", "9999-12-31", None],
    pa.timestamp("us"): ["2024-02-29 10:20:30.5", "2024-02-29 00:00:00", None],
    pa.bool_(): [True, False, None],
}


def _column(old: pa.DataType) -> pa.Array:
    if old in (pa.decimal128(6, 2), pa.date32(), pa.timestamp("us")):
        return pa.array(VALUES[old], pa.string()).cast(old)
    return pa.array(VALUES[old], old)


def _by_duckdb(old: pa.DataType, new: pa.DataType) -> tuple[list[bool], list[object]]:
    """Which values fit, and what they become."""
    kind = SQL_NAMES[new]
    with duckdb.connect() as connection:
        connection.register("rows", pa.table({"v": _column(old)}))
        found = connection.execute(
            f"SELECT v IS NULL OR TRY_CAST(v AS {kind}) IS NOT NULL, TRY_CAST(v AS {kind}) FROM rows"
        )
        answers = found.fetchall()
    return [fits for fits, _ in answers], [answer for _, answer in answers]


def _fits_both(old: pa.DataType, new: pa.DataType, value: object) -> bool:
    # A fraction in a text is no integer for Spark, which is why the README says so.
    return not (old == pa.string() and pa.types.is_integer(new) and "." in str(value))


@pytest.mark.parametrize("old", VALUES, ids=str)
def test_values_that_fit_become_what_duckdb_makes_of_them(old: pa.DataType, lake_spark: Spark) -> None:
    goals = {new: cast_expression("v", old, new) for new in SQL_NAMES if new != old}
    casts = {new: text for new, text in goals.items() if text is not None}
    wanted = {new: _by_duckdb(old, new) for new in casts}
    data = {"v": _column(old), "n": pa.array(range(len(VALUES[old])))}
    columns = []
    for position, (new, text) in enumerate(casts.items()):
        fitting = [n for n, fits in enumerate(wanted[new][0]) if fits and _fits_both(old, new, VALUES[old][n])]
        columns.append(f"IF(n IN ({', '.join(map(str, [*fitting, -1]))}), {text}, NULL) AS c{position}")
    with lake_spark.session(Profile.LATENCY) as session:
        rows = session.createDataFrame(pa.table(data)).orderBy("n").selectExpr(*columns).collect()
    for position, (new, (fits, answers)) in enumerate(wanted.items()):
        for n, row in enumerate(rows):
            if fits[n] and _fits_both(old, new, VALUES[old][n]):
                assert repr(row[position]) == repr(answers[n]), (new, VALUES[old][n])


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (pa.float64(), pa.int8(), 127.5),
        (pa.float64(), pa.int64(), float("nan")),
        (pa.float64(), pa.float32(), 1e300),
        (pa.float64(), pa.decimal128(6, 2), 10000.0),
        (pa.int64(), pa.int32(), 2**31),
        (pa.int64(), pa.uint8(), -1),
        (pa.int64(), pa.uint64(), -1),
        (pa.string(), pa.int32(), "x"),
        (pa.string(), pa.uint8(), "256"),
        (pa.string(), pa.date32(), "2024-02-30"),
    ],
)
def test_a_value_that_does_not_fit_fails(old: pa.DataType, new: pa.DataType, value: object, lake_spark: Spark) -> None:
    expression = cast_expression("v", old, new)
    assert expression is not None
    with lake_spark.session(Profile.LATENCY) as session:
        frame = session.createDataFrame(pa.table({"v": pa.array([value], old)}))
        with pytest.raises(Exception, match=MISFIT):
            frame.selectExpr(f"{expression} AS c").collect()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.float64(), pa.string()),
        (pa.timestamp("us", "UTC"), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.binary(), pa.string()),
        (pa.bool_(), pa.date32()),
        (pa.list_(pa.int8()), pa.list_(pa.int64())),
        (pa.int64(), pa.uuid()),
    ],
)
def test_where_the_answer_would_depend_on_who_casts_there_is_no_cast(old: pa.DataType, new: pa.DataType) -> None:
    assert cast_expression("v", old, new) is None
