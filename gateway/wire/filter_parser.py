"""The client's filter document -> conjuncts.

DuckDB serialises its bound expressions as JSON; both grammars (1.x, and 2.x where
comparisons and casts became functions) are read. The client filters again, so a
conjunct with anything unknown in it is dropped and counted, never guessed at and
never an error. Only a document that is no filter document at all is an error.
"""

import base64
import binascii
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from gateway.errors import MalformedFilterError
from gateway.wire.filter_tree import (
    INTEGER_BOUNDS,
    MAX_DEPTH,
    And,
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
    Value,
    ValueType,
    is_text,
    is_type,
    is_value,
)


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """A deeper conjunct or a longer IN list is dropped; a longer document is an error."""

    depth: int = MAX_DEPTH
    in_items: int = 10_000
    document_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Filters:
    """What was understood, implicitly ANDed, and how many conjuncts were not."""

    conjuncts: tuple[Expression, ...] = ()
    dropped: int = 0


class _UnknownNodeError(Exception):
    """Something the tree has no node for; ends at the conjunct, never leaves this module."""


def parse_filters(document: str | bytes, limits: FilterLimits = FilterLimits()) -> Filters:  # noqa: B008 (frozen)
    """Read a filter document; an empty one is no filter.

    A document nested too deeply for the JSON reader counts as one dropped filter:
    it is well formed, there is just no use in it.
    """
    if not document:
        return Filters()
    try:
        content = _read_json(document, limits.document_bytes)
    except RecursionError:
        return Filters(dropped=1)
    filters, names = _outline(content)
    parser = _Parser(names, limits)
    conjuncts: list[Expression] = []
    dropped = 0
    for node in _split_conjunctions(filters):
        try:
            expression = parser.expression(node, 0)
        except (_UnknownNodeError, RecursionError):
            dropped += 1
            continue
        if not _is_true(expression):
            conjuncts.append(expression)
    return Filters(tuple(conjuncts), dropped)


# DuckDB 1.x writes NaN and Infinity, 2.x NAN; Python reads only one spelling.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)


def _read_json(document: str | bytes, most_bytes: int) -> Any:
    if len(document) > most_bytes:
        raise MalformedFilterError(f"the filter document is over {most_bytes} bytes")
    try:
        text = document if isinstance(document, str) else document.decode()
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(_TOKENS.sub(_python_token, text))
    except ValueError as error:
        raise MalformedFilterError("the filter document is not JSON") from error


def _python_token(match: re.Match[str]) -> str:
    token = match[0]
    if token.startswith('"'):
        return token
    return "NaN" if token.lower().endswith("nan") else "-Infinity" if token.startswith("-") else "Infinity"


def _outline(content: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(content, dict):
        raise MalformedFilterError("the filter document is not a JSON object")
    filters, names = content.get("filters", []), content.get("column_binding_names_by_index", [])
    if not isinstance(filters, list) or not isinstance(names, list):
        raise MalformedFilterError("the filter document has no list of filters or no list of column names")
    return filters, names


def _split_conjunctions(filters: list[Any]) -> list[Any]:
    """Filters with top-level ANDs taken apart, so that one unknown part costs only itself."""
    conjuncts: list[Any] = []
    waiting = filters[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and node.get("type") == "CONJUNCTION_AND" and isinstance(node.get("children"), list):
            waiting.extend(node["children"][::-1])
        else:
            conjuncts.append(node)
    return conjuncts


def _is_true(expression: Expression) -> bool:
    return isinstance(expression, Constant) and expression.value is True


_COMPARISONS = {
    "COMPARE_EQUAL": Operator.EQUAL,
    "COMPARE_NOTEQUAL": Operator.NOT_EQUAL,
    "COMPARE_LESSTHAN": Operator.LESS,
    "COMPARE_GREATERTHAN": Operator.GREATER,
    "COMPARE_LESSTHANOREQUALTO": Operator.LESS_EQUAL,
    "COMPARE_GREATERTHANOREQUALTO": Operator.GREATER_EQUAL,
    "COMPARE_DISTINCT_FROM": Operator.DISTINCT,
    "COMPARE_NOT_DISTINCT_FROM": Operator.NOT_DISTINCT,
}
# Name -> function, number of arguments, and whether all of them must be VARCHAR
# (`contains` also searches lists and maps).
_FUNCTIONS = {
    "prefix": (Function.PREFIX, 2, True),
    "starts_with": (Function.PREFIX, 2, True),
    "^@": (Function.PREFIX, 2, True),
    "suffix": (Function.SUFFIX, 2, True),
    "ends_with": (Function.SUFFIX, 2, True),
    "contains": (Function.CONTAINS, 2, True),
    "~~": (Function.LIKE, 2, True),
    "!~~": (Function.LIKE, 2, True),
    "like_escape": (Function.LIKE_ESCAPE, 3, True),
    "not_like_escape": (Function.LIKE_ESCAPE, 3, True),
    "isnan": (Function.IS_NAN, 1, False),
    "constant_or_null": (Function.CONSTANT_OR_NULL, None, False),
    "row": (Function.ROW, None, False),
}
_NEGATED_FUNCTIONS = {"!~~", "not_like_escape"}


class _Parser:
    """One document's column names and limits, and a method per kind of node."""

    def __init__(self, names: list[Any], limits: FilterLimits) -> None:
        self._names = names
        self._limits = limits
        self._depth = min(limits.depth, MAX_DEPTH)
        self._readers: dict[str, Callable[[dict[str, Any], int], Expression]] = {
            "BOUND_COLUMN_REF": self._column,
            "VALUE_CONSTANT": lambda node, depth: _constant(node.get("value"), None, self._depth - depth + 1),
            **dict.fromkeys(_COMPARISONS, self._comparison),
            "COMPARE_BETWEEN": self._between,
            "COMPARE_IN": self._in,
            "COMPARE_NOT_IN": self._in,
            "CONJUNCTION_AND": lambda node, depth: And(self._children(node, depth)),
            "CONJUNCTION_OR": lambda node, depth: Or(self._children(node, depth)),
            "OPERATOR_NOT": lambda node, depth: Not(self._only_child(node, depth)),
            "OPERATOR_IS_NULL": lambda node, depth: IsNull(self._only_child(node, depth), negated=False),
            "OPERATOR_IS_NOT_NULL": lambda node, depth: IsNull(self._only_child(node, depth), negated=True),
            "OPERATOR_COALESCE": lambda node, depth: FunctionCall(Function.COALESCE, self._children(node, depth)),
            "OPERATOR_CAST": self._cast,
            "CAST": self._cast,
            "CASE_EXPR": self._case,
            "BOUND_FUNCTION": self._function,
        }

    def expression(self, node: Any, depth: int) -> Expression:
        # The type decides, not the class: 2.x kept the types and changed the classes.
        if depth >= self._depth or not isinstance(node, dict):
            raise _UnknownNodeError
        reader = self._readers.get(_text(node.get("type")))
        if reader is None:
            raise _UnknownNodeError
        return reader(node, depth + 1)

    def _children(self, node: dict[str, Any], depth: int, least: int = 1) -> tuple[Expression, ...]:
        children = node.get("children")
        if not isinstance(children, list) or len(children) < least:
            raise _UnknownNodeError
        # Not a comprehension, which is a frame more on Python's stack at every level.
        return tuple(map(self.expression, children, repeat(depth)))

    def _only_child(self, node: dict[str, Any], depth: int) -> Expression:
        children = node.get("children")
        if not isinstance(children, list) or len(children) != 1:
            raise _UnknownNodeError
        return self.expression(children[0], depth)

    def _column(self, node: dict[str, Any], _: int) -> ColumnRef:
        binding = node.get("binding")
        index = binding.get("column_index") if isinstance(binding, dict) else None
        if type(index) is not int or not 0 <= index < len(self._names) or node.get("depth", 0) != 0:
            raise _UnknownNodeError
        return ColumnRef(_text(self._names[index]), _type(node.get("return_type")))

    def _comparison(self, node: dict[str, Any], depth: int) -> Comparison:
        operator = _COMPARISONS[node["type"]]
        if "left" in node:
            return Comparison(operator, self.expression(node["left"], depth), self.expression(node.get("right"), depth))
        parts = self._children(node, depth)
        if len(parts) != 2:
            raise _UnknownNodeError
        return Comparison(operator, *parts)

    def _between(self, node: dict[str, Any], depth: int) -> Between:
        low, high = node.get("lower_inclusive"), node.get("upper_inclusive")
        if not isinstance(low, bool) or not isinstance(high, bool):
            raise _UnknownNodeError
        needle, lower, upper = (self.expression(node.get(part), depth) for part in ("input", "lower", "upper"))
        return Between(needle, lower, upper, lower_inclusive=low, upper_inclusive=high)

    def _in(self, node: dict[str, Any], depth: int) -> In:
        children = node.get("children")
        if isinstance(children, list) and len(children) > self._limits.in_items + 1:
            raise _UnknownNodeError
        needle, *items = self._children(node, depth, least=2)
        return In(needle, tuple(items), negated=node["type"] == "COMPARE_NOT_IN")

    def _cast(self, node: dict[str, Any], depth: int) -> Cast:
        child = self.expression(node["child"], depth) if "child" in node else self._only_child(node, depth)
        flags = node if "try_cast" in node else node.get("function_data")
        is_try = flags.get("try_cast") if isinstance(flags, dict) else None
        if not isinstance(is_try, bool):
            raise _UnknownNodeError
        return Cast(child, _type(node.get("return_type")), is_try)

    def _case(self, node: dict[str, Any], depth: int) -> Case:
        checks = node.get("case_checks")
        if not isinstance(checks, list) or not all(isinstance(check, dict) for check in checks):
            raise _UnknownNodeError
        branches = [
            (self.expression(check.get("when_expr"), depth), self.expression(check.get("then_expr"), depth))
            for check in checks
        ]
        return Case(tuple(branches), self.expression(node.get("else_expr"), depth))

    def _function(self, node: dict[str, Any], depth: int) -> Expression:
        name = _system_function(node)
        arguments = self._children(node, depth)
        if name in ("struct_extract", "array_extract"):
            return _member(arguments, _type(node.get("return_type")))
        if name not in _FUNCTIONS:
            raise _UnknownNodeError
        function, count, only_text = _FUNCTIONS[name]
        if count not in (None, len(arguments)) or (only_text and not all(_returns_text(node, arguments))):
            raise _UnknownNodeError
        call = FunctionCall(function, arguments)
        return Not(call) if name in _NEGATED_FUNCTIONS else call


def _system_function(node: dict[str, Any]) -> str:
    """The name of one of DuckDB's own functions; somebody else's may share its name."""
    qualified = node.get("qname")
    path = qualified.get("path") if isinstance(qualified, dict) else None
    if path is None:
        path = [node.get("catalog_name") or "system", node.get("schema_name") or "main", node.get("name")]
    if not isinstance(path, list) or not path or path[:-1] not in ([], ["main"], ["system", "main"]):
        raise _UnknownNodeError
    return _text(path[-1])


def _returns_text(node: dict[str, Any], arguments: tuple[Expression, ...]) -> list[bool]:
    declared = node.get("arguments")
    if not isinstance(declared, list) or len(declared) != len(arguments):
        raise _UnknownNodeError
    return [_type(argument).id is TypeId.VARCHAR for argument in declared]


def _member(arguments: tuple[Expression, ...], type_: ValueType) -> ColumnRef:
    match arguments:
        case (ColumnRef(name, ValueType(TypeId.STRUCT), path), Constant(ValueType(TypeId.VARCHAR), str(member))):
            return ColumnRef(name, type_, (*path, member))
        case _:
            raise _UnknownNodeError


def _text(value: Any) -> str:
    if not is_text(value):
        raise _UnknownNodeError
    text: str = value
    return text


_TYPE_IDS: dict[Any, TypeId] = {type_id.value: type_id for type_id in TypeId} | {"TUPLE": TypeId.STRUCT}


def _type(node: Any) -> ValueType:
    if not isinstance(node, dict):
        raise _UnknownNodeError
    type_id = _TYPE_IDS.get(_text(node.get("id")), TypeId.OTHER)
    details = node.get("type_info")
    if not isinstance(details, dict):
        details = {}
    if type_id is TypeId.DECIMAL:
        type_ = ValueType(type_id, _integer(details.get("width")), _integer(details.get("scale")))
    elif type_id is TypeId.VARCHAR and details.get("collation"):
        # Compared by rules of its own.
        type_ = ValueType(TypeId.OTHER)
    else:
        type_ = ValueType(type_id)
    if not is_type(type_):
        raise _UnknownNodeError
    return type_


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise _UnknownNodeError
    return value


def _constant(node: Any, inherited_type: Any, depth: int) -> Constant:
    """A constant; in 2.x the members of a nested value take their types from the parent's."""
    if depth <= 0 or not isinstance(node, dict) or not isinstance(node.get("is_null"), bool):
        raise _UnknownNodeError
    type_node = node.get("type", inherited_type)
    type_ = _type(type_node)
    if node["is_null"]:
        return Constant(type_, None)
    value = _value(type_, type_node, node.get("value"), depth)
    if value is None or not is_value(type_, value):
        raise _UnknownNodeError
    return Constant(type_, value)


def _value(type_: ValueType, type_node: Any, raw: Any, depth: int) -> Value:
    match type_.id:
        case TypeId.HUGEINT | TypeId.UHUGEINT | TypeId.DECIMAL if isinstance(raw, dict):
            return _wide(raw)
        case TypeId.UUID:
            # Stored with the top bit flipped, so that signed order is UUID order.
            return str(uuid.UUID(int=(_wide(raw) & (2**128 - 1)) ^ 2**127))
        case TypeId.FLOAT | TypeId.DOUBLE if type(raw) in (int, float):
            return _float(raw)
        case TypeId.VARCHAR if isinstance(raw, dict):
            return _base64(raw.get("base64"))
        case TypeId.BLOB:
            return _blob(raw)
        case TypeId.STRUCT:
            return _members(type_node, raw, depth)
        case _:
            return raw  # type: ignore[no-any-return]  # checked by is_value


def _wide(raw: Any) -> int:
    if not isinstance(raw, dict):
        raise _UnknownNodeError
    upper, lower = _integer(raw.get("upper")), _integer(raw.get("lower"))
    low, _ = INTEGER_BOUNDS[TypeId.BIGINT]
    _, high = INTEGER_BOUNDS[TypeId.UBIGINT]
    if not (low <= upper <= high and 0 <= lower <= high):
        raise _UnknownNodeError
    return upper * 2**64 + lower


def _float(raw: float) -> float:
    try:
        return float(raw)
    except OverflowError as error:
        raise _UnknownNodeError from error


def _base64(raw: Any) -> str:
    try:
        return base64.b64decode(_text(raw), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise _UnknownNodeError from error


_BLOB_TEXT = re.compile(r"(?:[ -\[\]-~]|\\x[0-9A-Fa-f]{2})*")
_BLOB_ESCAPE = re.compile(rb"\\x(..)", re.DOTALL)


def _blob(raw: Any) -> bytes:
    """DuckDB's text for a BLOB: printable ASCII as it is, every other byte as \\xHH."""
    text = _text(raw)
    if _BLOB_TEXT.fullmatch(text) is None:
        raise _UnknownNodeError
    return _BLOB_ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())


def _members(type_node: Any, raw: Any, depth: int) -> tuple[Constant, ...]:
    values = raw.get("children") if isinstance(raw, dict) else None
    details = type_node.get("type_info")
    types = details.get("child_types") if isinstance(details, dict) else None
    if not isinstance(values, list) or not isinstance(types, list) or len(values) != len(types):
        raise _UnknownNodeError
    return tuple(
        [
            _constant(value, type_.get("second") if isinstance(type_, dict) else None, depth - 1)
            for value, type_ in zip(values, types, strict=True)
        ]
    )
