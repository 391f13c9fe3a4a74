"""Conjuncts as the bytes a ticket carries.

`encode_conjuncts` and `decode_conjuncts` are exact inverses. A ticket comes back
from the client as untrusted input, so decoding checks every part: nothing gets in
this way that a filter document could not have brought.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, TypeVar

import msgpack

from gateway.errors import MalformedFilterError
from gateway.wire.filter_tree import (
    BOUNDS,
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

T = TypeVar("T")

# A node is an array [kind, part, part, ...] with its children in
# place, one level of nesting for each level of the tree.

_TYPES, _OPERATORS, _FUNCTIONS = tuple(TypeId), tuple(Operator), tuple(Function)
_TYPE_INDEX = {type_id: index for index, type_id in enumerate(_TYPES)}
_COLUMN, _CONSTANT, _COMPARISON, _AND, _OR, _NOT, _BETWEEN = range(7)
_IN, _IN_CONSTANTS, _IS_NULL, _CAST, _CALL, _CASE = range(7, 13)


def encode_conjuncts(conjuncts: Iterable[Expression]) -> bytes:
    """Pack conjuncts for a ticket; about 10 bytes for a comparison, 1 to 9 for an item of an IN list."""
    packed: bytes = msgpack.packb([_pack(node) for node in conjuncts])
    return packed


def decode_conjuncts(raw: bytes) -> tuple[Expression, ...]:
    """Inverse of `encode_conjuncts`; any defect is a MalformedFilterError."""
    try:
        nodes = msgpack.unpackb(raw, use_list=False, strict_map_key=True)
        if not isinstance(nodes, tuple):
            raise _defect()
        return tuple(_unpack(node, MAX_DEPTH) for node in nodes)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise _defect() from error


def _defect() -> MalformedFilterError:
    return MalformedFilterError("the packed filter is damaged")


def _pack(node: Expression) -> list[Any]:
    match node:
        case ColumnRef(name, type_, path):
            return [_COLUMN, name, _pack_type(type_), *path]
        case Constant(type_, value):
            return [_CONSTANT, _pack_type(type_), _pack_value(value)]
        case Comparison(operator, left, right):
            return [_COMPARISON, _OPERATORS.index(operator), _pack(left), _pack(right)]
        case And(children):
            return [_AND, *map(_pack, children)]
        case Or(children):
            return [_OR, *map(_pack, children)]
        case Not(child):
            return [_NOT, _pack(child)]
        case Between(needle, lower, upper, low, high):
            return [_BETWEEN, low, high, _pack(needle), _pack(lower), _pack(upper)]
        case In():
            return _pack_in(node)
        case IsNull(child, negated):
            return [_IS_NULL, negated, _pack(child)]
        case Cast(child, type_, is_try):
            return [_CAST, _pack_type(type_), is_try, _pack(child)]
        case FunctionCall(function, arguments):
            return [_CALL, _FUNCTIONS.index(function), *map(_pack, arguments)]
        case Case(branches, otherwise):
            parts = (part for branch in branches for part in branch)
            return [_CASE, _pack(otherwise), *map(_pack, parts)]


def _pack_in(node: In) -> list[Any]:
    """A list of constants of one type, the usual case, says its type once."""
    types = {item.type if isinstance(item, Constant) else None for item in node.items}
    if len(types) == 1 and (type_ := types.pop()) is not None:
        values = (_pack_value(item.value) for item in node.items if isinstance(item, Constant))
        return [_IN_CONSTANTS, node.negated, _pack(node.needle), _pack_type(type_), *values]
    return [_IN, node.negated, _pack(node.needle), *map(_pack, node.items)]


def _pack_type(type_: ValueType) -> int | list[int]:
    index = _TYPE_INDEX[type_.id]
    return [index, type_.width, type_.scale] if type_.width or type_.scale else index


def _pack_value(value: Value) -> Any:
    if isinstance(value, tuple):
        return [_pack(member) for member in value]
    if type(value) is int and not -(2**63) <= value < 2**64:
        # msgpack ends at 64 bits; no type has both bytes and integers as its values.
        return value.to_bytes(17, "big", signed=True)
    return value


def _unpack(node: Any, depth: int) -> Expression:
    if depth == 0 or not isinstance(node, tuple) or not node:
        raise _defect()
    kind, parts = node[0], node[1:]
    if type(kind) is not int or not 0 <= kind < len(_UNPACKERS):
        raise _defect()
    return _UNPACKERS[kind](parts, depth - 1)


def _unpack_all(nodes: Iterable[Any], depth: int) -> tuple[Expression, ...]:
    return tuple(map(_unpack, nodes, repeat(depth)))


def _unpack_column(parts: tuple[Any, ...], _: int) -> ColumnRef:
    name, type_, *path = parts
    if not all(is_text(part) for part in (name, *path)):
        raise _defect()
    return ColumnRef(name, _unpack_type(type_), tuple(path))


def _unpack_constant(parts: tuple[Any, ...], depth: int) -> Constant:
    type_, value = parts
    return _constant(_unpack_type(type_), value, depth)


def _constant(type_: ValueType, value: Any, depth: int) -> Constant:
    if isinstance(value, bytes) and len(value) == 17 and (type_.id in BOUNDS or type_.id is TypeId.DECIMAL):
        value = int.from_bytes(value, "big", signed=True)
    if isinstance(value, tuple):
        value = _unpack_all(value, depth)
    if not is_value(type_, value):
        raise _defect()
    return Constant(type_, value)


def _unpack_comparison(parts: tuple[Any, ...], depth: int) -> Comparison:
    operator, left, right = parts
    return Comparison(_pick(_OPERATORS, operator), _unpack(left, depth), _unpack(right, depth))


def _unpack_not(parts: tuple[Any, ...], depth: int) -> Not:
    (child,) = parts
    return Not(_unpack(child, depth))


def _unpack_between(parts: tuple[Any, ...], depth: int) -> Between:
    low, high, needle, lower, upper = parts
    return Between(_unpack(needle, depth), _unpack(lower, depth), _unpack(upper, depth), _truth(low), _truth(high))


def _unpack_in(parts: tuple[Any, ...], depth: int) -> In:
    negated, needle, *items = parts
    return In(_unpack(needle, depth), _unpack_all(items, depth), _truth(negated))


def _unpack_in_constants(parts: tuple[Any, ...], depth: int) -> In:
    negated, needle, packed_type, *values = parts
    type_ = _unpack_type(packed_type)
    items = tuple([_constant(type_, value, depth) for value in values])
    if not items:
        raise _defect()
    return In(_unpack(needle, depth), items, _truth(negated))


def _unpack_is_null(parts: tuple[Any, ...], depth: int) -> IsNull:
    negated, child = parts
    return IsNull(_unpack(child, depth), _truth(negated))


def _unpack_cast(parts: tuple[Any, ...], depth: int) -> Cast:
    type_, is_try, child = parts
    return Cast(_unpack(child, depth), _unpack_type(type_), _truth(is_try))


def _unpack_call(parts: tuple[Any, ...], depth: int) -> FunctionCall:
    function, *arguments = parts
    return FunctionCall(_pick(_FUNCTIONS, function), _unpack_all(arguments, depth))


def _unpack_case(parts: tuple[Any, ...], depth: int) -> Case:
    otherwise, *results = _unpack_all(parts, depth)
    return Case(tuple(zip(results[::2], results[1::2], strict=True)), otherwise)


def _unpack_type(packed: Any) -> ValueType:
    index, width, scale = packed if isinstance(packed, tuple) else (packed, 0, 0)
    if type(width) is not int or type(scale) is not int:
        raise _defect()
    type_ = ValueType(_pick(_TYPES, index), width, scale)
    if not is_type(type_):
        raise _defect()
    return type_


def _pick(choices: tuple[T, ...], index: Any) -> T:
    if type(index) is not int or not 0 <= index < len(choices):
        raise _defect()
    return choices[index]


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _defect()
    return value


_UNPACKERS: tuple[Callable[[tuple[Any, ...], int], Expression], ...] = (
    _unpack_column,
    _unpack_constant,
    _unpack_comparison,
    lambda parts, depth: And(_unpack_all(parts, depth)),
    lambda parts, depth: Or(_unpack_all(parts, depth)),
    _unpack_not,
    _unpack_between,
    _unpack_in,
    _unpack_in_constants,
    _unpack_is_null,
    _unpack_cast,
    _unpack_call,
    _unpack_case,
)
