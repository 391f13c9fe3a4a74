"""Filters pushed down, judged by what DuckDB itself keeps.

Every predicate may keep too many rows and never too few, on both engines, and
must not make an engine fail. The captured filters carry DuckDB's own answer; the
generated ones are answered by the DuckDB at hand.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.lake.pushdown.datafusion import DataFusionDialect
from gateway.lake.pushdown.spark import SparkDialect
from gateway.lake.pushdown.translation import MOST, Binding, Bindings, Engine, Translation, conditions_of, translate
from gateway.wire.filter_parser import Filters, parse_filters
from gateway.wire.filter_tree import (
    And,
    Case,
    ColumnRef,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    TypeId,
    ValueType,
)
from tests.captures import VECTORS, filters


def in_words_of(engine: Engine[Any], conjuncts: Sequence[Any], bindings: Bindings) -> Translation[Any]:
    return translate(engine, conditions_of(conjuncts, bindings))


to_datafusion, to_spark = partial(in_words_of, DataFusionDialect()), partial(in_words_of, SparkDialect())

BIGINT, VARCHAR, BOOLEAN = ValueType(TypeId.BIGINT), ValueType(TypeId.VARCHAR), ValueType(TypeId.BOOLEAN)

# How Delta stores what it has no type for; columns without an entry are stored as they are.
STORED = {
    "u8": pa.int16(),
    "u16": pa.int32(),
    "u32": pa.int64(),
    "u64": pa.decimal128(20, 0),
    "tm": pa.int64(),
    "tns": pa.int64(),
    "ts_ns": pa.int64(),
    "ts_s": pa.timestamp("us"),
    "ts_ms": pa.timestamp("us"),
}
NOT_STORED = {"hu", "uhu", "iv", "ar", "bi", "ttz"}


def bindings_of(schema: pa.Schema) -> Bindings:
    return Bindings(
        {"rowid" if field.name == "_rowid" else field.name: Binding(field.name, field.type) for field in schema}
    )


@cache
def captured_rows() -> pa.Table:
    with pa.ipc.open_stream((VECTORS / "filters-data.arrows").read_bytes()) as stream:
        data = stream.read_all()
    columns = {}
    for name in data.column_names:
        array = data[name].combine_chunks()
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        if name == "uu":
            array = pa.array([None if value is None else str(uuid.UUID(bytes=value)) for value in array.to_pylist()])
        if name not in NOT_STORED:
            columns["_rowid" if name == "rowid" else name] = array.cast(STORED.get(name, array.type))
    return pa.table(columns)


def part_of(rows: pa.Table, start: int, count: int) -> pa.Table:
    """A copy: delta-rs ends the process when it is given a slice of a struct column."""
    return rows.take(pa.array(range(start, start + count)))


CAPTURED = [line for line in filters() if line["table"] == ["demo", "types"]]
CAPTURED_BINDINGS = bindings_of(captured_rows().schema)


class Direct:
    """A Delta table read by delta-rs."""

    def __init__(self, path: Path) -> None:
        self.query = QueryBuilder().register("t", DeltaTable(str(path)))

    def rowids(self, predicate: str | None) -> set[int]:
        where = "" if predicate is None else f" WHERE {predicate}"
        return set(self._read(f'SELECT "_rowid" FROM t{where}')["_rowid"].to_pylist())

    def files_read(self, predicate: str) -> int:
        plan = self._read(f'EXPLAIN SELECT "_rowid" FROM t WHERE {predicate}')["plan"].to_pylist()[-1]
        groups = re.search(r"file_groups=\{(.*?)\}", plan)
        if groups is None:
            return 0
        assert "..." not in groups[1], "a plan names five files at most"
        return len(re.findall(r"\.parquet", groups[1]))

    def _read(self, sql: str) -> pa.Table:
        return pa.RecordBatchReader.from_stream(self.query.execute(sql)).read_all()


@pytest.fixture(scope="module")
def quick_spark(spark: Any) -> Any:
    """A session for many small queries: their plans take longer to compile than to run."""
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.fixture(scope="module")
def captured_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("captured") / "types"
    for row in range(0, 8, 2):
        write_deltalake(str(path), part_of(captured_rows(), row, 2), mode="append")
    return path


def kept_by_spark(quick_spark: Any, path: Path, translations: Sequence[Translation[Any]]) -> list[set[int]]:
    """Row ids each predicate keeps; all of them in a few queries, since a query costs more than a predicate."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = quick_spark.read.format("delta").load(str(path)).cache()
    kept: list[set[int]] = []
    for start in range(0, len(translations), 100):
        part = [
            one.predicate if one.predicate is not None else F.lit(True) for one in translations[start : start + 100]
        ]
        answers = rows.select("_rowid", F.array(*part)).collect()
        kept.extend({row[0] for row in answers if row[1][index]} for index in range(len(part)))
    rows.unpersist()
    return kept


def said(line: dict[str, Any]) -> Filters:
    return parse_filters(line["json_filters"])


def missing(lines: Iterable[dict[str, Any]], kept: Iterable[set[int]]) -> list[str]:
    pairs = zip(lines, kept, strict=True)
    return [line["sql"] for line, rows in pairs if not set(line.get("expect_rowids") or ()) <= rows]


def inexact(
    lines: Iterable[dict[str, Any]], translations: Iterable[Translation[Any]], kept: Iterable[set[int]]
) -> list[str]:
    """Filters that were pushed down whole and keep more than DuckDB."""
    return [
        line["sql"]
        for line, translation, rows in zip(lines, translations, kept, strict=True)
        if line.get("expect_rowids") is not None
        and said(line).dropped == translation.dropped == 0
        and said(line).conjuncts
        and rows != set(line["expect_rowids"])
    ]


def test_no_captured_filter_loses_a_row_by_the_direct_route(captured_table: Path) -> None:
    direct = Direct(captured_table)
    translations = [to_datafusion(said(line).conjuncts, CAPTURED_BINDINGS) for line in CAPTURED]
    kept = [direct.rowids(translation.predicate) for translation in translations]
    assert missing(CAPTURED, kept) == []
    assert inexact(CAPTURED, translations, kept) == []


def test_no_captured_filter_loses_a_row_by_spark(quick_spark: Any, captured_table: Path) -> None:
    translations = [to_spark(said(line).conjuncts, CAPTURED_BINDINGS) for line in CAPTURED]
    kept = kept_by_spark(quick_spark, captured_table, translations)
    assert missing(CAPTURED, kept) == []
    assert inexact(CAPTURED, translations, kept) == []


def test_most_captured_filters_are_pushed_down_whole() -> None:
    whole = [
        said(line).dropped == to_datafusion(said(line).conjuncts, CAPTURED_BINDINGS).dropped == 0 for line in CAPTURED
    ]
    assert sum(whole) >= 246
    assert len(whole) == 353


def test_both_engines_push_down_the_same(quick_spark: Any) -> None:
    for line in CAPTURED:
        conjuncts = said(line).conjuncts
        one, other = to_datafusion(conjuncts, CAPTURED_BINDINGS), to_spark(conjuncts, CAPTURED_BINDINGS)
        if "infinity" not in line["sql"]:  # Spark has no literal beyond the year 9999
            assert (one.pushed, one.dropped) == (other.pushed, other.dropped)


# Predicates as they are written: the column's own type, and no text of the client outside quotes.


def predicate(condition: str) -> str | None:
    sql = f"SELECT i32 FROM x.demo.types WHERE {condition}"
    return to_datafusion(
        said(next(line for line in filters() if line["sql"] == sql)).conjuncts, CAPTURED_BINDINGS
    ).predicate


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        ("i32 = 3", """("i32" = CAST('3' AS INT))"""),
        ("i8 = 300", "(FALSE)"),
        ("i16 >= -32768", """("i16" IS NOT NULL)"""),
        ("i32 > 2.5", """("i32" > CAST('2' AS INT))"""),
        ("i32 = 3.0", """("i32" = CAST('3' AS INT))"""),
        ("dec9 = 1.255", "(FALSE)"),
        ("u8 = -1", """("u8" = CAST('-1' AS SMALLINT))"""),
        ("i32 IN (1, 2, 3, NULL)", """("i32" IN (CAST('1' AS INT), CAST('2' AS INT), CAST('3' AS INT)))"""),
        ("i32 NOT IN (1, 2, 3, NULL)", "(FALSE)"),
        ("i32 IS DISTINCT FROM 3", """(("i32" <> CAST('3' AS INT) OR "i32" IS NULL))"""),
        ("bo IS NOT TRUE", """(("bo" <> TRUE OR "bo" IS NULL))"""),
        ("vc = 'it''s \"quoted\"'", """("vc" = 'it''s "quoted"')"""),
        ("vc LIKE 'abc%'", """(("vc" >= 'abc' AND "vc" < 'abd'))"""),
        ("vc LIKE 'a_c%'", """(("vc" >= 'a' AND "vc" < 'b' AND "vc" LIKE 'a_c%'))"""),
        ("db > 1e299", """((nullif("db" > CAST('1e+299' AS DOUBLE), FALSE) OR nullif(isnan("db"), FALSE)))"""),
        ("db = -0.0", """(nullif("db" IN (CAST('0.0' AS DOUBLE), CAST('-0.0' AS DOUBLE)), FALSE))"""),
        ("rowid = 3", """("_rowid" = CAST('3' AS BIGINT))"""),
        ("(i32, vc) = (3, 'abc')", """(("i32" = CAST('3' AS INT) AND "vc" = 'abc'))"""),
        ("coalesce(i32, 0) = 0", """(("i32" = CAST('0' AS INT) OR "i32" IS NULL))"""),
        ("dt::TIMESTAMP > TIMESTAMP '2024-05-06 00:00:00'", """("dt" > arrow_cast(CAST('19849' AS INT), 'Date32'))"""),
        ("tz::DATE = DATE '2024-05-06'", None),
        ("CAST(vc AS INTEGER) = 3 OR i32 = 3", None),
    ],
)
def test_a_filter_becomes_comparisons_with_literals_of_the_columns_type(condition: str, sql: str | None) -> None:
    assert predicate(condition) == sql


def test_names_and_texts_of_the_client_stay_inside_quotes(tmp_path: Path) -> None:
    name, value = 'a" OR 1=1 --', "'; x' OR '1'='1"
    table = pa.table({"_rowid": [1, 2], name: [value, "b"]})
    write_deltalake(str(tmp_path / "t"), table)
    conjunct = Comparison(Operator.EQUAL, ColumnRef(name, VARCHAR), Constant(VARCHAR, value))
    translation = to_datafusion([conjunct], bindings_of(table.schema))
    assert Direct(tmp_path / "t").rowids(translation.predicate) == {1}


def test_names_match_exactly_and_then_in_any_case() -> None:
    both = Bindings({"A": Binding("stored_A", pa.int64()), "a": Binding("stored_a", pa.int64())})
    one = Bindings({"A": Binding("stored_A", pa.int64())})
    conjunct = Comparison(Operator.EQUAL, ColumnRef("a", BIGINT), Constant(BIGINT, 1))
    assert to_datafusion([conjunct], both).predicate == """("stored_a" = CAST('1' AS BIGINT))"""
    assert to_datafusion([conjunct], one).predicate == """("stored_A" = CAST('1' AS BIGINT))"""
    assert to_datafusion([conjunct], Bindings({})) == Translation(None, pushed=0, dropped=1)


def test_a_column_stored_otherwise_than_declared_is_only_tested_for_null() -> None:
    bindings = Bindings({"h": Binding("h", pa.binary())})
    column = ColumnRef("h", ValueType(TypeId.HUGEINT))
    compared = Comparison(Operator.EQUAL, column, Constant(ValueType(TypeId.HUGEINT), 1))
    null = Comparison(Operator.NOT_DISTINCT, column, Constant(ValueType(TypeId.HUGEINT), None))
    assert to_datafusion([compared, null], bindings) == Translation('("h" IS NULL)', pushed=1, dropped=1)


# Files are skipped.


@pytest.fixture(scope="module")
def sorted_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten files, each with its own range of every column."""
    path = tmp_path_factory.mktemp("sorted") / "t"
    start = dt.datetime(2020, 1, 1)  # noqa: DTZ001
    for low in range(0, 100, 10):
        ids = range(low, low + 10)
        columns = {
            "_rowid": pa.array(ids, pa.int64()),
            "i8": pa.array(ids, pa.int8()),
            "i32": pa.array(ids, pa.int32()),
            "db": pa.array(map(float, ids), pa.float64()),
            "dec": pa.array(map(Decimal, ids), pa.decimal128(18, 3)),
            "vc": pa.array([f"k{one:03}" for one in ids]),
            "dt": pa.array([(start + dt.timedelta(one)).date() for one in ids]),
            "ts": pa.array([start + dt.timedelta(one) for one in ids], pa.timestamp("us")),
            "tz": pa.array([start + dt.timedelta(one) for one in ids], pa.timestamp("us")).cast(
                pa.timestamp("us", "UTC")
            ),
            "nu": pa.array([one if low == 50 else None for one in ids], pa.int32()),
            "nn": pa.array([None if low == 50 else one for one in ids], pa.int32()),
        }
        write_deltalake(str(path), pa.table(columns), mode="append")
    return path


def typed(name: str, value: int) -> tuple[ColumnRef, Constant]:
    """A column of the sorted table and its value in the row with this id."""
    day = 18262 + value
    types: dict[str, tuple[ValueType, Any]] = {
        "rowid": (BIGINT, value),
        "i8": (ValueType(TypeId.TINYINT), value),
        "i32": (ValueType(TypeId.INTEGER), value),
        "nu": (ValueType(TypeId.INTEGER), value),
        "nn": (ValueType(TypeId.INTEGER), value),
        "db": (ValueType(TypeId.DOUBLE), float(value)),
        "dec": (ValueType(TypeId.DECIMAL, 18, 3), value * 1000),
        "vc": (VARCHAR, f"k{value:03}"),
        "dt": (ValueType(TypeId.DATE), day),
        "ts": (ValueType(TypeId.TIMESTAMP), day * 86_400_000_000),
        "tz": (ValueType(TypeId.TIMESTAMPTZ), day * 86_400_000_000),
    }
    type_, stored = types[name]
    return ColumnRef(name, type_), Constant(type_, stored)


def sorted_bindings(path: Path) -> Bindings:
    fields = pa.schema(DeltaTable(str(path)).schema().to_arrow())
    names = {"_rowid": "rowid"}
    return Bindings(
        {names.get(field.name, field.name): Binding(field.name, field.type, exact_statistics=True) for field in fields}
    )


SORTED = ["rowid", "i8", "i32", "db", "dec", "vc", "dt", "ts", "tz"]


@pytest.mark.parametrize("name", SORTED)
def test_plain_conditions_read_only_the_files_they_need(sorted_table: Path, name: str) -> None:
    direct, bindings = Direct(sorted_table), sorted_bindings(sorted_table)
    column, value = typed(name, 32)
    many = tuple(typed(name, one)[1] for one in range(30, 60))
    wanted: list[tuple[Expression, int]] = [
        (Comparison(Operator.EQUAL, column, value), 1),
        (Comparison(Operator.LESS, column, value), 4),
        (In(column, (value, typed(name, 77)[1]), negated=False), 2),
        (In(column, many, negated=False), 3),
        (And((Comparison(Operator.GREATER_EQUAL, column, value), Comparison(Operator.LESS, column, many[-1]))), 3),
        (Or(tuple(Comparison(Operator.EQUAL, column, one) for one in many)), 3),
    ]
    for expression, files in wanted:
        pushed = to_datafusion([expression], bindings).predicate
        assert pushed is not None
        assert direct.files_read(pushed) <= files, pushed


def test_null_tests_read_only_the_files_they_need(sorted_table: Path) -> None:
    direct, bindings = Direct(sorted_table), sorted_bindings(sorted_table)
    for name, operator in (("nn", Operator.NOT_DISTINCT), ("nu", Operator.DISTINCT)):
        column, _ = typed(name, 0)
        pushed = to_datafusion([Comparison(operator, column, Constant(column.type, None))], bindings).predicate
        assert pushed is not None
        assert direct.files_read(pushed) == 1


def test_spark_reads_only_the_files_it_needs(quick_spark: Any, sorted_table: Path) -> None:
    rows = quick_spark.read.format("delta").load(str(sorted_table))
    for name in ("rowid", "ts"):
        column, value = typed(name, 42)
        conjunct = Comparison(Operator.EQUAL, column, value)
        kept = rows.where(to_spark([conjunct], sorted_bindings(sorted_table)).predicate)
        assert [row["_rowid"] for row in kept.select("_rowid").collect()] == [42]
        assert _files_planned(kept) == 1, name


def _files_planned(rows: Any) -> int:
    plan = rows._jdf.queryExecution().executedPlan()
    plan.execute()  # the scan counts its files when it is set up
    return int(plan.collectLeaves().apply(0).metrics().apply("numFiles").value())


# What no engine survives is dropped.


def chain(count: int) -> Expression:
    parts = []
    for index in range(count):
        column = ColumnRef(f"c{index % 7}", BIGINT)
        parts.append(Comparison(Operator.GREATER, column, Constant(BIGINT, index)))
    return Or(tuple(parts))


WIDE = Bindings({f"c{index}": Binding(f"c{index}", pa.int64()) for index in range(7)})


def test_a_chain_of_thousands_is_dropped() -> None:
    assert to_datafusion([chain(MOST.leaves)], WIDE).pushed == 1
    assert to_datafusion([chain(MOST.leaves + 1)], WIDE).pushed == 0
    assert to_datafusion([chain(100), chain(100), chain(20)], WIDE).pushed == 2


def test_equalities_of_one_column_are_a_list_however_many() -> None:
    column = ColumnRef("c0", BIGINT)
    equalities = tuple(Comparison(Operator.EQUAL, column, Constant(BIGINT, value)) for value in range(5_000))
    for expression in (Or(equalities), Not(Or(equalities))):
        translation = to_datafusion([expression], WIDE)
        assert translation.pushed == 1
        assert "OR" not in str(translation.predicate)


def test_nesting_beyond_the_parsers_limit_is_dropped() -> None:
    expression: Expression = Comparison(Operator.GREATER, ColumnRef("c0", BIGINT), Constant(BIGINT, 0))
    depths = {}
    for depth in range(1, 60):
        other = Comparison(Operator.LESS, ColumnRef(f"c{depth % 7}", BIGINT), Constant(BIGINT, depth))
        expression = (Or if depth % 2 else And)((expression, other))
        depths[depth] = to_datafusion([expression], WIDE).pushed
    assert depths[20] == 1
    assert depths[21] == 0


def test_a_small_filter_that_multiplies_out_is_dropped_in_time() -> None:
    flag = ColumnRef("b", BOOLEAN)
    expression: Expression = flag
    for _ in range(60):
        expression = Comparison(Operator.EQUAL, Not(expression), Not(expression))
    value: Expression = Constant(BIGINT, 1)
    for _ in range(60):
        value = Case(((flag, value),), value)
    bindings = Bindings({"b": Binding("b", pa.bool_())})
    compared = Comparison(Operator.EQUAL, value, value)
    assert to_datafusion([expression, compared], bindings).pushed == 0


def test_long_lists_keep_spark_quick(quick_spark: Any) -> None:
    column = ColumnRef("c0", BIGINT)
    items = tuple(Constant(BIGINT, value) for value in range(10_000))
    inside, outside = (to_spark([In(column, items, negated=negated)], WIDE).predicate for negated in (False, True))
    assert "9999" in str(inside)
    assert len(str(inside)) < 200
    assert "isNotNull" in str(outside)


# Statistics of other writers: one row per file, so that minimum and maximum are all there is.

NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0000))[0]
ODD: dict[str, tuple[pa.DataType, ValueType, list[Any]]] = {
    "dec20": (
        pa.decimal128(20, 0),
        ValueType(TypeId.DECIMAL, 20, 0),
        [2**64 - 1, 2**63 + 1, 2**53 + 1, -(2**63) - 5, 0],
    ),
    "dec18": (
        pa.decimal128(18, 3),
        ValueType(TypeId.DECIMAL, 18, 3),
        [900719925474099301, -900719925474099301, 123456789012345679, 100, -7],
    ),
    "dec38": (
        pa.decimal128(38, 10),
        ValueType(TypeId.DECIMAL, 38, 10),
        [10**38 - 1, 1 - 10**38, 123456780123456789, 1, 3 * 10**9],
    ),
    "ts": (
        pa.timestamp("us"),
        ValueType(TypeId.TIMESTAMP),
        [-1, 1, 1714990272123456, -315619199999001, 253402300799999999],
    ),
    "vc": (pa.string(), VARCHAR, ["a" * 40, "b" * 31 + "😀😀z", "\U0010ffff" * 40, "", "c" * 31 + "\U0010ffff" * 5]),
    "db": (pa.float64(), ValueType(TypeId.DOUBLE), [-0.0, 0.0, math.nan, NEGATIVE_NAN, 5e-324]),
    "fl": (pa.float32(), ValueType(TypeId.FLOAT), [-0.0, 0.10000000149011612, math.nan, math.inf, NEGATIVE_NAN]),
}
OPERATORS: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: lambda left, right: left == right,
    Operator.NOT_EQUAL: lambda left, right: left != right,
    Operator.LESS: lambda left, right: left < right,
    Operator.GREATER: lambda left, right: left > right,
    Operator.LESS_EQUAL: lambda left, right: left <= right,
    Operator.GREATER_EQUAL: lambda left, right: left >= right,
}


def _ordered(value: Any) -> Any:
    """A key that orders values as DuckDB does: NaN above all, texts by their bytes."""
    if isinstance(value, str):
        return value.encode()
    return (1, 0.0) if isinstance(value, float) and math.isnan(value) else (0, value)


def _odd_rows() -> pa.Table:
    columns = {"_rowid": pa.array(range(5), pa.int64())}
    for name, (type_, declared, values) in ODD.items():
        is_decimal = pa.types.is_decimal(type_)
        columns[name] = pa.array([_decimal(one, declared.scale) for one in values] if is_decimal else values, type_)
    return pa.table(columns)


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def odd_filters() -> Iterator[tuple[Expression, set[int]]]:
    for name, (_, declared, values) in ODD.items():
        column = ColumnRef(name, declared)
        for value in values:
            for operator, holds in OPERATORS.items():
                expected = {row for row, other in enumerate(values) if holds(_ordered(other), _ordered(value))}
                yield Comparison(operator, column, Constant(declared, value)), expected
            items = (Constant(declared, value), Constant(declared, values[0]))
            listed = {row for row, other in enumerate(values) if _ordered(other) in map(_ordered, (value, values[0]))}
            yield In(column, items, negated=False), listed
            yield In(column, items, negated=True), set(range(5)) - listed


@pytest.fixture(scope="module")
def odd_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "t"
    for row in range(5):
        write_deltalake(str(path), part_of(_odd_rows(), row, 1), mode="append")
    return path


def test_no_row_is_lost_to_statistics_that_are_a_little_off(odd_table: Path) -> None:
    direct, bindings = Direct(odd_table), bindings_of(_odd_rows().schema)
    for expression, expected in odd_filters():
        translation = to_datafusion([expression], bindings)
        assert expected <= direct.rowids(translation.predicate), expression


def test_no_value_is_taken_from_statistics(tmp_path: Path) -> None:
    # In the log this file's column is 1.5 from minimum to maximum.
    write_deltalake(str(tmp_path / "t"), pa.table({"_rowid": [0, 1], "db": [1.5, math.nan]}))
    column = ColumnRef("db", ValueType(TypeId.DOUBLE))
    conjuncts = [
        Comparison(Operator.LESS_EQUAL, column, Constant(column.type, math.nan)),
        IsNull(column, negated=True),
        Comparison(Operator.GREATER, column, Constant(column.type, 0.0)),
    ]
    bindings = Bindings({"db": Binding("db", pa.float64())})
    predicate = to_datafusion(conjuncts, bindings).predicate
    rows = Direct(tmp_path / "t")._read(f"SELECT db FROM t WHERE {predicate} ORDER BY _rowid")
    assert list(map(str, rows["db"].to_pylist())) == ["1.5", "nan"]


def test_no_row_is_lost_to_statistics_by_spark(quick_spark: Any, odd_table: Path) -> None:
    rows, bindings = quick_spark.read.format("delta").load(str(odd_table)), bindings_of(_odd_rows().schema)
    picked = random.Random(1).sample(list(odd_filters()), 8)  # noqa: S311
    for expression, expected in picked:
        kept = rows.where(to_spark([expression], bindings).predicate).select("_rowid").collect()
        assert expected <= {row[0] for row in kept}, expression


def test_no_row_is_lost_in_files_that_spark_wrote(quick_spark: Any, odd_table: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = quick_spark.read.format("delta").load(str(odd_table))
    rows.repartitionByRange(5, "_rowid").write.format("delta").save(str(path))
    direct, bindings = Direct(path), bindings_of(_odd_rows().schema)
    for expression, expected in odd_filters():
        translation = to_datafusion([expression], bindings)
        assert expected <= direct.rowids(translation.predicate), expression


# Filters made up at random, over rows made of odd values, against DuckDB.

VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "i8": ("TINYINT", pa.int8(), [0, 1, -1, 127, -128, 5]),
    "i32": ("INTEGER", pa.int32(), [0, 1, 3, -3, 2**31 - 1, -(2**31), 5]),
    "i64": ("BIGINT", pa.int64(), [0, 3, 2**63 - 1, -(2**63), 2**53 + 1, 5, -3]),
    "d9": (
        "DECIMAL(9,2)",
        pa.decimal128(9, 2),
        [Decimal(one) for one in ("0", "1.25", "-1.25", "9999999.99", "3", "0.01")],
    ),
    "d18": (
        "DECIMAL(18,3)",
        pa.decimal128(18, 3),
        [Decimal(one) for one in ("0", "1.25", "900719925474099.301", "3", "0.1")],
    ),
    "fl": ("FLOAT", pa.float32(), [0.0, -0.0, 1.5, 0.1, math.nan, NEGATIVE_NAN, math.inf, -math.inf, 16777216.0]),
    "db": ("DOUBLE", pa.float64(), [0.0, -0.0, 1.5, 0.1, math.nan, NEGATIVE_NAN, math.inf, -math.inf, 1e300]),
    "vc": (
        "VARCHAR",
        pa.string(),
        ["", "a", "ab", "abc", "a%", "a_b", "a\\b", "\\", "%", "é", "😀", "a\nb", "b", "AB", "it's"],
    ),
    "v2": ("VARCHAR", pa.string(), ["a", "ab", "b", "", "%", "a\\b"]),
    "bl": ("BLOB", pa.binary(), [b"", b"\x00", b"ab", b"\xff\x80", b"'"]),
    "bo": ("BOOLEAN", pa.bool_(), [True, False]),
    "b2": ("BOOLEAN", pa.bool_(), [True, False]),
    "dt": ("DATE", pa.date32(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "ts": (
        "TIMESTAMP",
        pa.timestamp("us"),
        [
            dt.datetime.fromisoformat(one)
            for one in ("1970-01-01", "2024-02-29T12:00:00.000001", "1969-12-31T23:59:59.999999", "2024-02-29")
        ],
    ),
}
NUMBERS = [
    "0",
    "1",
    "3",
    "-1",
    "127",
    "128",
    "2.5",
    "3.0",
    "1.25",
    "-0.5",
    "2147483648",
    "1e3",
    "1.5::DOUBLE",
    "3::DOUBLE",
]
NUMBERS += [
    "0.1::DOUBLE",
    "0.1::FLOAT",
    "'nan'::DOUBLE",
    "'-inf'::DOUBLE",
    "0.0::DOUBLE",
    "9007199254740993",
    "1.255",
    "NULL",
]
NUMBERS += ["9223372036854775807", "900719925474099.301", "9007199254740992::DOUBLE", "'inf'::FLOAT", "3::HUGEINT"]
LITERALS = {
    "vc": ["''", "'a'", "'ab'", "'a%'", "'a\\b'", "'é'", "'😀'", "'it''s'", "NULL", "'b'"],
    "bl": ["''::BLOB", "'\\x00'::BLOB", "'ab'::BLOB", "'\\xFF'::BLOB"],
    "bo": ["true", "false", "NULL"],
    "dt": ["DATE '1970-01-01'", "DATE '2024-02-29'", "'infinity'::DATE", "TIMESTAMP '2024-02-29 00:00:01'", "NULL"],
    "ts": [
        "TIMESTAMP '2024-02-29'",
        "TIMESTAMP '1969-12-31 23:59:59.999999'",
        "DATE '2024-02-29'",
        "'infinity'::TIMESTAMP",
    ],
}
LITERALS |= {"v2": LITERALS["vc"], "b2": LITERALS["bo"]}
PATTERNS = [
    "'%'",
    "'a%'",
    "'%b'",
    "'%a%'",
    "'a_b'",
    "'_'",
    "'%\\%'",
    "'a\\%'",
    "'a\\_b'",
    "'_%_'",
    "'a%b'",
    "'😀%'",
    "'%\n%'",
]
COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
COMPARABLE = [
    ("i8", "i32"),
    ("i32", "i64"),
    ("d9", "d18"),
    ("vc", "v2"),
    ("bo", "b2"),
    ("i64", "i64"),
    ("fl", "db"),
    ("d9", "i32"),
]


def random_rows(rng: random.Random, count: int) -> pa.Table:
    columns: dict[str, pa.Array] = {"_rowid": pa.array(range(count), pa.int64())}
    for name, (_, type_, values) in VALUES.items():
        columns[name] = pa.array([rng.choice([*values, None]) for _ in range(count)], type_)
    columns["st"] = pa.array(
        [rng.choice([None, {"a": None}, {"a": rng.choice([0, 1, 3])}]) for _ in range(count)],
        pa.struct([("a", pa.int32())]),
    )
    return pa.table(columns)


def random_filter(rng: random.Random, depth: int = 3) -> str:
    if depth and rng.random() < 0.5:
        parts = [random_filter(rng, depth - 1) for _ in range(rng.choice([1, 2, 2, 3]))]
        shape = rng.choice([" AND ", " OR ", "NOT", "="])
        if shape == "NOT" or len(parts) == 1:
            return f"NOT ({parts[0]})"
        return f" {shape} ".join(f"({part})" for part in (parts if shape != "=" else parts[:2]))
    return random_leaf(rng)


def random_leaf(rng: random.Random) -> str:
    name = rng.choice(list(VALUES))
    literals = LITERALS.get(name, NUMBERS)
    one, two, three = (rng.choice(literals) for _ in range(3))
    how = rng.choice(COMPARISONS)
    left, right = rng.choice(COMPARABLE)
    text, pattern = rng.choice(["vc", "v2"]), rng.choice(PATTERNS)
    return rng.choice(
        [
            f"{name} {how} {one}",
            f"{name} {how} {one}",
            f"{name} {how} {one}",
            f"{name} {rng.choice(['', 'NOT '])}IN ({one}, {two}, {three})",
            f"{name} {rng.choice(['', 'NOT '])}BETWEEN {one} AND {two}",
            f"{name} IS {rng.choice(['', 'NOT '])}NULL",
            f"{left} {how} {right}",
            f"{text} {rng.choice(['', 'NOT '])}LIKE {pattern}",
            f"{text} LIKE 'a!%%' ESCAPE '!'",
            f"{rng.choice(['prefix', 'suffix', 'contains'])}({text}, {rng.choice(LITERALS['vc'])})",
            rng.choice(["bo", "NOT b2", "bo IS TRUE", "b2 IS NOT TRUE", "bo IS NOT FALSE"]),
            f"ts::DATE {how} DATE '2024-02-29'",
            f"dt::TIMESTAMP {how} TIMESTAMP '2024-02-29 00:00:01'",
            f"coalesce(i32, i8, 3) {how} {rng.choice(NUMBERS)}",
            f"CASE WHEN bo THEN i32 WHEN i8 > 0 THEN 3 ELSE i8 END {how} {rng.choice(['3', '0', '1'])}",
            f"(i32, vc) {rng.choice(['=', '<>', 'IN', 'NOT IN'])} ((3, 'a'))".replace("= ((3, 'a'))", "= (3, 'a')"),
            f"st.a {how} {rng.choice(['0', '3', 'NULL', '1.5'])}",
            f"st.a IS {rng.choice(['', 'NOT '])}NULL",
            f"isnan({rng.choice(['fl', 'db'])})",
        ]
    )


class ThirdOpinion:
    """DuckDB over the same rows: which it keeps, and the filter document it would send."""

    def __init__(self, rows: pa.Table) -> None:
        self._names = rows.column_names
        self._connection = duckdb.connect()
        self._connection.register("arrow_rows", rows)
        self._connection.execute("CREATE TABLE t AS SELECT * FROM arrow_rows")
        # Leave the conditions in one filter node, as they are before they reach a scan.
        self._connection.execute("SET disabled_optimizers = 'filter_pushdown, statistics_propagation, unused_columns'")

    def rowids(self, condition: str) -> set[int] | None:
        """None where DuckDB itself raises an error."""
        try:
            return {row[0] for row in self._connection.execute(f"SELECT _rowid FROM t WHERE {condition}").fetchall()}
        except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException):
            return None
        except duckdb.BinderException:
            return None

    def document(self, condition: str) -> str | None:
        statement = f"SELECT * FROM t WHERE {condition}"
        answer = self._connection.execute("SELECT json_serialize_plan(?, optimize := true)", [statement]).fetchone()
        assert answer is not None
        plan = json.loads(re.sub(r":NAN\b", ":NaN", answer[0]))
        found = list(_filter_nodes(plan))
        if not found:
            return None
        names = {
            "filters": _as_sent(found[0]["expressions"], self._names),
            "column_binding_names_by_index": self._names,
        }
        return json.dumps(names)


def _filter_nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == "LOGICAL_FILTER":
            yield node
        for part in node.values():
            yield from _filter_nodes(part)
    elif isinstance(node, list):
        for part in node:
            yield from _filter_nodes(part)


def _as_sent(node: Any, names: list[str]) -> Any:
    """A finished plan refers to columns by position; a filter that is sent refers to them by binding."""
    if isinstance(node, list):
        return [_as_sent(part, names) for part in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "BOUND_REF":
        binding = {"table_index": 0, "column_index": names.index(node["alias"])}
        return {"type": "BOUND_COLUMN_REF", "return_type": node["return_type"], "binding": binding, "depth": 0}
    return {key: _as_sent(part, names) for key, part in node.items()}


RANDOM_ROWS = random_rows(random.Random(7), 60)  # noqa: S311
RANDOM_BINDINGS = bindings_of(RANDOM_ROWS.schema)


@pytest.fixture(scope="module")
def random_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one row, of a few and of many: statistics of all sorts."""
    path, start = tmp_path_factory.mktemp("random") / "t", 0
    for count in (1, 1, 1, 2, 3, 5, 10, 37):
        write_deltalake(str(path), part_of(RANDOM_ROWS, start, count), mode="append")
        start += count
    return path


@pytest.fixture(scope="module")
def third_opinion() -> ThirdOpinion:
    return ThirdOpinion(RANDOM_ROWS)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32))
def test_no_random_filter_loses_a_row_by_the_direct_route(
    random_table: Path, third_opinion: ThirdOpinion, seed: int
) -> None:
    condition = random_filter(random.Random(seed))  # noqa: S311
    expected, document = third_opinion.rowids(condition), None
    if expected is not None:
        document = third_opinion.document(condition)
    if document is None:
        return
    translation = to_datafusion(parse_filters(document).conjuncts, RANDOM_BINDINGS)
    kept = Direct(random_table).rowids(translation.predicate)
    assert (expected or set()) <= kept, (condition, translation.predicate)


def test_no_random_filter_loses_a_row_by_spark(
    quick_spark: Any, random_table: Path, third_opinion: ThirdOpinion
) -> None:
    rng = random.Random(11)  # noqa: S311
    conditions, expected, translations = [], [], []
    while len(conditions) < 300:
        condition = random_filter(rng, depth=2)
        rows = third_opinion.rowids(condition)
        document = third_opinion.document(condition) if rows is not None else None
        if rows is not None and document is not None:
            conditions.append(condition)
            expected.append(rows)
            translations.append(to_spark(parse_filters(document).conjuncts, RANDOM_BINDINGS))
    kept = kept_by_spark(quick_spark, random_table, translations)
    lost = [one for one, wanted, rows in zip(conditions, expected, kept, strict=True) if not wanted <= rows]
    assert lost == []
    assert sum(translation.pushed > 0 for translation in translations) > 200
