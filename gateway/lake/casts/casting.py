"""How a column's values become another type, in Spark SQL that gives what DuckDB's CAST gives.

Where the two would differ, or the answer depends on whose session it is, there is no
cast. A value that does not fit raises an error in Spark, which fails the statement;
so does one of a spelling that only DuckDB knows what to do with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from gateway.catalog.names import fold
from gateway.lake.casts.moments import moment_to_moment, moment_to_text, text_to_moment
from gateway.lake.casts.numbers import WHOLES, decimal_of, from_whole, number_to_number
from gateway.lake.casts.texts import number_to_text, other_to_text, text_to_number, text_to_other
from gateway.lake.sql.expressions import Kind
from gateway.lake.sql.quoting import quoted, text_literal
from gateway.lake.values.types import StoredForm

DOES_NOT_FIT = "value does not fit"
_EXACT_DIGITS = 15
_LEAVES = {
    Kind.TEXT: "string",
    Kind.TRUTH: "boolean",
    Kind.WHOLE: "long",
    Kind.FLOATING: "double",
    Kind.DAY: "date",
    Kind.MOMENT: "timestamp_ntz",
    Kind.INSTANT: "timestamp",
}
_SAME_BYTES = {("uuid", "binary"), ("uuid", "uhugeint")}
_SPARK_NAMES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


def cast_expression(value: str, old: StoredForm, new: StoredForm) -> str | None:
    """`value` of the old type as the new one; None where there is no sure way."""
    return _cast(value, old, new, 0)


def cast_result(expression: str, kind: Kind, new: StoredForm) -> str | None:
    """What an expression over the row gives, as the new type; None where there is no sure way."""
    if kind is Kind.NULL:
        return f"CAST(NULL AS {spark_type(new.delta)})"
    target = leaf_name(new)
    if target is None:
        return None
    if kind is Kind.EXACT:
        value, made = expression, _fitting_exact("result", target)
    else:
        value, made = f"CAST({expression} AS {spark_type(_LEAVES[kind])})", fitting("result", _LEAVES[kind], target)
    if made is None:
        return None
    return f"element_at(transform(array({value}), result -> {_or_raise(made, 'result')}), 1)"


def _fitting_exact(value: str, new: str) -> str | None:
    """From a decimal of any precision and scale."""
    if new in WHOLES:
        return from_whole(f"round({value})", new)
    if decimal_of(new) is not None:
        return f"try_cast({value} AS {new})"
    if new in ("float", "double"):
        # So few digits are exact, and divided by a power of ten once.
        digits = f"length(replace(replace(CAST({value} AS STRING), '-', ''), '.', ''))"
        return f"IF({digits} <= {_EXACT_DIGITS}, CAST(CAST({value} AS DOUBLE) AS {new}), NULL)"
    return None


def fitting(value: str, old: str, new: str) -> str | None:
    """A single value as another type, by their leaf names: NULL where it does not fit, None where nothing is sure."""
    if old == new:
        return value
    steps: tuple[Callable[[], str | None], ...] = (
        lambda: number_to_number(value, old, new),
        lambda: moment_to_moment(value, old, new),
        lambda: _from_text(value, new) if old == "string" else None,
        lambda: _to_text(value, old) if new == "string" else None,
        lambda: f"unhex(replace({value}, '-', ''))" if (old, new) in _SAME_BYTES else None,
    )
    return next((found for step in steps if (found := step()) is not None), None)


def leaf_name(form: StoredForm) -> str | None:
    """What single values of this form are, None for nested ones."""
    if form.meaning is not None:
        return form.meaning
    return form.delta if isinstance(form.delta, str) else None


def _from_text(value: str, new: str) -> str | None:
    return text_to_number(value, new) or text_to_moment(value, new) or text_to_other(value, new)


def _to_text(value: str, old: str) -> str | None:
    return number_to_text(value, old) or moment_to_text(value, old) or other_to_text(value, old)


def _cast(value: str, old: StoredForm, new: StoredForm, depth: int) -> str | None:
    names = leaf_name(old), leaf_name(new)
    if names[0] is not None and names[1] is not None:
        made = fitting(value, names[0], names[1])
        return made if made is None or made == value else _or_raise(made, value)
    if names != (None, None):
        return None
    if old.told.type.equals(new.told.type, check_metadata=True):
        return value
    shapes = [form.delta["type"] for form in (old, new)]
    match shapes:
        case ["array", "array"]:
            return _cast_list(value, old, new, depth)
        case ["map", "map"]:
            return _cast_map(value, old, new, depth)
        case ["struct", "struct"]:
            return _cast_struct(value, old, new, depth)
    return None


def _or_raise(made: str, value: str) -> str:
    return f"coalesce({made}, IF({value} IS NULL, NULL, raise_error('{DOES_NOT_FIT}')))"


def _cast_list(value: str, old: StoredForm, new: StoredForm, depth: int) -> str | None:
    element = f"x{depth}"
    inner = _cast(element, old.parts[0], new.parts[0], depth + 1)
    if inner is None:
        return None
    made = value if inner == element else f"transform({value}, {element} -> {inner})"
    length, before = _length(new), _length(old)
    if length is None or length == before:
        return made
    if before is not None:
        return None  # DuckDB has no cast between arrays of different lengths
    return _or_raise(f"IF(size({value}) = {length}, {made}, NULL)", value)


def _length(form: StoredForm) -> int | None:
    return int(form.told.type.list_size) if pa.types.is_fixed_size_list(form.told.type) else None


def _cast_map(value: str, old: StoredForm, new: StoredForm, depth: int) -> str | None:
    entry = f"x{depth}"
    key = _cast(f"{entry}.key", old.parts[0], new.parts[0], depth + 1)
    if key == f"{entry}.key":
        item = _cast(entry, old.parts[1], new.parts[1], depth + 1)
        return None if item is None else f"transform_values({value}, (k{depth}, {entry}) -> {item})"
    item = _cast(f"{entry}.value", old.parts[1], new.parts[1], depth + 1)
    # Spark takes 0.0 and -0.0 for one key.
    if key is None or item is None or leaf_name(new.parts[0]) in ("float", "double", None):
        return None
    return f"map_from_entries(transform(map_entries({value}), {entry} -> struct({key}, {item})))"


def _cast_struct(value: str, old: StoredForm, new: StoredForm, depth: int) -> str | None:
    """Field by field, by their names, as in DuckDB: a new field is NULL, one field at least is both here and there."""
    before = {fold(part.name): part for part in old.parts}
    if not any(fold(part.name) in before for part in new.parts):
        return None
    fields = []
    for part in new.parts:
        source = before.get(fold(part.name))
        if source is None:
            made: str | None = f"CAST(NULL AS {spark_type(part.delta)})"
        else:
            made = _cast(f"{value}.{quoted(source.name)}", source, part, depth)
        if made is None:
            return None
        fields.append(f"{text_literal(part.name)}, {made}")
    return f"IF({value} IS NULL, NULL, named_struct({', '.join(fields)}))"


def spark_type(delta: Any) -> str:
    """A type of a Delta schema as Spark SQL writes it."""
    if not isinstance(delta, dict):
        return _SPARK_NAMES.get(delta, str(delta))
    match delta["type"]:
        case "array":
            return f"ARRAY<{spark_type(delta['elementType'])}>"
        case "map":
            return f"MAP<{spark_type(delta['keyType'])}, {spark_type(delta['valueType'])}>"
    fields = [f"{quoted(each['name'])}: {spark_type(each['type'])}" for each in delta["fields"]]
    return f"STRUCT<{', '.join(fields)}>"
