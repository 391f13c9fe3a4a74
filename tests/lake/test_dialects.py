"""Delta's expressions in DuckDB's words: the same answer for every row, or nothing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gateway.lake.sql.dialects import to_duckdb

SAMPLES = """SELECT *, cast(i % 128 AS TINYINT) AS small, cast(day AS TIMESTAMP) AS at FROM VALUES
  (1, 10L, 0.1F, 0.1D, 0.10BD, 'abc', true, DATE'2024-02-29', 1, 1),
  (-1, -10L, -0.0F, 0.0D, -0.01BD, 'ABC', false, DATE'1969-12-31', 2, 2),
  (0, 5000000000L, float('NaN'), double('NaN'), 99999999.99BD, '', NULL, DATE'9999-12-31', NULL, 3),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (46340, 3L, float('Infinity'), double('-Infinity'), 5.00BD, 'straße 🙂', true, DATE'0001-01-01', 5, 5),
  (5, 5L, 5.0F, 5.0D, 5.00BD, 'it''s', false, DATE'2024-01-01', 5, 5)
  AS t(i, l, f, d, n, s, b, day, `odd name`, `q``t`)"""


@dataclass(frozen=True)
class Typed:
    name: str
    type: pa.DataType


TYPED = [
    Typed("i", pa.int32()),
    Typed("l", pa.int64()),
    Typed("small", pa.int8()),
    Typed("f", pa.float32()),
    Typed("d", pa.float64()),
    Typed("n", pa.decimal128(10, 2)),
    Typed("s", pa.string()),
    Typed("b", pa.bool_()),
    Typed("day", pa.date32()),
    Typed("at", pa.timestamp("us", "UTC")),
    Typed("odd name", pa.int32()),
    Typed("q`t", pa.int32()),
]

SAME_IN_BOTH = [
    "i > 0",
    "i >= 0 AND l < 100",
    "i = 1 OR i IS NULL",
    "NOT i = 1",
    "NOT (i > 0 AND b)",
    "i <> 1",
    "i != 1",
    "i == 1",
    "b",
    "NOT b",
    "b IS TRUE",
    "b IS NOT FALSE",
    "i IN (1, 2, 5)",
    "i NOT IN (1, 5)",
    "i IN (1, NULL)",
    "i BETWEEN -1 AND 1",
    "i NOT BETWEEN 0 AND 4",
    "i + 1 > 1",
    "i - 1 < l",
    "l * 2 = 20",
    "-i = 1",
    "abs(i) = 1",
    "i + l > 5",
    "coalesce(i, 0) = 0",
    "d > 0",
    "d = 0",
    "f IS NOT NULL",
    "at IS NULL OR i > 0",
    "small > 0",
    "small = l",
    "small BETWEEN 0 AND 5",
    "coalesce(small, 0) >= 0",
    "i > 1 -- and a comment",
    "i > 1 /* and */ AND b",
    "d <= 5",
    "n >= 0",
    "n = 5",
    "n > -1",
    "n + 1 > 5.5",
    "s = 'abc'",
    "s <> ''",
    "s > 'B'",
    's = "abc"',
    "s IN ('abc', 'straße 🙂')",
    "length(s) > 3",
    "length(s) = 8",
    "day > '2000-01-01'",
    "day BETWEEN '2024-01-01' AND '2024-12-31'",
    "`odd name` = 5",
    "`q``t` > 2",
    "I > 0",
    "(((i > 0)))",
    "NULL",
    "true",
    "i % 2 = 0",
    "n % 3 = 1",
    "d % 2 = 1",
    "s LIKE 'a%'",
    "s NOT LIKE '%c'",
    "s LIKE '_b_'",
    "s || 'x' = 'abcx'",
    "CASE WHEN b THEN i ELSE l END > 0",
    "CASE WHEN i > 0 THEN s END = 'abc'",
    "day >= DATE '2020-01-01'",
    "day < CAST('2024-03-01' AS DATE)",
    "at = at",
    "coalesce(at, at) > at",
    "CAST(i AS STRING) = '5'",
]
NOT_CERTAIN = [
    "i / 2 > 1",
    "i % 0 = 0",
    "i % l = 0",
    "s LIKE s",
    "s LIKE 'a!%' ESCAPE '!'",
    "s RLIKE 'a.c'",
    "s = 'back\\\\slash'",
    "s = 'it''s'",
    "s > 5",
    "s = 5",
    "i = '5'",
    "i + '5' > 1",
    "length(i) = 1",
    "length(s) = '1'",
    "abs(s) = 1",
    "i = b",
    "i AND b",
    "day > 'yesterday'",
    "day > '2024-1-1'",
    "day > s",
    "day + 1 > '2024-01-01'",
    "at > '2024-01-01'",
    "f = 0.1",
    "f > 0",
    "f IN (0.1)",
    "coalesce(f, 0) > 0",
    "small + 1 > 0",
    "-small < 0",
    "i BETWEEN SYMMETRIC 1 AND 0",
    "upper(s) = 'ABC'",
    "lower(s) = 'abc'",
    "cast(s AS INT) > 1",
    "date_add(day, 1) > '2020-01-01'",
    "day > current_date()",
    "i <=> 1",
    "concat(s, 'x') = 'abcx'",
    "if(b, i, l) > 0",
    "CASE i WHEN 1 THEN 2 ELSE 3 END > 2",
    "CASE WHEN b THEN i ELSE s END > 0",
    "struct_column.field > 1",
    "other_column > 1",
    "i IN (SELECT 1)",
    "EXISTS (SELECT 1)",
    "size(array(1)) = 1",
    "x'1F' = s",
    "rand() > 0.5",
    "my_function(i)",
    "",
    "((",
    "i >",
    "1; DROP TABLE t",
    "(" * 500 + "i" + ")" * 500,
]


@pytest.fixture(scope="module")
def by_spark(spark: Any) -> dict[str, list[Any]]:
    frame = spark.sql(SAMPLES)
    columns = [f"({expression}\n) AS e{index}" for index, expression in enumerate(SAME_IN_BOTH)]
    answers = frame.coalesce(1).selectExpr(*columns).toArrow()
    return {text: answers.column(f"e{index}").to_pylist() for index, text in enumerate(SAME_IN_BOTH)}


@pytest.fixture(scope="module")
def sample(spark: Any) -> pa.Table:
    return spark.sql(SAMPLES).coalesce(1).toArrow()


@pytest.mark.parametrize("expression", SAME_IN_BOTH)
def test_what_is_passed_on_gives_the_same_answer_in_both(
    expression: str, by_spark: dict[str, list[Any]], sample: pa.Table
) -> None:
    text = to_duckdb(expression, TYPED)
    assert text is not None
    with duckdb.connect() as connection:
        connection.register("sample", sample)
        answers = [row[0] for row in connection.execute(f"SELECT ({text}) FROM sample").fetchall()]
    assert answers == by_spark[expression], text


@pytest.mark.parametrize("expression", NOT_CERTAIN)
def test_what_is_not_certainly_the_same_is_left_out(expression: str) -> None:
    assert to_duckdb(expression, TYPED) is None


@pytest.mark.parametrize(
    "default",
    ["1", "-1", "0.5", "'text'", "''", "NULL", "true", "1 + 1", "current_timestamp()", "now()", "DATE'2024-01-01'"],
)
def test_defaults_are_read_by_duckdb(default: str) -> None:
    text = to_duckdb(default, ())
    assert text is not None
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t (k INT, v VARCHAR DEFAULT {text})")
        connection.execute("INSERT INTO t (k) VALUES (1)")


@pytest.mark.parametrize("default", ["array()", "map('a', 1)", "uuid()", "'it''s'", "DATE'yesterday'", "X'00'"])
def test_defaults_that_duckdb_may_read_otherwise_are_left_out(default: str) -> None:
    assert to_duckdb(default, ()) is None
