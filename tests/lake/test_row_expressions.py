"""Expressions over a row: what may be written, and that a sealed DuckDB computes it and nothing else. No Spark."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from gateway.errors import RequestError
from gateway.lake.duck.expressions import EvaluationError, Evaluator, RowExpression, check_expression
from gateway.lake.duck.sealed import sealed_connection

COLUMNS = [
    pa.field("x", pa.int64()),
    pa.field("l", pa.list_(pa.int64())),
    pa.field("d", pa.date32()),
    pa.field("t", pa.string()),
    pa.field("St", pa.struct([("a", pa.uuid())])),
    pa.field("uuid", pa.string()),
    pa.field("now", pa.int64()),
    pa.field('a "b"', pa.int64()),
]
TEXT = pa.field("v", pa.string())


def check(text: str, result: pa.Field = TEXT) -> RowExpression:
    return check_expression(text, COLUMNS, result)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("X + 1", {"x"}),
        ("t || x", {"t", "x"}),
        ("st.a", {"St"}),
        ("list_transform(l, lambda e: e + x)", {"l", "x"}),
        ("[e + 1 FOR e IN l IF e > x]", {"l", "x"}),
        ("uuid || now", {"uuid", "now"}),
        ('"a ""b"""', {'a "b"'}),
        ("t -> '$.a'", {"t"}),
        ("d AT TIME ZONE 'Europe/Paris'", {"d"}),
        ("split_part(t, ',', 1)", {"t"}),
        ("CASE WHEN x IN (1, 2, 3, 4, 5, 6, 7, 8) THEN t ELSE error('no') END", {"t", "x"}),
        ("age(d, DATE '2024-01-01')", {"d"}),
        ("try_cast(t AS INTEGER) -- a remark", {"t"}),
        ("42", set()),
        ("current_user", set()),
        ("(" * 300 + "x" + ")" * 300, {"x"}),
    ],
)
def test_any_expression_over_the_row_may_be_written(text: str, named: set[str]) -> None:
    found = check(text)
    assert found.refusal is None
    assert set(found.columns) == named


ROW_BY_ROW = "row by row"
ONE_ROW = "from one row's columns"
UNREADABLE = "cannot be read as SQL"
UNSTABLE = "same values whenever it is run"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", UNREADABLE),
        ("x, x", UNREADABLE),
        ("x AS y", UNREADABLE),
        ("x; DROP TABLE t", UNREADABLE),
        ("x) FROM t; --", UNREADABLE),
        ("x /*", UNREADABLE),
        ("'", UNREADABLE),
        ("x ORDER BY 1", UNREADABLE),
        ("(" * 2_000 + "x" + ")" * 2_000, UNREADABLE),
        ("x" * 10_001, "longer than"),
        ("x AS VARCHAR), CAST(x", "one expression"),
        ("x AS VARCHAR) FROM secrets UNION SELECT CAST(x", "one expression"),
        ("x AS VARCHAR) FROM range(3); SELECT CAST(x", "one expression"),
        ("x AS INTEGER) + CAST(x", "one expression"),
        ("?", "one expression"),
        ("$a", "one expression"),
        ("(SELECT 1)", ONE_ROW),
        ("EXISTS (FROM range(3))", ONE_ROW),
        ("x IN (FROM range(3))", ONE_ROW),
        ("list_transform(l, lambda e: (SELECT e))", ONE_ROW),
        ("row_number() OVER ()", ONE_ROW),
        ("*", ONE_ROW),
        ("COLUMNS('x')", ONE_ROW),
        ("#1", ONE_ROW),
        ("DEFAULT", ONE_ROW),
        ("sum(x)", ROW_BY_ROW),
        ("count(*)", ROW_BY_ROW),
        ("unnest(l)", ROW_BY_ROW),
        ("generate_subscripts(l, 1)", ROW_BY_ROW),
        ("get_block_size('memory')", ROW_BY_ROW),
        ("random()", UNSTABLE),
        ("now()", UNSTABLE),
        ("system.main.nextval('s')", UNSTABLE),
        ("current_date", UNSTABLE),
        ("current_timestamp", UNSTABLE),
        ("localtime", UNSTABLE),
        ("age(d)", UNSTABLE),
        ("ago(INTERVAL 1 DAY)", UNSTABLE),
        ("pg_sleep(1)", UNSTABLE),
        ("list_transform(l, lambda e: random())", UNSTABLE),
        ("current_setting('threads')", UNSTABLE),
        ("getvariable('x')", UNSTABLE),
        ("upper(nosuch)", "column 'nosuch'"),
        ('"rows of the batch"', "column 'rows of the batch'"),
    ],
)
def test_anything_else_is_refused(text: str, why: str) -> None:
    with pytest.raises(RequestError, match=why) as failure:
        check(text)
    assert "\n" not in failure.value.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lower(x)", "No function matches"),
        ("nofunction(x)", "nofunction"),
        ("CAST(t AS mood)", "mood"),
        ("st.nosuch", "nosuch"),
        ("read_text('/etc/passwd')", "table function"),
    ],
)
def test_what_duckdb_cannot_bind_is_said_in_its_words(text: str, why: str) -> None:
    refusal = check(text).refusal
    assert refusal is not None
    assert why in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("text", "result", "copied"),
    [
        ("t", TEXT, "t"),
        ("CAST(T AS VARCHAR)", TEXT, "t"),
        ("CAST(CAST(st AS STRUCT(a UUID)) AS STRUCT(a UUID))", pa.field("v", COLUMNS[4].type), "St"),
        ("CAST(CAST(t AS INTEGER) AS VARCHAR)", TEXT, None),
        ("TRY_CAST(t AS VARCHAR)", TEXT, None),
        ("st.a", TEXT, None),
        ("'t'", TEXT, None),
    ],
)
def test_a_mere_copy_is_known_as_one(text: str, result: pa.Field, copied: str | None) -> None:
    assert check(text, result).copied == copied


def test_each_row_gets_its_value_in_the_order_of_the_rows() -> None:
    numbers = pa.array([None, *range(10_000)], pa.int64())
    with Evaluator(check("x IN (1, 2, 3, 4, 5, 6, 7, 8, 9)", pa.field("v", pa.int32()))) as evaluator:
        for _ in range(2):
            made = evaluator.evaluate(pa.record_batch([numbers], names=["x"]))
            assert made.to_pylist() == [None, *(int(1 <= number <= 9) for number in range(10_000))]
        assert evaluator.evaluate(pa.record_batch([numbers.slice(0, 0)], names=["x"])).to_pylist() == []


def test_a_value_that_does_not_fit_is_not_told() -> None:
    with Evaluator(check("CAST(t AS INTEGER)")) as evaluator:
        with pytest.raises(EvaluationError, match="does not fit") as failure:
            evaluator.evaluate(pa.record_batch([pa.array(["1", "a secret"])], names=["t"]))
        assert "secret" not in repr(failure.value)
        assert failure.value.__suppress_context__
        assert evaluator.evaluate(pa.record_batch([pa.array(["1"])], names=["t"])).to_pylist() == ["1"]


def test_time_is_bounded() -> None:
    rows = pa.record_batch([pa.array(range(1_000_000), pa.int64())], names=["x"])
    slow = check("list_sum(list_transform(range(x % 1000), lambda e: e * e))")
    with Evaluator(slow, seconds=0.5) as evaluator, pytest.raises(EvaluationError, match=r"within 0\.5 s"):
        evaluator.evaluate(rows)


def test_another_duckdb_does_not_compute_it() -> None:
    checked = check("x")
    with pytest.raises(EvaluationError, match=r"0\.9"):
        Evaluator(RowExpression(checked.statement, "0.9", checked.columns, None, None))


@pytest.mark.parametrize(
    "statement",
    [
        "FROM read_csv('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/deltaport-test.csv'",
        "ATTACH '/tmp/deltaport-test.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET TimeZone = 'Europe/Paris'",
        "FROM COLUMNS",  # a variable of this module
    ],
)
def test_the_engine_is_sealed(statement: str) -> None:
    connection = sealed_connection()
    with pytest.raises(duckdb.Error):
        connection.execute(statement)
    assert connection.sql("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
    connection.close()
