"""Filter documents as DuckDB 1.x writes them, from a few small helpers.

    age, city = column("age", "INTEGER"), column("city", "VARCHAR")
    json_filters = document([age.gt(26), city.eq("Rome")], columns=["name"])

Types are DuckDB type texts. Names are numbered in order of first use, filters
before projected columns, as the client numbers them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

_NO_LOCATION = 2**64 - 1
_EPOCH = date(1970, 1, 1)
_BOOLEAN = {"id": "BOOLEAN", "type_info": None}


@dataclass(frozen=True)
class Expression:
    """A node that becomes JSON once the names of the document are known."""

    build: Callable[[list[str]], dict[str, Any]]
    type_text: str = "BOOLEAN"

    def eq(self, value: object) -> Expression:
        return compare("COMPARE_EQUAL", self, value)

    def ne(self, value: object) -> Expression:
        return compare("COMPARE_NOTEQUAL", self, value)

    def lt(self, value: object) -> Expression:
        return compare("COMPARE_LESSTHAN", self, value)

    def le(self, value: object) -> Expression:
        return compare("COMPARE_LESSTHANOREQUALTO", self, value)

    def gt(self, value: object) -> Expression:
        return compare("COMPARE_GREATERTHAN", self, value)

    def ge(self, value: object) -> Expression:
        return compare("COMPARE_GREATERTHANOREQUALTO", self, value)

    def distinct_from(self, value: object) -> Expression:
        return compare("COMPARE_DISTINCT_FROM", self, value)

    def not_distinct_from(self, value: object) -> Expression:
        return compare("COMPARE_NOT_DISTINCT_FROM", self, value)

    def isin(self, *items: object) -> Expression:
        return _operator("COMPARE_IN", self, *items)

    def not_in(self, *items: object) -> Expression:
        return _operator("COMPARE_NOT_IN", self, *items)

    def is_null(self) -> Expression:
        return _operator("OPERATOR_IS_NULL", self)

    def is_not_null(self) -> Expression:
        return _operator("OPERATOR_IS_NOT_NULL", self)

    def between(
        self, lower: object, upper: object, *, lower_inclusive: bool = True, upper_inclusive: bool = True
    ) -> Expression:
        low, high = _lift(lower, self.type_text), _lift(upper, self.type_text)
        return Expression(
            lambda names: {
                **_node("BOUND_BETWEEN", "COMPARE_BETWEEN"),
                "input": self.build(names),
                "lower": low.build(names),
                "upper": high.build(names),
                "lower_inclusive": lower_inclusive,
                "upper_inclusive": upper_inclusive,
            }
        )


def column(name: str, type_text: str) -> Expression:
    """A column of the table; the row id is always called `rowid` here."""

    def build(names: list[str]) -> dict[str, Any]:
        if name not in names:
            names.append(name)
        return {
            **_node("BOUND_COLUMN_REF", "BOUND_COLUMN_REF", alias=name),
            "return_type": type_json(type_text),
            "binding": {"table_index": 0, "column_index": names.index(name)},
            "depth": 0,
        }

    return Expression(build, type_text)


def constant(value: object, type_text: str) -> Expression:
    """A typed constant; a Python value, or the wire's own number for dates and times."""
    return Expression(
        lambda _names: {**_node("BOUND_CONSTANT", "VALUE_CONSTANT"), "value": value_json(value, type_text)}, type_text
    )


def compare(kind: str, left: Expression, right: object) -> Expression:
    """Comparison by its wire name; a plain value on the right takes the type of the left."""
    other = _lift(right, left.type_text)
    return Expression(
        lambda names: {
            **_node("BOUND_COMPARISON", kind),
            "left": left.build(names),
            "right": other.build(names),
        }
    )


def all_of(*parts: Expression) -> Expression:
    return _conjunction("CONJUNCTION_AND", parts)


def any_of(*parts: Expression) -> Expression:
    return _conjunction("CONJUNCTION_OR", parts)


def negate(part: Expression) -> Expression:
    return _operator("OPERATOR_NOT", part)


def function(name: str, return_type: str, *children: Expression) -> Expression:
    """A scalar function such as `prefix`, `contains` or `~~`."""
    return Expression(
        lambda names: {
            **_node("BOUND_FUNCTION", "BOUND_FUNCTION"),
            "return_type": type_json(return_type),
            "children": [child.build(names) for child in children],
            "name": name,
            "arguments": [type_json(child.type_text) for child in children],
            "original_arguments": [],
            "catalog_name": "system",
            "schema_name": "main",
            "has_serialize": False,
            "is_operator": False,
        },
        return_type,
    )


def document(filters: Sequence[Expression] = (), columns: Sequence[str] = ()) -> str:
    """The `json_filters` text of a scan that projects `columns`."""
    return build_document(filters, columns)[0]


def build_document(filters: Sequence[Expression], columns: Sequence[str]) -> tuple[str, list[str]]:
    """The text, and the names in order of first use: what the scan's column ids are made of."""
    names: list[str] = []
    built = [part.build(names) for part in filters]
    names += [name for name in dict.fromkeys(columns) if name not in names]
    return _dumps({"filters": built, "column_binding_names_by_index": names}), names


def listing_document(filters: Sequence[Expression] = ()) -> str:
    """The same filters as ListFlights carries them in a header: members with default values left out."""
    return _dumps({"filters": [_without_defaults(part.build([])) for part in filters]})


def meaning(json_filters: str) -> Any:
    """A document without the members a server must ignore, for comparing two of them."""
    return _meaning(json.loads(json_filters, parse_constant=str))  # NaN would not equal itself


def type_json(type_text: str) -> dict[str, Any]:
    """A type text such as `BIGINT`, `DECIMAL(9,2)` or `INTEGER[]` as the document spells it."""
    if type_text.endswith("[]"):
        return {"id": "LIST", "type_info": _type_info("LIST", child_type=type_json(type_text[:-2]))}
    if found := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_text):
        width, scale = map(int, found.groups())
        return {"id": "DECIMAL", "type_info": _type_info("DECIMAL", width=width, scale=scale)}
    return {"id": type_text, "type_info": None}


def value_json(value: object, type_text: str) -> dict[str, Any]:
    kind = type_json(type_text)
    if value is None:
        return {"type": kind, "is_null": True}
    return {"type": kind, "is_null": False, "value": _wire_value(value, kind)}


def _type_info(kind: str, **members: object) -> dict[str, Any]:
    return {"type": f"{kind}_TYPE_INFO", "alias": "", "extension_info": None, **members}


def _wire_value(value: Any, kind: dict[str, Any]) -> Any:
    accepts, encode = _ENCODERS.get(kind["id"], ((), None))
    return encode(value, kind) if encode is not None and isinstance(value, accepts) else value


def _encode_decimal(value: Decimal | int, kind: dict[str, Any]) -> Any:
    info = kind["type_info"]
    unscaled = int(Decimal(value).scaleb(info["scale"], Context(prec=80)))
    return _halves(unscaled) if info["width"] > 18 else unscaled


def _encode_uuid(value: UUID, _kind: dict[str, Any]) -> Any:
    high, low = divmod(value.int ^ (1 << 127), 1 << 64)
    return {"upper": high - (1 << 64) if high >> 63 else high, "lower": low}


def _encode_time(value: time, _kind: dict[str, Any]) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _encode_timestamp(value: datetime, kind: dict[str, Any]) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    nanoseconds = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000
    return nanoseconds // _TIMESTAMP_UNITS[kind["id"]]


def _encode_list(value: Sequence[Any], kind: dict[str, Any]) -> Any:
    child = kind["type_info"]["child_type"]
    return {"children": [{"type": child, "is_null": False, "value": _wire_value(item, child)} for item in value]}


_TIMESTAMP_UNITS = {
    "TIMESTAMP": 1_000,
    "TIMESTAMP WITH TIME ZONE": 1_000,
    "TIMESTAMP_S": 1_000_000_000,
    "TIMESTAMP_MS": 1_000_000,
    "TIMESTAMP_NS": 1,
}
_ENCODERS: dict[str, tuple[Any, Callable[[Any, dict[str, Any]], Any]]] = {
    "HUGEINT": (int, lambda value, _kind: _halves(value)),
    "UHUGEINT": (int, lambda value, _kind: _halves(value)),
    "UUID": (UUID, _encode_uuid),
    "DECIMAL": ((Decimal, int), _encode_decimal),
    "BLOB": (bytes, lambda value, _kind: "".join(map(_blob_character, value))),
    "DATE": (date, lambda value, _kind: (value - _EPOCH).days),
    "TIME": (time, _encode_time),
    "LIST": ((list, tuple), _encode_list),
    **dict.fromkeys(_TIMESTAMP_UNITS, (datetime, _encode_timestamp)),
}


def _halves(value: int) -> dict[str, int]:
    upper, lower = divmod(value, 1 << 64)
    return {"upper": upper, "lower": lower}


def _blob_character(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in "'\"\\" else f"\\x{byte:02X}"


def _lift(value: object, type_text: str) -> Expression:
    return value if isinstance(value, Expression) else constant(value, type_text)


def _operator(kind: str, first: Expression, *rest: object) -> Expression:
    children = [first, *(_lift(item, first.type_text) for item in rest)]
    return Expression(
        lambda names: {
            **_node("BOUND_OPERATOR", kind),
            "return_type": _BOOLEAN,
            "children": [child.build(names) for child in children],
        }
    )


def _conjunction(kind: str, parts: Sequence[Expression]) -> Expression:
    return Expression(
        lambda names: {**_node("BOUND_CONJUNCTION", kind), "children": [part.build(names) for part in parts]}
    )


def _node(expression_class: str, kind: str, alias: str = "") -> dict[str, Any]:
    return {"expression_class": expression_class, "type": kind, "alias": alias, "query_location": _NO_LOCATION}


def _dumps(value: object) -> str:
    # Non-finite numbers come out as the bare tokens NaN and Infinity, as DuckDB writes them.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_DEFAULTS = {"alias": "", "query_location": _NO_LOCATION, "type_info": None, "depth": 0, "table_index": 0}


def _without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    slim = {
        key: _without_defaults(item) for key, item in value.items() if key not in _DEFAULTS or _DEFAULTS[key] != item
    }
    if slim.get("binding") == {"column_index": 0}:
        del slim["binding"]
    return slim


_MEANINGLESS = {
    "alias",
    "catalog_name",
    "depth",
    "extension_info",
    "query_location",
    "query_location_length",
    "schema_name",
    "table_index",
}


def _meaning(value: Any) -> Any:
    if isinstance(value, list):
        return [_meaning(item) for item in value]
    if isinstance(value, dict):
        return {key: _meaning(item) for key, item in value.items() if key not in _MEANINGLESS}
    return value
