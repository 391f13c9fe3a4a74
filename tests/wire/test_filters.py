from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import MalformedFilterError
from gateway.wire.filter_parser import FilterLimits, Filters, parse_filters
from gateway.wire.filter_tree import (
    Between,
    Case,
    Cast,
    ColumnRef,
    Comparison,
    Constant,
    Expression,
    Function,
    FunctionCall,
    In,
    IsNull,
    Not,
    Operator,
    Or,
    TypeId,
    ValueType,
    referenced_columns,
)
from tests.captures import VECTORS, filters

INTEGER, BIGINT, VARCHAR = ValueType(TypeId.INTEGER), ValueType(TypeId.BIGINT), ValueType(TypeId.VARCHAR)
BOOLEAN, DOUBLE, DATE = ValueType(TypeId.BOOLEAN), ValueType(TypeId.DOUBLE), ValueType(TypeId.DATE)
I32, VC, BO = ColumnRef("i32", INTEGER), ColumnRef("vc", VARCHAR), ColumnRef("bo", BOOLEAN)
DUCKDB2 = [json.loads(line) for line in (VECTORS / "filters-duckdb2.jsonl").read_text().splitlines()]


def captured(condition: str) -> Filters:
    """The captured document of `SELECT … WHERE condition`, parsed."""
    sql = f"SELECT i32 FROM x.demo.types WHERE {condition}"
    return parse_filters(next(line["json_filters"] for line in filters() if line["sql"] == sql))


def from_duckdb2(condition: str) -> Filters:
    sql = f"SELECT * FROM t WHERE {condition}"
    return parse_filters(next(line["json_filters"] for line in DUCKDB2 if line["sql"] == sql))


def number(value: int) -> Constant:
    return Constant(INTEGER, value)


def text(value: str) -> Constant:
    return Constant(VARCHAR, value)


def compare(left: Expression, operator: str, right: Expression) -> Comparison:
    return Comparison(Operator(operator), left, right)


def test_every_captured_document_is_read() -> None:
    parsed = [parse_filters(line["json_filters"]) for line in filters()]
    assert len(parsed) == 391
    assert sum(one.dropped == 0 for one in parsed) >= 305


def test_an_empty_document_is_no_filter() -> None:
    assert parse_filters("") == parse_filters(b"") == Filters()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("i32 = 3", compare(I32, "=", number(3))),
        ("i32 < 3", compare(I32, "<", number(3))),
        ("i32 IS NOT NULL", IsNull(I32, negated=True)),
        ("bo", BO),
        ("NOT bo", Not(BO)),
        ("bo IS NOT TRUE", compare(BO, "IS DISTINCT FROM", Constant(BOOLEAN, True))),
        ("i32 IS NOT DISTINCT FROM NULL", compare(I32, "IS NOT DISTINCT FROM", Constant(INTEGER, None))),
        (
            "i32 > 0 AND i32 <= 3000",
            Between(I32, number(0), number(3000), lower_inclusive=False, upper_inclusive=True),
        ),
        ("i32 IN (1, 2, 3, NULL)", In(I32, (number(1), number(2), number(3), Constant(INTEGER, None)), negated=False)),
        ("vc NOT IN ('abc', 'Zed')", In(VC, (text("abc"), text("Zed")), negated=True)),
        ("i32 = 3 OR vc = 'Zed'", Or((compare(I32, "=", number(3)), compare(VC, "=", text("Zed"))))),
        ("vc LIKE 'abc%'", FunctionCall(Function.PREFIX, (VC, text("abc")))),
        ("starts_with(vc, 'ab')", FunctionCall(Function.PREFIX, (VC, text("ab")))),
        ("vc NOT LIKE 'a_c%'", Not(FunctionCall(Function.LIKE, (VC, text("a_c%"))))),
        ("vc LIKE '100!%%' ESCAPE '!'", FunctionCall(Function.LIKE_ESCAPE, (VC, text("100!%%"), text("!")))),
        ("st.c.d > 1", compare(ColumnRef("st", DOUBLE, ("c", "d")), ">", Constant(DOUBLE, 1.0))),
        ("coalesce(i32, 0) = 0", compare(FunctionCall(Function.COALESCE, (I32, number(0))), "=", number(0))),
        ("rowid = 3", compare(ColumnRef("rowid", BIGINT), "=", Constant(BIGINT, 3))),
        (
            "if(bo, i32, 0) = 3",
            compare(Case(((BO, I32),), number(0)), "=", number(3)),
        ),
        (
            "TRY_CAST(vc AS INTEGER) = 3",
            compare(Cast(VC, INTEGER, is_try=True), "=", number(3)),
        ),
    ],
)
def test_each_kind_of_node_has_its_place_in_the_tree(condition: str, expected: Expression) -> None:
    assert captured(condition) == Filters((expected,))


@pytest.mark.parametrize(
    ("condition", "type_", "value"),
    [
        ("i64 = -9223372036854775808", BIGINT, -(2**63)),
        ("u64 = 18446744073709551615", ValueType(TypeId.UBIGINT), 2**64 - 1),
        ("hu = (-170141183460469231731687303715884105728)::HUGEINT", ValueType(TypeId.HUGEINT), -(2**127)),
        ("uhu = 340282366920938463463374607431768211455::UHUGEINT", ValueType(TypeId.UHUGEINT), 2**128 - 1),
        ("dec9 = 1.25", ValueType(TypeId.DECIMAL, 9, 2), 125),
        (
            "dec38 = 1234567890123456789012345678.0123456789",
            ValueType(TypeId.DECIMAL, 38, 10),
            12345678901234567890123456780123456789,
        ),
        (
            "uu = 'b975e418-7a6d-4afd-b1a4-1f7174ce1805'",
            ValueType(TypeId.UUID),
            "b975e418-7a6d-4afd-b1a4-1f7174ce1805",
        ),
        ("bl = '\\x00\\xFF'::BLOB", ValueType(TypeId.BLOB), b"\x00\xff"),
        ("dt = DATE '2024-05-06'", DATE, 19849),
        ("dt = 'infinity'::DATE", DATE, 2**31 - 1),
        (
            "ts_ns = TIMESTAMP_NS '2024-05-06 10:11:12.123456789'",
            ValueType(TypeId.TIMESTAMP_NS),
            1714990272123456789,
        ),
        ("fl = '-Infinity'::FLOAT", ValueType(TypeId.FLOAT), -math.inf),
        ("vc = '😀 emoji'", VARCHAR, "😀 emoji"),
        ("vc = chr(0) || 'x'", VARCHAR, "\x00x"),
    ],
)
def test_constants_are_exact(condition: str, type_: ValueType, value: Any) -> None:
    (conjunct,) = captured(condition).conjuncts
    assert isinstance(conjunct, Comparison)
    assert conjunct.right == Constant(type_, value)


def test_an_unknown_function_costs_only_its_own_conjunct() -> None:
    known, unknown = captured("vc <> 'abc'"), captured("length(vc) > 0 AND vc <> 'abc'")
    assert unknown.conjuncts == known.conjuncts
    assert unknown.dropped == 1


@pytest.mark.parametrize(
    "condition", ["lower(vc) = 'zed'", "CAST(vc AS INTEGER) = 3 OR i32 % 2 = 1", "bi = '101'::BIT"]
)
def test_what_the_tree_has_no_node_for_is_dropped(condition: str) -> None:
    documents = [line["json_filters"] for line in filters() if line["sql"].endswith(f"WHERE {condition}")]
    for document in documents:
        assert parse_filters(document) == Filters((), dropped=1)


def test_a_function_of_another_catalog_is_not_mistaken_for_duckdbs_own() -> None:
    document = next(line["json_filters"] for line in filters() if line["sql"].endswith("WHERE prefix(vc, 'ab')"))
    assert parse_filters(document).dropped == 0
    foreign = document.replace('"catalog_name":"system"', '"catalog_name":"lake"')
    assert parse_filters(foreign) == Filters((), dropped=1)


@pytest.mark.parametrize("line", DUCKDB2, ids=lambda line: line["sql"])
def test_every_duckdb_2_document_is_understood(line: dict[str, Any]) -> None:
    parsed = parse_filters(line["json_filters"])
    assert parsed.dropped == ("lower" in line["sql"])


@pytest.mark.parametrize(
    ("condition", "conjuncts"),
    [
        ("i32 = 3", (compare(I32, "=", number(3)),)),
        ("i32 BETWEEN 1 AND 5", (compare(I32, ">=", number(1)), compare(I32, "<=", number(5)))),
        (
            "i8 = 300",
            (compare(Cast(ColumnRef("i8", ValueType(TypeId.TINYINT)), INTEGER, is_try=False), "=", number(300)),),
        ),
        ("i32 NOT IN (1, 2)", (Not(Or((compare(I32, "=", number(1)), compare(I32, "=", number(2))))),)),
        ("vc LIKE '%b%'", (FunctionCall(Function.CONTAINS, (VC, text("b"))),)),
        ("TRY_CAST(vc AS INTEGER) = 3", (compare(Cast(VC, INTEGER, is_try=True), "=", number(3)),)),
        (
            "(i32, vc) = (3, 'abc')",
            (
                compare(
                    FunctionCall(Function.ROW, (I32, VC)),
                    "=",
                    Constant(ValueType(TypeId.STRUCT), (number(3), text("abc"))),
                ),
            ),
        ),
    ],
)
def test_the_grammar_of_duckdb_2_gives_the_same_tree(condition: str, conjuncts: tuple[Expression, ...]) -> None:
    assert from_duckdb2(condition) == Filters(conjuncts)


@pytest.mark.parametrize("token", ["NaN", "nan", "NAN"])
def test_nan_is_read_in_any_case(token: str) -> None:
    document = next(line["json_filters"] for line in DUCKDB2 if "nan" in line["sql"]).replace(":NAN", f":{token}")
    (conjunct,) = parse_filters(document).conjuncts
    assert isinstance(conjunct, Comparison)
    assert isinstance(conjunct.right, Constant)
    assert math.isnan(conjunct.right.value)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["infinity", "-INFINITY", "-inf"])
def test_words_inside_texts_stay_as_they_are(token: str) -> None:
    node = {"type": "VALUE_CONSTANT", "value": {"type": {"id": "DOUBLE"}, "is_null": False, "value": 0}}
    names = json.dumps(['say "nan" \\', "infinity"])
    document = f'{{"filters":[{json.dumps(node)}],"column_binding_names_by_index":{names}}}'
    (conjunct,) = parse_filters(document.replace('"value": 0', f'"value": {token}')).conjuncts
    assert conjunct == Constant(DOUBLE, -math.inf if token.startswith("-") else math.inf)


@pytest.mark.parametrize(
    "document",
    ["{", "[]", "null", "3", '{"filters": 3}', '{"filters": [], "column_binding_names_by_index": {}}', b"\xff\xfe"],
)
def test_what_is_no_filter_document_is_refused_without_repeating_it(document: str | bytes) -> None:
    with pytest.raises(MalformedFilterError) as refusal:
        parse_filters(document)
    assert len(refusal.value.message) < 100


def test_a_document_over_the_limit_is_refused() -> None:
    with pytest.raises(MalformedFilterError):
        parse_filters(" " * 1001, FilterLimits(document_bytes=1000))


def nested(depth: int) -> str:
    leaf = {"type": "VALUE_CONSTANT", "value": {"type": {"id": "BOOLEAN"}, "is_null": False, "value": False}}
    opening = '{"type":"OPERATOR_NOT","children":['
    return f'{{"filters":[{opening * depth}{json.dumps(leaf)}{"]}" * depth}]}}'


@pytest.mark.parametrize(("depth", "dropped"), [(198, 0), (199, 0), (200, 1), (400, 1), (100_000, 1)])
def test_a_filter_too_deep_is_dropped(depth: int, dropped: int) -> None:
    parsed = parse_filters(nested(depth))
    assert parsed.dropped == dropped


def test_an_in_list_too_long_is_dropped_alone() -> None:
    document = next(line["json_filters"] for line in filters() if line.get("note") == "IN list of 200")
    assert parse_filters(document, FilterLimits(in_items=200)).dropped == 0
    assert parse_filters(document, FilterLimits(in_items=199)) == Filters((), dropped=1)


def test_lone_surrogates_are_dropped() -> None:
    document = next(line["json_filters"] for line in filters() if line["sql"].endswith("WHERE vc = 'Zürich'"))
    assert parse_filters(document.replace("Zürich", "\\ud800")) == Filters((), dropped=1)


def test_columns_are_named_once_however_often_they_occur() -> None:
    conjuncts = captured("(i32 > 0 AND vc = 'abc') OR (i32 < 0 AND (vc = 'Zed' OR vc LIKE 'Z%'))").conjuncts
    assert referenced_columns(conjuncts) == {"i32", "vc"}
    assert referenced_columns(captured("rowid > 2 AND i32 > 0").conjuncts) == {"rowid", "i32"}


# No document, however odd, does more than be refused or be dropped.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=5), parts, max_size=4),
    max_leaves=20,
)


@given(JSON | st.builds(lambda content: {"filters": content, "column_binding_names_by_index": ["a"]}, JSON))
def test_any_json_is_read_or_refused(content: Any) -> None:
    with contextlib.suppress(MalformedFilterError):
        parse_filters(json.dumps(content))


@given(st.text(max_size=50) | st.binary(max_size=50))
def test_any_text_is_read_or_refused(document: str | bytes) -> None:
    with contextlib.suppress(MalformedFilterError):
        parse_filters(document)


def _mutate(node: Any, draw: st.DrawFn) -> Any:
    """A copy with a member changed somewhere: replaced, dropped or swapped with another."""
    if isinstance(node, dict) and node and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(node)))
        changed = dict(node)
        action = draw(st.integers(0, 5))
        if action == 0:
            del changed[key]
        elif action == 1:
            changed[key] = node[draw(st.sampled_from(sorted(node)))]
        else:
            changed[key] = _mutate(node[key], draw)
        return changed
    if isinstance(node, list) and node and draw(st.integers(0, 3)):
        index = draw(st.integers(0, len(node) - 1))
        return [*node[:index], _mutate(node[index], draw), *node[index + 1 :]]
    return draw(JSON)


DOCUMENTS = [line["json_filters"] for line in (*filters(), *DUCKDB2) if line["json_filters"]]


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_document_is_read_or_refused(data: st.DataObject) -> None:
    @st.composite
    def damaged(draw: st.DrawFn) -> str:
        document = draw(st.sampled_from(DOCUMENTS)).replace(":NAN", ":NaN")
        return json.dumps(_mutate(json.loads(document), draw))

    document = data.draw(damaged())
    try:
        parsed = parse_filters(document)
    except MalformedFilterError:
        return
    assert all(isinstance(name, str) for name in referenced_columns(parsed.conjuncts))
