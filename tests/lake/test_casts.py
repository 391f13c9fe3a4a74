"""Casts of a column give in Spark what DuckDB's CAST gives, or fail; where it is not sure there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pytest

from gateway.lake.casts.casting import cast_expression, cast_result, fitting, leaf_name
from gateway.lake.casts.chains import chain_expression, chain_of
from gateway.lake.ddl.altering import MISFIT
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.sql.checks import NamedType, translate_expression
from gateway.lake.values.codec import encode
from gateway.lake.values.types import StoredForm, stored_form
from tests.lake.cast_values import UUID, texts
from tests.lake.typed_values import WKB, exact

WHOLES = ("TINYINT", "INTEGER", "BIGINT", "UTINYINT", "UBIGINT", "HUGEINT", "UHUGEINT")
DECIMALS = ("DECIMAL(6,2)", "DECIMAL(38,0)", "DECIMAL(38,10)", "DECIMAL(9,9)")
NUMBERS = ("BOOLEAN", *WHOLES, "FLOAT", "DOUBLE", *DECIMALS)
MOMENTS = ("DATE", "TIME", "TIME_NS", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
OTHERS = ("VARCHAR", "BLOB", "UUID", "JSON", "TIMESTAMPTZ", "INTERVAL", "BIT")
KINDS = (*NUMBERS, *MOMENTS, *OTHERS)
TEXTS = texts()


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        # No cast may depend on the zone of a session.
        connection.execute("SET arrow_lossless_conversion = true; SET TimeZone = 'America/New_York'")
        connection.register("texts", pa.table({"t": pa.array(TEXTS, pa.string())}))
        yield connection


def _column(duck: duckdb.DuckDBPyConnection, query: str) -> pa.ChunkedArray:
    return duck.sql(query).to_arrow_table().column(0)


def _form(duck: duckdb.DuckDBPyConnection, kind: str) -> StoredForm:
    return stored_form(duck.sql(f"SELECT CAST(NULL AS {kind}) AS v").to_arrow_table().schema.field(0))


def _stored(duck: duckdb.DuckDBPyConnection, query: str, form: StoredForm) -> pa.Array:
    return encode(pa.concat_arrays(_column(duck, query).chunks), form)


def _by_spark(lake_spark: Spark, values: pa.Array, expressions: Sequence[str]) -> list[pa.Array]:
    rows = pa.table({"v": values, "n": pa.array(range(len(values)))})
    columns = [f"{text} AS c{position}" for position, text in enumerate(expressions)]
    with lake_spark.session(Profile.LATENCY) as session:
        made = session.createDataFrame(rows).orderBy("n").selectExpr(*columns).toArrow()
    return [pa.concat_arrays(column.chunks) for column in made.columns]


def _sources(duck: duckdb.DuckDBPyConnection, kind: str) -> None:
    """The table `sources`: every text that is a value of this type, as one."""
    # DuckDB reads '1.23455e4' as a DECIMAL(6,2), which it then overflows.
    only = "WHERE t IS NULL OR NOT contains(lower(t), 'e')" if kind.startswith("DECIMAL") else ""
    duck.execute(f"CREATE OR REPLACE TABLE sources AS SELECT DISTINCT TRY_CAST(t AS {kind}) AS v FROM texts {only}")


@pytest.mark.parametrize("old", KINDS)
def test_a_value_becomes_what_duckdb_makes_of_it_or_does_not_fit(
    old: str, duck: duckdb.DuckDBPyConnection, lake_spark: Spark
) -> None:
    _sources(duck, old)
    before = _form(duck, old)
    values = _stored(duck, "SELECT v FROM sources ORDER BY rowid", before)
    forms = {new: _form(duck, new) for new in KINDS if new != old}
    tried = {new: fitting("v", str(leaf_name(before)), str(leaf_name(form))) for new, form in forms.items()}
    casts = {new: text for new, text in tried.items() if text is not None}
    if not casts:
        assert old in ("TIMESTAMPTZ", "INTERVAL", "BIT")
        return
    shown = _column(duck, "SELECT v::VARCHAR FROM sources ORDER BY rowid").to_pylist()
    for new, made in zip(casts, _by_spark(lake_spark, values, list(casts.values())), strict=True):
        wanted = _stored(duck, f"SELECT TRY_CAST(v AS {new}) FROM sources ORDER BY rowid", forms[new])
        pairs = list(zip(exact(made.cast(forms[new].arrow)), exact(wanted), shown, strict=True))
        wrong = [(text, mine, theirs) for mine, theirs, text in pairs if mine is not None and mine != theirs]
        assert not wrong, f"{old} as {new}: {wrong[:5]}"
        assert any(mine is not None for mine, _, _ in pairs), f"{old} as {new}: nothing fits"


PLAIN_VALUES = {
    ("VARCHAR", "INTEGER"): (
        "1",
        "-1",
        " 12 ",
        "+7",
        "1.5",
        "2.5",
        "-2.5",
        "1e3",
        "15e-1",
        "1_000",
        ".5",
        "2147483647",
    ),
    ("VARCHAR", "UBIGINT"): ("18446744073709551615", "0.5", "-0"),
    ("VARCHAR", "HUGEINT"): ("-9999999999999999999999999999999999999", "9999999999999999999999999999999999999"),
    ("VARCHAR", "DECIMAL(20,10)"): ("1.5", " -0.00000000005 ", "1e3", "123.45678901235"),
    ("VARCHAR", "DOUBLE"): ("1.5", "-0", "1e308", "inf", "-Infinity", "NaN", " 1e-5 ", "0.1"),
    ("VARCHAR", "FLOAT"): ("16777217", "3.4028235e38", "1e-46"),
    ("VARCHAR", "BOOLEAN"): ("true", "F", "yes", "0"),
    ("VARCHAR", "DATE"): ("2024-02-29", "2024-2-9", "2024/02/29", " 2024-02-29 ", "2024-02-29 10:20:30"),
    ("VARCHAR", "TIMESTAMP"): ("2024-02-29", "2024-02-29T10:20:30.5Z", "2024-02-29 1:2:3.1234567", "1969-12-31 10:20"),
    ("VARCHAR", "TIMESTAMP_NS"): ("2024-02-29 10:20:30.123456789", "1969-12-31 23:59:59.999999999"),
    ("VARCHAR", "TIMESTAMPTZ"): ("2024-02-29 10:20:30+02", "2024-02-29T10:20:30.25Z", "2024-02-29 10:20-02:30"),
    ("VARCHAR", "TIME"): ("10:20:30", "1:2:3.5", "24:00:00"),
    ("VARCHAR", "UUID"): (UUID, UUID.upper(), f"{{{UUID}}}", UUID.replace("-", "")),
    ("VARCHAR", "BLOB"): ("abc", "\\xAB\\x00z", "", "a\nb"),
    ("VARCHAR", "JSON"): ('{"a": [1, "x", null]}', " 1 ", '"é"', "null"),
    ("DOUBLE", "VARCHAR"): ("1.5", "-0.0", "1e16", "1e15", "0.0001", "1e-5", "12345678.9", "inf", "123456789012345"),
    ("DOUBLE", "DECIMAL(6,2)"): ("1.005", "2.675", "-0.125"),
    ("DOUBLE", "UBIGINT"): ("18446744073709549568", "0.5", "1.5"),
    ("HUGEINT", "BIGINT"): ("9223372036854775807", "-9223372036854775808"),
    ("BIGINT", "UHUGEINT"): ("9223372036854775807", "0"),
    ("HUGEINT", "VARCHAR"): ("-9999999999999999999999999999999999999", "0"),
    ("UUID", "VARCHAR"): (UUID,),
    ("BLOB", "VARCHAR"): ("abc'\\x00", ""),
    ("TIMESTAMP", "TIMESTAMP_S"): ("1969-12-31 23:59:59.5", "2024-02-29 10:20:30.5", "infinity"),
    ("TIMESTAMP", "TIME"): ("1969-12-31 23:59:59.5",),
    ("TIMESTAMP_NS", "VARCHAR"): ("1969-12-31 23:59:59.000000001", "2024-02-29 00:00:00"),
    ("DATE", "TIMESTAMP_NS"): ("2024-02-29", "infinity"),
    ("TIME_NS", "TIME"): ("10:20:30.1234565",),
}


@pytest.mark.parametrize("old", dict.fromkeys(old for old, _ in PLAIN_VALUES))
def test_everyday_values_fit(old: str, duck: duckdb.DuckDBPyConnection, lake_spark: Spark) -> None:
    before, values, expressions, wanted = _form(duck, old), [], [], []
    for new, given in ((new, given) for (kind, new), given in PLAIN_VALUES.items() if kind == old):
        after = _form(duck, new)
        expression = cast_expression("v", before, after)
        assert expression is not None, new
        duck.execute("CREATE OR REPLACE TABLE plain AS SELECT unnest(?::VARCHAR[]) AS t", [list(given)])
        first = sum(map(len, values))
        values.append(_stored(duck, f"SELECT t::{old} FROM plain ORDER BY rowid", before))
        expressions.append(f"IF(n BETWEEN {first} AND {first + len(given) - 1}, {expression}, NULL)")
        theirs = _stored(duck, f"SELECT t::{old}::{new} FROM plain ORDER BY rowid", after)
        wanted.append((new, after, first, theirs))
    made = _by_spark(lake_spark, pa.concat_arrays(values), expressions)
    for mine, (new, after, first, theirs) in zip(made, wanted, strict=True):
        assert exact(mine.slice(first, len(theirs)).cast(after.arrow)) == exact(theirs), new


NESTED = [
    ("[1, NULL, 300]", "INTEGER[]", "VARCHAR[]"),
    ("[['1.5', NULL], NULL, []]", "VARCHAR[][]", "INTEGER[][]"),
    ("[1, 2, 3]", "INTEGER[]", "BIGINT[3]"),
    ("[1, 2, 3]", "INTEGER[3]", "DOUBLE[]"),
    ("{'a': 1, 'b': [1.5]}", "STRUCT(a INTEGER, b DOUBLE[])", "STRUCT(b VARCHAR[], a HUGEINT, c TIME)"),
    ("{'A': {'x': '2024-02-29'}}", "STRUCT(A STRUCT(x VARCHAR))", "STRUCT(a STRUCT(x DATE))"),
    ("MAP {'k': 1, 'l': NULL}", "MAP(VARCHAR, INTEGER)", "MAP(VARCHAR, DECIMAL(6,2))"),
    ("MAP {1: [TRUE]}", "MAP(INTEGER, BOOLEAN[])", "MAP(VARCHAR, INTEGER[])"),
    ("[{'m': MAP {'k': '10:20:30'}}]", "STRUCT(m MAP(VARCHAR, VARCHAR))[]", "STRUCT(m MAP(VARCHAR, TIME))[]"),
]


@pytest.mark.parametrize(("value", "old", "new"), NESTED)
def test_nested_values_are_cast_by_their_parts(
    value: str, old: str, new: str, duck: duckdb.DuckDBPyConnection, lake_spark: Spark
) -> None:
    before, after = _form(duck, old), _form(duck, new)
    expression = cast_expression("v", before, after)
    source = f"(SELECT {value}::{old} AS v UNION ALL SELECT NULL)"
    wanted = _stored(duck, f"SELECT v::{new} FROM {source} ORDER BY v IS NULL", after)
    values = _stored(duck, f"SELECT v FROM {source} ORDER BY v IS NULL", before)
    assert expression is not None
    (made,) = _by_spark(lake_spark, values, [expression])
    assert exact(made.cast(after.arrow)) == exact(wanted)


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("127.5", "DOUBLE", "TINYINT"),
        ("'nan'", "DOUBLE", "BIGINT"),
        ("1e300", "DOUBLE", "FLOAT"),
        ("10000", "DOUBLE", "DECIMAL(6,2)"),
        ("-1", "BIGINT", "UBIGINT"),
        ("'x'", "VARCHAR", "INTEGER"),
        ("'-0.4'", "VARCHAR", "UTINYINT"),
        ("'2024-02-30'", "VARCHAR", "DATE"),
        ("'1] , [2'", "VARCHAR", "JSON"),
        ("'2024-02-29 10:20:30'", "VARCHAR", "TIMESTAMPTZ"),
        ("[1, 2]", "INTEGER[]", "INTEGER[3]"),
        ("['1', 'x']", "VARCHAR[]", "INTEGER[]"),
        ("{'a': 'x'}", "STRUCT(a VARCHAR)", "STRUCT(a INTEGER)"),
        ("MAP {'1': 1, '01': 2}", "MAP(VARCHAR, INTEGER)", "MAP(INTEGER, INTEGER)"),
    ],
)
def test_a_value_that_does_not_fit_fails(
    value: str, old: str, new: str, duck: duckdb.DuckDBPyConnection, lake_spark: Spark
) -> None:
    before = _form(duck, old)
    expression = cast_expression("v", before, _form(duck, new))
    assert expression is not None
    with pytest.raises(Exception, match=MISFIT):
        _by_spark(lake_spark, _stored(duck, f"SELECT {value}::{old}", before), [expression])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TIMESTAMPTZ", "VARCHAR"),
        ("TIMESTAMPTZ", "DATE"),
        ("TIMESTAMP", "TIMESTAMPTZ"),
        ("DATE", "TIMESTAMPTZ"),
        ("INTEGER[]", "VARCHAR"),
        ("VARCHAR", "INTEGER[]"),
        ("INTEGER[2]", "INTEGER[3]"),
        ("INTEGER[]", "UUID[]"),
        ("STRUCT(a INTEGER)", "STRUCT(b INTEGER)"),
        ("MAP(INTEGER, INTEGER)", "MAP(DOUBLE, INTEGER)"),
        ("INTERVAL", "VARCHAR"),
        ("BIT", "BLOB"),
        ("BIGINT", "UUID"),
        ("BOOLEAN", "DATE"),
        ("TIME", "TIMESTAMP"),
    ],
)
def test_where_the_answer_is_not_sure_there_is_no_cast(old: str, new: str, duck: duckdb.DuckDBPyConnection) -> None:
    assert cast_expression("v", _form(duck, old), _form(duck, new)) is None


def test_a_geometry_is_not_taken_for_its_bytes() -> None:
    geometry, blob = stored_form(pa.field("v", pa.binary(), metadata=WKB)), stored_form(pa.field("v", pa.binary()))
    assert cast_expression("v", geometry, blob) is None
    lists = [stored_form(pa.field("v", pa.list_(form.told))) for form in (geometry, blob)]
    assert cast_expression("v", *lists) is None


@pytest.mark.parametrize(
    ("using", "old", "new"),
    [
        ("CAST(v AS INTEGER)", "DOUBLE", "VARCHAR"),
        ("v::DOUBLE::INTEGER", "VARCHAR", "BIGINT"),
        ("CAST(v AS STRUCT(a INTEGER))", "STRUCT(a VARCHAR)", "STRUCT(a VARCHAR)"),
        ("CAST(v AS UUID)", "VARCHAR", "VARCHAR"),
        ("CAST(v AS HUGEINT)", "VARCHAR", "DECIMAL(38,0)"),
        ("v", "VARCHAR", "DOUBLE"),
        ("v AT TIME ZONE 'UTC'", "TIMESTAMP", "TIMESTAMPTZ"),
        ("timezone('UTC', v)", "TIMESTAMPTZ", "DATE"),
    ],
)
def test_a_chain_of_casts_takes_every_step(
    using: str, old: str, new: str, duck: duckdb.DuckDBPyConnection, lake_spark: Spark
) -> None:
    samples = {"DOUBLE": "2.5", "STRUCT(a VARCHAR)": "{'a': ' 2.5 '}", "TIMESTAMP": "'2024-03-31 02:30:00'"}
    value = samples.get(old, f"'{UUID.upper()}'" if "UUID" in using else "'2.5'")
    value = "'2024-02-29 23:30:00-05'" if old == "TIMESTAMPTZ" else value
    before, after = _form(duck, old), _form(duck, new)
    chain = chain_of(using)
    assert chain is not None
    expression = chain_expression("v", before, chain[1], after)
    assert expression is not None
    source = f"(SELECT {value}::{old} AS v)"
    (made,) = _by_spark(lake_spark, _stored(duck, f"SELECT v FROM {source}", before), [expression])
    wanted = _stored(duck, f"SELECT CAST({using} AS {new}) FROM {source}", after)
    assert exact(made.cast(after.arrow)) == exact(wanted)


@pytest.mark.parametrize(
    "using", ["v + 1", "TRY_CAST(v AS INTEGER)", "t.v", "timezone('Europe/Paris', v)", "v; v", "("]
)
def test_anything_else_is_no_chain(using: str) -> None:
    assert chain_of(using) is None


COLUMNS = {"i": ("BIGINT", "3"), "d": ("DOUBLE", "0.75"), "n": ("DECIMAL(6,2)", "1.25"), "s": ("VARCHAR", "'7.5'")}


@pytest.mark.parametrize(
    ("using", "new"),
    [
        ("d * 2", "INTEGER"),
        ("n * 2", "INTEGER"),
        ("n * 1.1", "DOUBLE"),
        ("n + i", "DECIMAL(9,1)"),
        ("i * 2", "HUGEINT"),
        ("i * 2", "VARCHAR"),
        ("d + i", "VARCHAR"),
        ("d * i", "DECIMAL(6,1)"),
        ("s || '5'", "INTEGER"),
        ("concat('2024-01-0', i)", "DATE"),
        ("CASE WHEN d > 0.5 THEN n END", "TINYINT"),
        ("i > 2", "VARCHAR"),
        ("coalesce(NULL, s)", "DECIMAL(6,1)"),
        ("NULL", "INTEGER[]"),
    ],
)
def test_what_using_gives_is_cast_from_its_own_type(
    using: str, new: str, duck: duckdb.DuckDBPyConnection, lake_spark: Spark
) -> None:
    rows = duck.sql("SELECT " + ", ".join(f"{value}::{kind} AS {name}" for name, (kind, value) in COLUMNS.items()))
    data, after = rows.to_arrow_table(), _form(duck, new)
    duck.register("data", data)
    expression, kind = translate_expression(using, [NamedType(field.name, field.type) for field in data.schema])
    made = None if kind is None else cast_result(expression, kind, after)
    assert made is not None
    with lake_spark.session(Profile.LATENCY) as session:
        found = session.createDataFrame(data).selectExpr(f"{made} AS c").toArrow().column(0)
    wanted = _stored(duck, f"SELECT CAST({using} AS {new}) FROM data", after)
    assert exact(pa.concat_arrays(found.chunks).cast(after.arrow)) == exact(wanted)


def test_a_type_that_is_not_known_is_no_text(duck: duckdb.DuckDBPyConnection) -> None:
    text = _form(duck, "VARCHAR")
    for using in ("CAST(v AS mood)", "CAST(v AS ENUM('a', 'b'))"):
        chain = chain_of(using)
        assert chain is not None
        assert chain_expression("v", text, chain[1], text) is None
