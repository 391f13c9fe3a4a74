"""The filter builder against captured filter documents."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from tests import captures
from tests.airport_filters import (
    all_of,
    any_of,
    column,
    constant,
    document,
    function,
    listing_document,
    meaning,
    negate,
)

ID, AGE, CITY = column("id", "BIGINT"), column("age", "INTEGER"), column("city", "VARCHAR")
CAPTURED_FILTERS = {
    "first-use-1": document([ID.eq(1)], ["name"]),
    "select-1": document(columns=["id", "name", "age", "city"]),
    "select-3": document([AGE.gt(26), CITY.eq("Rome")], ["name"]),
    "select-4": document(),
    "select-11": document([CITY.is_null()]),
    "update-3": document([ID.isin(1, 2)], ["age", "rowid"]),
    "update-6": document([column("rowid", "BIGINT").eq(0)], ["rowid"]),
    "delete-2": document([ID.ge(1000)], ["rowid"]),
}
I32, VC = column("i32", "INTEGER"), column("vc", "VARCHAR")
WHERE = {
    "i32 BETWEEN 0 AND 3000": I32.between(0, 3000),
    "i32 > 0 AND i32 <= 3000": I32.between(0, 3000, lower_inclusive=False),
    "i32 NOT IN (3, -3)": I32.not_in(3, -3),
    "NOT (i32 > 3 AND vc = 'abc')": negate(all_of(I32.gt(3), VC.eq("abc"))),
    "i32 IS NULL OR i32 > 5": any_of(I32.is_null(), I32.gt(5)),
    "i32 IS NOT DISTINCT FROM 3": I32.not_distinct_from(3),
    "dec9 = 1.25": column("dec9", "DECIMAL(9,2)").eq(Decimal("1.25")),
    "dec38 = 3.5": column("dec38", "DECIMAL(38,10)").eq(Decimal("3.5")),
    "uu = 'b975e418-7a6d-4afd-b1a4-1f7174ce1805'": column("uu", "UUID").eq(
        UUID("b975e418-7a6d-4afd-b1a4-1f7174ce1805")
    ),
    "hu = 9": column("hu", "HUGEINT").eq(9),
    "ts = TIMESTAMP '2024-05-06 10:11:12.123456'": column("ts", "TIMESTAMP").eq(
        datetime(2024, 5, 6, 10, 11, 12, 123456, tzinfo=UTC)
    ),
    "dt = DATE '2024-05-06'": column("dt", "DATE").eq(date(2024, 5, 6)),
    "bl = 'ab'::BLOB": column("bl", "BLOB").eq(b"ab"),
    "li = [1,2]": column("li", "INTEGER[]").eq([1, 2]),
    "db = 'NaN'::DOUBLE": column("db", "DOUBLE").eq(float("nan")),
    "i32 IS DISTINCT FROM NULL": I32.distinct_from(None),
    "(i32 > 0 AND vc = 'abc') OR (i32 < 0 AND (vc = 'Zed' OR vc LIKE 'Z%'))": any_of(
        all_of(I32.gt(0), VC.eq("abc")),
        all_of(I32.lt(0), any_of(VC.eq("Zed"), function("prefix", "BOOLEAN", VC, constant("Z", "VARCHAR")))),
    ),
}


@pytest.mark.parametrize("statement_id", CAPTURED_FILTERS)
def test_built_filters_mean_what_the_captured_ones_mean(statement_id: str) -> None:
    rpc = next(rpc for rpc in captures.statement(statement_id).rpcs if rpc.action == "endpoints")
    assert meaning(CAPTURED_FILTERS[statement_id]) == meaning(rpc.decoded["parameters"]["json_filters"])


@pytest.mark.parametrize("where", WHERE)
def test_built_conditions_mean_what_the_captured_ones_mean(where: str) -> None:
    captured = next(line for line in captures.filters() if line["sql"].endswith(f".types WHERE {where}"))
    assert meaning(document([WHERE[where]], ["i32"])) == meaning(captured["json_filters"])


def test_a_listing_filter_leaves_out_default_members() -> None:
    (rpc,) = captures.statement("flights-2").rpcs
    assert listing_document([column("total_records", "BIGINT").gt(3)]) == rpc.header("airport-duckdb-json-filters")


def test_a_filter_made_only_of_known_values_is_the_captured_text() -> None:
    rpc = next(rpc for rpc in captures.statement("first-use-1").rpcs if rpc.action == "endpoints")
    assert document([ID.eq(1)], ["name"]) == rpc.decoded["parameters"]["json_filters"]
