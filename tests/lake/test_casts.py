"""ALTER … TYPE gives what DuckDB's CAST gives: a DuckDB of its own says what that is, of every type and many texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pytest

from gateway.errors import RequestError
from gateway.lake.ddl.alterations import Rewrite
from gateway.lake.ddl.rewriting import naming, new_values
from gateway.lake.duck.expressions import EvaluationError, Evaluator, check_expression
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.values.codec import decode, encode
from gateway.lake.values.types import StoredForm, stored_form
from tests.lake.cast_values import texts
from tests.lake.typed_values import KINDS as TYPED
from tests.lake.typed_values import NESTED, array_of, exact

WHOLES = ("TINYINT", "INTEGER", "BIGINT", "UTINYINT", "UBIGINT", "HUGEINT", "UHUGEINT", "BIGNUM")
DECIMALS = ("DECIMAL(6,2)", "DECIMAL(38,0)", "DECIMAL(38,10)", "DECIMAL(9,9)")
NUMBERS = ("BOOLEAN", *WHOLES, "FLOAT", "DOUBLE", *DECIMALS)
MOMENTS = ("DATE", "TIME", "TIME_NS", "TIMETZ", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
OTHERS = ("VARCHAR", "BLOB", "UUID", "JSON", "TIMESTAMPTZ", "INTERVAL", "BIT")
KINDS = (*NUMBERS, *MOMENTS, *OTHERS, "VARCHAR[]", "INTEGER[3]", "STRUCT(a VARCHAR)", "MAP(VARCHAR, VARCHAR)")


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET arrow_lossless_conversion = true; SET TimeZone = 'UTC'")
        connection.register("texts", pa.table({"t": pa.array([*texts(), "[1, 2, 3]", "{'a': 1}", "{a=1}"])}))
        yield connection


def _form(duck: duckdb.DuckDBPyConnection, kind: str) -> StoredForm:
    return stored_form(duck.sql(f"SELECT CAST(NULL AS {kind}) AS v").to_arrow_table().schema.field(0))


def _stored(duck: duckdb.DuckDBPyConnection, query: str, form: StoredForm) -> pa.Array:
    return encode(duck.sql(query).to_arrow_table().column(0).combine_chunks(), form)


def _rewrite(text: str, inputs: Sequence[StoredForm], new: StoredForm) -> Rewrite:
    expression = check_expression(text, [form.declared for form in inputs], new.declared)
    assert expression.refusal is None, expression.refusal
    return Rewrite(expression, tuple(inputs), new)


def _computed(rewrite: Rewrite, *stored: pa.Array) -> pa.Array:
    """What a worker makes of a batch."""
    declared = [decode(array, form, form.declared.type) for array, form in zip(stored, rewrite.inputs, strict=True)]
    with Evaluator(rewrite.expression) as evaluator:
        values = evaluator.evaluate(pa.record_batch(declared, pa.schema([form.declared for form in rewrite.inputs])))
    return encode(values, rewrite.form)


# Of a BIGNUM that does not fit, TRY_CAST is a fatal error in DuckDB 2.0.
@pytest.mark.parametrize("old", [kind for kind in KINDS if kind != "BIGNUM"])
def test_every_text_of_a_type_becomes_what_duckdb_makes_of_it(old: str, duck: duckdb.DuckDBPyConnection) -> None:
    # DuckDB reads '1.23455e4' as a DECIMAL(6,2), which it then overflows.
    only = "WHERE t IS NULL OR NOT contains(lower(t), 'e')" if old.startswith("DECIMAL") else ""
    duck.execute(f"CREATE OR REPLACE TABLE sources AS SELECT DISTINCT TRY_CAST(t AS {old}) AS v FROM texts {only}")
    before = _form(duck, old)
    values = _stored(duck, "SELECT v FROM sources ORDER BY rowid", before)
    assert values.null_count < len(values), "no value of this type"
    if old == "INTERVAL":  # the long ones do not fit Arrow's: what is stored counts
        duck.register("kept", pa.table({"v": decode(values, before, before.declared.type)}))
        duck.execute("CREATE OR REPLACE TABLE sources AS FROM kept")
    # All types at once, as the fields of a struct; not those of which even TRY_CAST is an error.
    targets = [new for new in KINDS if old != "JSON" or new not in ("BIGNUM", "BIT")]
    casts = ", ".join(f"'{at}': TRY_CAST(v AS {new})" for at, new in enumerate(targets))
    kinds = ", ".join(f'"{at}" {new}' for at, new in enumerate(targets))
    after = _form(duck, f"STRUCT({kinds})")
    made = _computed(_rewrite(f"{{{casts}}}", [before], after), values)
    wanted = _stored(duck, f"SELECT {{{casts}}} FROM sources ORDER BY rowid", after)
    for mine, theirs, new in zip(made.flatten(), wanted.flatten(), targets, strict=True):
        assert exact(mine) == exact(theirs), f"{old} as {new}"


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("127.5", "DOUBLE", "TINYINT"),
        ("'nan'", "DOUBLE", "BIGINT"),
        ("1e300", "DOUBLE", "FLOAT"),
        ("10000", "DOUBLE", "DECIMAL(6,2)"),
        ("-1", "BIGINT", "UBIGINT"),
        ("'x'", "VARCHAR", "INTEGER"),
        ("'2024-02-30'", "VARCHAR", "DATE"),
        ("'1] , [2'", "VARCHAR", "JSON"),
        ("[1, 2]", "INTEGER[]", "INTEGER[3]"),
        ("['1', 'x']", "VARCHAR[]", "INTEGER[]"),
        ("{'a': 'x'}", "STRUCT(a VARCHAR)", "STRUCT(a INTEGER)"),
        ("MAP {'1': 1, '01': 2}", "MAP(VARCHAR, INTEGER)", "MAP(INTEGER, INTEGER)"),
        ("true", "BOOLEAN", "DATE"),
    ],
)
def test_a_value_that_does_not_fit_fails(value: str, old: str, new: str, duck: duckdb.DuckDBPyConnection) -> None:
    before, after = _form(duck, old), _form(duck, new)
    with pytest.raises(EvaluationError, match="does not fit"):
        _computed(_rewrite("v", [before], after), _stored(duck, f"SELECT {value}::{old}", before))


COLUMNS = {
    "i": ("BIGINT", "3"),
    "n": ("DECIMAL(6,2)", "1.25"),
    "s": ("VARCHAR", "'Straße 7.5'"),
    "z": ("TIMESTAMPTZ", "'2024-03-31 00:30:00+00'"),
    "l": ("VARCHAR[]", "['b', NULL, 'a']"),
    "u": ("UUID", "'b975e418-7a6d-4afd-b1a4-1f7174ce1805'"),
    "h": ("HUGEINT", "'-170141183460469231731687303715884105728'"),
    "m": ("MAP(UUID, TIME)", "MAP {'b975e418-7a6d-4afd-b1a4-1f7174ce1805': TIME '10:20:30'}"),
}
EXPRESSIONS = [
    ("n * 1.1 + i", "DECIMAL(9,1)"),
    ("upper(s)", "VARCHAR"),
    ("regexp_extract(s, '[0-9.]+')", "DOUBLE"),
    ("z AT TIME ZONE 'Europe/Paris'", "TIMESTAMP"),
    ("z", "VARCHAR"),
    ("list_sort(list_transform(l, lambda e: e || i))", "VARCHAR[]"),
    ("{'k': u, 'h': [h]}", "STRUCT(k UUID, h HUGEINT[])"),
    ("map_keys(m)[1] = u", "BOOLEAN"),
    ("m", "VARCHAR"),
    ("CAST(s AS ENUM('Straße 7.5'))", "VARCHAR"),
    ("l::VARCHAR::VARCHAR[]", "VARCHAR[]"),
    ("to_json({'a': i})", "JSON"),
    ("TRY(CAST(s AS INTEGER))", "INTEGER"),
    ("NULL", "INTEGER[]"),
    ("42", "UTINYINT"),
]


def test_spark_computes_any_expression_as_duckdb_does(duck: duckdb.DuckDBPyConnection, lake_spark: Spark) -> None:
    forms = [stored_form(pa.field(name, _form(duck, kind).declared.type)) for name, (kind, _) in COLUMNS.items()]
    row = ", ".join(f"{value}::{kind} AS {name}" for name, (kind, value) in COLUMNS.items())
    source = f"(SELECT {row} UNION ALL SELECT {', '.join('NULL' for _ in COLUMNS)})"
    data = pa.table({form.name: _stored(duck, f"SELECT {form.name} FROM {source}", form) for form in forms})
    results = [_form(duck, kind) for _, kind in EXPRESSIONS]
    rewrites = [_rewrite(text, forms, new) for (text, _), new in zip(EXPRESSIONS, results, strict=True)]
    with lake_spark.session(Profile.LATENCY) as session:
        frame = session.createDataFrame(data).coalesce(1)
        made = frame.select(*(new_values(each).alias(f"c{at}") for at, each in enumerate(rewrites))).toArrow()
    for column, form, (text, kind) in zip(made.columns, results, EXPRESSIONS, strict=True):
        wanted = _stored(duck, f"SELECT CAST({text} AS {kind}) FROM {source}", form)
        assert exact(column.combine_chunks().cast(form.arrow)) == exact(wanted), text


def test_values_of_every_type_go_through_spark_unharmed(lake_spark: Spark) -> None:
    """To DuckDB and back: the column itself, of every type, with the values worth trying."""
    kinds = [kind for kind in (*TYPED, *NESTED) if "INTERVAL" not in kind.text]  # DuckDB has no nanoseconds there
    forms = [stored_form(kind.field(f"c{at}")) for at, kind in enumerate(kinds)]
    longest = max(len(kind.samples) for kind in kinds)
    columns = []
    for kind, form in zip(kinds, forms, strict=True):
        values = [*kind.samples, *[None] * (longest - len(kind.samples))]
        columns.append(encode(array_of(kind, values), form))
    data = pa.table(columns, names=[form.name for form in forms])
    rewrites = [_rewrite(form.name, [form], form) for form in forms]
    with lake_spark.session(Profile.LATENCY) as session:
        frame = session.createDataFrame(data).coalesce(1)
        made = frame.select(*(new_values(each).alias(each.column) for each in rewrites)).toArrow()
    for kind, form in zip(kinds, forms, strict=True):
        found, given = (table.column(form.name).combine_chunks() for table in (made, data))
        assert exact(found.cast(form.arrow)) == exact(given), kind.text


@pytest.mark.parametrize(
    ("text", "why"),
    [("1 // (id - 7) + CAST('x' || id AS INTEGER)", "does not fit"), ("list_sum(range(500_000_000 + id))", "memory")],
)
def test_what_fails_in_a_worker_is_an_error_of_the_request(text: str, why: str, lake_spark: Spark) -> None:
    form = stored_form(pa.field("id", pa.int64()))
    values = new_values(_rewrite(text, [form], form))
    refused = pytest.raises(RequestError, match=f"column 'c' .*{why}")
    with lake_spark.session(Profile.LATENCY) as session, refused, naming("c"):
        session.range(3).select(values).collect()
