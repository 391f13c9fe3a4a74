"""A column that is cast, once or more, as DuckDB writes it: `CAST(c AS T)` or `c AT TIME ZONE 'UTC'`.

The client sends the new column's type beside the expression, and the two may differ:
of `USING CAST(c AS INTEGER)` the type may be VARCHAR, and without its lossless mode
a UUID is a VARCHAR to it. Every step is taken, and the last one to the type sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from gateway.catalog.names import fold
from gateway.errors import RequestError
from gateway.lake.casts.casting import cast_expression, spark_type
from gateway.lake.sql.checks import MAX_TEXT
from gateway.lake.values.types import StoredForm, stored_form

_MAX_STEPS = 4
_IN_UTC = "AT TIME ZONE 'UTC'"
_ZONED = {"timestamp_ntz": pa.timestamp("us", "UTC"), "timestamp": pa.timestamp("us")}
_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "INT128": pa.opaque(pa.binary(16), "hugeint", "DuckDB"),
    "UINT128": pa.opaque(pa.binary(16), "uhugeint", "DuckDB"),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARBINARY": pa.binary(),
    "BIT": pa.opaque(pa.binary(), "bit", "DuckDB"),
    "BIGNUM": pa.opaque(pa.binary(), "bignum", "DuckDB"),
    "UUID": pa.uuid(),
    "JSON": pa.json_(pa.string()),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMETZ": pa.opaque(pa.binary(8), "time_tz", "DuckDB"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "INTERVAL": pa.month_day_nano_interval(),
}

Step = exp.DataType | str
"""A type to cast to, or `AT TIME ZONE 'UTC'`."""


def chain_of(text: str) -> tuple[str, tuple[Step, ...]] | None:
    """A column and what happens to it, first things first; None where the expression is no such chain."""
    try:
        found = sqlglot.parse(text[:MAX_TEXT], dialect="duckdb")
    except (SqlglotError, RecursionError):
        return None
    tree = found[0] if len(found) == 1 else None
    steps: list[Step] = []
    while not isinstance(tree, exp.Column):
        step, tree = _last_step(tree)
        if step is None or len(steps) == _MAX_STEPS:
            return None
        steps.extend(step)
    return None if tree.table else (tree.name, tuple(reversed(steps)))


def _last_step(tree: exp.Expr | None) -> tuple[list[Step] | None, exp.Expr | None]:
    """The outermost step of an expression, and what it is done to."""
    match tree:
        case exp.Paren():
            return [], tree.this
        case exp.Cast() if not isinstance(tree, exp.TryCast) and isinstance(tree.to, exp.DataType):
            return [tree.to], tree.this
        case exp.AtTimeZone() if _is_utc(tree.args["zone"]):
            return [_IN_UTC], tree.this
        case exp.Anonymous() if fold(tree.name) == "timezone" and len(tree.expressions) == 2:
            zone, inner = tree.expressions
            return ([_IN_UTC] if _is_utc(zone) else None), inner
    return None, None


def _is_utc(zone: exp.Expr) -> bool:
    return isinstance(zone, exp.Literal) and zone.is_string and zone.name == "UTC"


def chain_expression(value: str, old: StoredForm, chain: Sequence[Step], new: StoredForm) -> str | None:
    """The value after all steps as the new type, in Spark SQL; None where a step has no sure way."""
    made, before = value, old
    for step, after in _forms_after(old, chain, new):
        # A cast may name what it casts many times, so what came before gets a name of its own.
        name = value if made == value else "step"
        if after is None:
            return None
        is_zoned = isinstance(step, str)
        cast = f"CAST({name} AS {spark_type(after.delta)})" if is_zoned else cast_expression(name, before, after)
        if cast is None:
            return None
        if cast != name:
            made = cast if made == value else f"element_at(transform(array({made}), step -> {cast}), 1)"
        before = after
    return made


def _forms_after(
    old: StoredForm, chain: Sequence[Step], new: StoredForm
) -> Iterator[tuple[Step | None, StoredForm | None]]:
    before: StoredForm | None = old
    for position, step in enumerate(chain):
        if before is not None:
            before = _form_after(before, step)
        is_last = position == len(chain) - 1
        # The last type is told in Arrow's words as well; of an ENUM those say only that it is a text.
        if before is None and is_last and not isinstance(step, str) and new.delta != "string":
            before = new
        yield step, before
    yield None, new


def _form_after(before: StoredForm, step: Step) -> StoredForm | None:
    if isinstance(step, str):
        zoned = _ZONED.get(before.delta) if before.is_plain and isinstance(before.delta, str) else None
        return None if zoned is None else stored_form(pa.field(before.name, zoned))
    kind = arrow_type(step)
    try:
        return None if kind is None else stored_form(pa.field(before.name, kind))
    except RequestError:
        return None


def arrow_type(named: exp.DataType) -> pa.DataType | None:
    """A type in DuckDB's words; None for one that is not known here, such as an ENUM."""
    kind = getattr(named.this, "name", None)
    if kind == "DECIMAL":
        numbers = [int(part.name) for part in named.expressions if part.name.isdecimal()]
        is_fit = len(numbers) == 2 and 0 < numbers[0] <= 38 and numbers[1] <= numbers[0]
        return pa.decimal128(*numbers) if is_fit else None
    if kind in ("ARRAY", "MAP"):
        inner = [arrow_type(part) for part in named.expressions if isinstance(part, exp.DataType)]
        if None in inner or len(inner) != (2 if kind == "MAP" else 1):
            return None
        return pa.map_(*inner) if kind == "MAP" else _list_type(inner[0], named.args.get("values"))
    if kind == "STRUCT":
        return _struct_type(named)
    return None if named.expressions else _TYPES.get(str(kind))


def _list_type(inner: pa.DataType, length: Sequence[exp.Expr] | None) -> pa.DataType:
    return pa.list_(inner, int(length[0].name)) if length else pa.list_(inner)


def _struct_type(named: exp.DataType) -> pa.DataType | None:
    fields = []
    for part in named.expressions:
        kind = arrow_type(part.kind) if isinstance(part, exp.ColumnDef) and part.kind is not None else None
        if kind is None:
            return None
        fields.append((part.name, kind))
    return pa.struct(fields)
