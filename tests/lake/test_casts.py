"""Casts of a column give in Spark what DuckDB's CAST gives, or fail; where it is not sure there is none."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pytest

from gateway.lake.altering import MISFIT
from gateway.lake.cast_chains import chain_expression, chain_of
from gateway.lake.casts import cast_expression, fitting, leaf_name
from gateway.lake.codec import encode
from gateway.lake.spark import Profile, Spark
from gateway.lake.types import StoredForm, stored_form
from tests.lake.typed_values import WKB, exact

WHOLES = ("TINYINT", "INTEGER", "BIGINT", "UTINYINT", "UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT")
DECIMALS = ("DECIMAL(6,2)", "DECIMAL(20,10)", "DECIMAL(38,0)", "DECIMAL(38,10)", "DECIMAL(9,9)")
NUMBERS = ("BOOLEAN", *WHOLES, "FLOAT", "DOUBLE", *DECIMALS)
MOMENTS = ("DATE", "TIME", "TIME_NS", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
OTHERS = ("VARCHAR", "BLOB", "UUID", "JSON", "TIMESTAMPTZ", "INTERVAL", "BIT")
KINDS = (*NUMBERS, *MOMENTS, *OTHERS)
UUID = "b975e418-7a6d-4afd-b1a4-1f7174ce1805"


def _digits(source: random.Random, most: int) -> str:
    return "".join(source.choice("0123456789459") for _ in range(source.randint(0, most)))


def _whole_texts(source: random.Random) -> Iterator[str]:
    for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 127, 128):
        yield from (str(sign * 2**bits + more) for sign in (1, -1) for more in (-1, 0, 1))
    yield from ("0", "-0", "1", "-1", "007", "+5", str(10**38), str(10**38 - 1), str(-(10**38)))
    yield from (str(source.randint(-(10**size), 10**size)) for size in range(1, 39))


def _fraction_texts(source: random.Random) -> Iterator[str]:
    yield from ("0.5", "1.5", "2.5", "-0.5", "-1.5", "-2.5", "127.5", "127.49", "-128.5", "-128.4", "255.5", "-0.4")
    yield from ("1.005", "-1.005", "2.675", "9999.99", "9999.994", "9999.995", "1.4999999999999999999999999", "-0.0")
    for _ in range(60):
        whole = source.randint(0, 10 ** source.randint(0, 20))
        yield f"{source.choice(['', '-', '+'])}{whole}.{_digits(source, 22)}"


def _float_texts(source: random.Random) -> Iterator[str]:
    yield from (
        "inf",
        "-inf",
        "nan",
        "-nan",
        "Infinity",
        " INF ",
        "1.7976931348623157e308",
        "5e-324",
        "1e-308",
        "1e400",
    )
    yield from (
        "1e15",
        "1e16",
        "0.0001",
        "1e-5",
        "1.5e-5",
        "1e7",
        "12345678.9",
        "1e22",
        "3.4028236e38",
        "1e39",
        "1e-45",
    )
    yield from (
        "0.1",
        "0.30000000000000004",
        "9007199254740993",
        "18446744073709549568",
        "1.5e38",
        "9.5e37",
        "0.0009999",
    )
    for _ in range(40):
        yield repr(struct.unpack("<d", source.randbytes(8))[0])
        yield f"{source.uniform(-1000, 1000):.3f}"
        yield f"{source.randint(1, 99999)}e{source.randint(-20, 20)}"
        yield repr(source.randint(-1000, 1000) / 2 ** source.randint(0, 4))


def _odd_numbers(source: random.Random) -> Iterator[str]:
    yield from (
        " 12 ",
        "\t12\n",
        "\v1",
        "\u00a01",
        "1e3",
        "1E+3",
        "1e-1",
        "15e-1",
        "14e-1",
        "1.45e1",
        ".5",
        "5.",
        ".",
        "-",
    )
    yield from (
        "",
        "++1",
        "- 1",
        "1_000",
        "1__0",
        "_1",
        "0x1f",
        "0b11",
        "1e",
        "1d",
        "1f",
        "１",
        "1.5.5",
        "1 2",
        "1\n\n",
    )
    yield from (
        "1e1_0",
        "12345e-4",
        "1.2345678901234567890123e5",
        "1.23455e4",
        "1,5",
        "1e37",
        "1e38",
        "0e400",
        "1e-400",
    )
    for _ in range(60):
        mantissa = f"{source.choice(['', '-'])}{source.randint(0, 10 ** source.randint(0, 18))}.{_digits(source, 18)}"
        yield f"{mantissa}{source.choice('eE')}{source.choice(['', '+', '-'])}{source.randint(0, 40)}"


_CLOCKS = (
    *("00:00:00", "23:59:59.999999", "23:59:59.9999995", "23:59:59.999999499", "23:59:59.4999995", "23:59:59.9995"),
    *("10:20:30.123456789", "10:20:30.1234565", "10:20:30.0004999996", "10:20:30.5", "10:20:30.12", "23:59:59.9999999"),
    *(
        "10:20",
        "1:2:3",
        "24:00:00",
        "24:00:01",
        "23:59:60",
        "10",
        "10:20:30.",
        "00:12:43.145224193",
        "23:47:16.854775807",
    ),
)


def _moment_texts(source: random.Random) -> Iterator[str]:
    yield from (
        "2024-02-29",
        "2024-2-9",
        "2024-02-30",
        "2023-02-29",
        "0001-01-01",
        "0000-01-01",
        "9999-12-31",
        "1582-10-10",
    )
    yield from ("10000-01-01", "infinity", "-infinity", "epoch", "0044-03-15 (BC)", "5881580-07-10", "294247-01-10")
    yield from (" 2024-02-29 ", "2024/02/29", "20240229", "2024-02", "2024", "24-02-29", "2024-02-29x", "2024-02/29")
    yield from ("2024-02-29 10:20 ", "2024-02-29  10:20:30", "2024-02-29t10:20:30", "010:20:30", "T10:20:30", "10:20 ")
    yield from _CLOCKS
    for day in ("2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "2262-04-11", "1677-09-21"):
        yield from (f"{day}{source.choice([' ', 'T'])}{clock}" for clock in _CLOCKS)
    for zone in (
        "Z",
        "+00",
        "+00:00",
        "+02",
        "-0230",
        "-02:30",
        " UTC",
        "+15:59",
        "+16",
        "+5",
        "+02:60",
        "-00:30",
        "z",
    ):
        yield from (f"2024-02-29 10:20:30{zone}", f"2024-02-29T10:20:30.25{zone}", f"10:20:30{zone}")


def _other_texts() -> Iterator[str]:
    yield from (
        UUID,
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f" {UUID}",
        f"{UUID}\n",
        f"{{{UUID}",
        UUID[:-1],
    )
    yield from (
        "a",
        "\\xab",
        "\\xAb\\x00",
        "\\xZZ",
        "\\",
        "\\\\",
        "é",
        "a\nb",
        "'",
        '"',
        "\\x1",
        "\x7f",
        "😀",
        "\\xff" * 50,
    )
    yield "".join(chr(code) for code in range(1, 128) if code != ord("\\"))
    yield from (
        '{"a": 1 }',
        "null",
        "[1,]",
        "NaN",
        " 1 ",
        "[1] x",
        '"a',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        "{'a':1}",
        "[]",
    )
    yield from (
        "01",
        '{"a":1,"a":2}',
        "//x\n1",
        "\ufeff1",
        "1,2",
        "1],[2",
        '1}, {"a":2',
        '1,"b":2',
        "1]",
        '"\x01"',
        "[1\n]",
    )
    yield from ("true", "T", "tRuE", "yes", "y", "no", "N", "on", "off", "f", "false", " true ", "2")


def _texts() -> list[str | None]:
    source = random.Random(7)  # noqa: S311 - the same values every time
    parts = (_whole_texts, _fraction_texts, _float_texts, _odd_numbers, _moment_texts)
    return [None, *dict.fromkeys([*(text for part in parts for text in part(source)), *_other_texts()])]


TEXTS = _texts()


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


def test_everyday_values_fit(duck: duckdb.DuckDBPyConnection, lake_spark: Spark) -> None:
    for (old, new), texts in PLAIN_VALUES.items():
        before, after = _form(duck, old), _form(duck, new)
        duck.execute("CREATE OR REPLACE TABLE plain AS SELECT unnest(?::VARCHAR[]) AS t", [list(texts)])
        values = _stored(duck, f"SELECT t::{old} FROM plain ORDER BY rowid", before)
        wanted = _stored(duck, f"SELECT t::{old}::{new} FROM plain ORDER BY rowid", after)
        expression = cast_expression("v", before, after)
        assert expression is not None, (old, new)
        (made,) = _by_spark(lake_spark, values, [expression])
        assert exact(made.cast(after.arrow)) == exact(wanted), (old, new)


NESTED = [
    ("[1, NULL, 300]", "INTEGER[]", "VARCHAR[]"),
    ("[['1.5', NULL], NULL, []]", "VARCHAR[][]", "INTEGER[][]"),
    ("[1, 2, 3]", "INTEGER[]", "BIGINT[3]"),
    ("[1, 2, 3]", "INTEGER[3]", "DOUBLE[]"),
    ("[1, 2]", "SMALLINT[2]", "UUID[2]"),
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
    if "UUID" in new:
        assert expression is None
        return
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
    chain = chain_of(using, "V")
    assert chain is not None
    expression = chain_expression("v", before, chain, after)
    assert expression is not None
    source = f"(SELECT {value}::{old} AS v)"
    (made,) = _by_spark(lake_spark, _stored(duck, f"SELECT v FROM {source}", before), [expression])
    wanted = _stored(duck, f"SELECT CAST({using} AS {new}) FROM {source}", after)
    assert exact(made.cast(after.arrow)) == exact(wanted)


@pytest.mark.parametrize(
    "using", ["v + 1", "w", "TRY_CAST(v AS INTEGER)", "t.v", "timezone('Europe/Paris', v)", "v; v", "("]
)
def test_anything_else_is_no_chain(using: str) -> None:
    assert chain_of(using, "v") is None


def test_a_type_that_is_not_known_is_no_text(duck: duckdb.DuckDBPyConnection) -> None:
    text = _form(duck, "VARCHAR")
    for using in ("CAST(v AS mood)", "CAST(v AS ENUM('a', 'b'))"):
        chain = chain_of(using, "v")
        assert chain is not None
        assert chain_expression("v", text, chain, text) is None
