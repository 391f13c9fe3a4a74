"""Rules: a filter expression -> the condition an engine may use in its place.

`holds(expression, truth)` is true for every row on which DuckDB finds the expression
TRUE (or FALSE, if that is asked): NOT just asks for the other truth, so no NOT is
left and every later widening is harmless. A row on which the expression is NULL is
neither, which is exactly SQL's three-valued logic. What no rule covers is ALWAYS.
"""

import math
import operator as comparisons
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from gateway.lake.pushdown.conditions import (
    ALWAYS,
    NEVER,
    Compare,
    CompareColumns,
    Condition,
    Match,
    Null,
    Shape,
    Target,
    all_of,
    any_of,
)
from gateway.lake.pushdown.operands import (
    Bindings,
    Family,
    Field,
    Operand,
    compare_constant,
    family_of,
    is_infinite,
    number_of,
    operand_of,
)
from gateway.wire.filter_tree import (
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
    ValueType,
)

MAX_STEPS = 25_000
"""Work allowed for one predicate. CASE and boolean comparisons multiply out, so a small
document can ask for exponential work; an IN list costs one step per item."""

_INVERSE = {
    Operator.EQUAL: Operator.NOT_EQUAL,
    Operator.LESS: Operator.GREATER_EQUAL,
    Operator.GREATER: Operator.LESS_EQUAL,
    Operator.DISTINCT: Operator.NOT_DISTINCT,
}
_INVERSE |= {value: key for key, value in _INVERSE.items()}
_MIRROR = {
    Operator.LESS: Operator.GREATER,
    Operator.GREATER: Operator.LESS,
    Operator.LESS_EQUAL: Operator.GREATER_EQUAL,
    Operator.GREATER_EQUAL: Operator.LESS_EQUAL,
}
_PYTHON: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: comparisons.eq,
    Operator.NOT_EQUAL: comparisons.ne,
    Operator.LESS: comparisons.lt,
    Operator.GREATER: comparisons.gt,
    Operator.LESS_EQUAL: comparisons.le,
    Operator.GREATER_EQUAL: comparisons.ge,
}


class OutOfStepsError(Exception):
    """The predicate asks for more work than it is worth."""


class Rules:
    """The rules over one table's bindings, with one budget of steps. Not thread-safe."""

    def __init__(self, bindings: Bindings, steps: int = MAX_STEPS) -> None:
        self._bindings = bindings
        self._steps = steps

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise OutOfStepsError

    def holds(self, expression: Expression, truth: bool) -> Condition:
        """A condition that is true wherever the expression is `truth`."""
        self._step()
        match expression:
            case Not(child):
                return self.holds(child, not truth)
            case And(children):
                return (all_of if truth else any_of)(self.holds(child, truth) for child in children)
            case Or(children):
                return (any_of if truth else all_of)(self.holds(child, truth) for child in children)
            case IsNull(child, negated):
                return self._null(child, truth is not negated)
            case FunctionCall(function, arguments):
                return self._call(function, arguments, truth)
            case Case(branches, otherwise):
                results = (all_of([self.holds(when, True), self.holds(then, truth)]) for when, then in branches)
                return any_of([*results, self.holds(otherwise, truth)])
            case _:
                return self._compares(expression, truth)

    def _compares(self, expression: Expression, truth: bool) -> Condition:
        match expression:
            case Comparison(operator, left, right):
                return self._compare(left, operator if truth else _INVERSE[operator], right)
            case Between(needle, lower, upper, low, high):
                least = Operator.GREATER_EQUAL if low else Operator.GREATER
                most = Operator.LESS_EQUAL if high else Operator.LESS
                both = And((Comparison(least, needle, lower), Comparison(most, needle, upper)))
                return self.holds(both, truth)
            case In(needle, items, negated) if truth is not negated:
                return any_of(self._compare(needle, Operator.EQUAL, item) for item in items)
            case In(needle, items):
                return all_of(self._compare(needle, Operator.NOT_EQUAL, item) for item in items)
            case Constant(_, value):
                return ALWAYS if value is truth else NEVER
            case _:
                return self._boolean_column(expression, truth)

    def _boolean_column(self, expression: Expression, truth: bool) -> Condition:
        match operand_of(expression, self._bindings):
            case Field(target, Family.TRUTH):
                return Compare(target, Operator.EQUAL, truth)
            case _:
                return ALWAYS

    def _null(self, expression: Expression, truth: bool) -> Condition:
        """True wherever the expression is NULL, or wherever it is not."""
        self._step()
        match operand_of(expression, self._bindings):
            case Field(target) if truth:
                # A member is NULL in a NULL struct too, whatever the stored array has there.
                parents = (Target(target.column, pa.null(), target.path[:depth]) for depth in range(len(target.path)))
                return any_of(Null(part) for part in (*parents, target))
            case Field(target):
                return Null(target, negated=True)
            case Constant(_, value):
                return ALWAYS if (value is None) is truth else NEVER
            case _:
                return ALWAYS

    def _compare(self, left: Expression, operator: Operator, right: Expression) -> Condition:
        self._step()
        match operator:
            case Operator.DISTINCT:
                one_null = (
                    all_of([self._null(one, True), self._null(other, False)])
                    for one, other in ((left, right), (right, left))
                )
                return any_of([self._compare(left, Operator.NOT_EQUAL, right), *one_null])
            case Operator.NOT_DISTINCT:
                both_null = all_of([self._null(left, True), self._null(right, True)])
                return any_of([self._compare(left, Operator.EQUAL, right), both_null])
        for one, how, other in ((left, operator, right), (right, _MIRROR.get(operator, operator), left)):
            unfolded = self._compare_choice(one, how, other)
            if unfolded is not None:
                return unfolded
        return self._compare_operands(left, operator, right)

    def _compare_choice(self, left: Expression, operator: Operator, right: Expression) -> Condition | None:
        """CASE and COALESCE: each result they may have, where they may have it; rows: member by member."""
        match left, right:
            case Case(branches, otherwise), _:
                results = (
                    all_of([self.holds(when, True), self._compare(then, operator, right)]) for when, then in branches
                )
                return any_of([*results, self._compare(otherwise, operator, right)])
            case FunctionCall(Function.COALESCE, (first, *rest)), _:
                taken = self._compare(first, operator, right)
                if not rest:
                    return taken
                later = self._compare(FunctionCall(Function.COALESCE, tuple(rest)), operator, right)
                return any_of([taken, all_of([self._null(first, True), later])])
            case FunctionCall(Function.ROW, members), Constant(_, tuple(values)) if len(members) == len(values):
                return self._compare_rows(members, operator, values)
            case _:
                return None

    def _compare_rows(
        self, members: tuple[Expression, ...], operator: Operator, values: tuple[Constant, ...]
    ) -> Condition:
        """(a, b) = (1, 2): inside a row NULL is a value like others."""
        pairs = list(zip(members, values, strict=True))
        match operator:
            case Operator.EQUAL:
                return all_of(self._compare(member, Operator.NOT_DISTINCT, value) for member, value in pairs)
            case Operator.NOT_EQUAL:
                return any_of(self._compare(member, Operator.DISTINCT, value) for member, value in pairs)
            case _:
                return ALWAYS

    def _compare_operands(self, left: Expression, operator: Operator, right: Expression) -> Condition:
        match operand_of(left, self._bindings), operand_of(right, self._bindings):
            case (Constant(_, None), _) | (_, Constant(_, None)):
                return NEVER
            case Field() as field, Constant() as constant:
                return compare_constant(field, operator, constant)
            case Constant() as constant, Field() as field:
                return compare_constant(field, _MIRROR.get(operator, operator), constant)
            case Constant() as one, Constant() as other:
                return _compare_constants(one, operator, other)
            case Field() as one, Field() as other:
                return _compare_fields(one, operator, other)
        if _is_boolean(left) and _is_boolean(right) and operator in (Operator.EQUAL, Operator.NOT_EQUAL):
            same = operator is Operator.EQUAL
            return any_of(
                all_of([self.holds(left, truth), self.holds(right, truth is same)]) for truth in (True, False)
            )
        return ALWAYS

    def _call(self, function: Function, arguments: tuple[Expression, ...], truth: bool) -> Condition:
        match function, arguments:
            case Function.IS_NAN, (child,):
                return self._compare(child, Operator.EQUAL if truth else Operator.NOT_EQUAL, _NAN)
            case Function.CONSTANT_OR_NULL, (constant, *others):
                present = (self._null(other, False) for other in others)
                return all_of([self.holds(constant, truth), *present])
            case Function.COALESCE, (first, *rest):
                later = self.holds(FunctionCall(function, tuple(rest)), truth) if rest else NEVER
                return any_of([self.holds(first, truth), all_of([self._null(first, True), later])])
        operands = [operand_of(argument, self._bindings) for argument in arguments]
        return _match_text(function, operands, truth)


_NAN = Constant(ValueType(TypeId.DOUBLE), math.nan)


def _is_boolean(expression: Expression) -> bool:
    match expression:
        case Comparison() | And() | Or() | Not() | Between() | In() | IsNull():
            return True
        case ColumnRef(_, type_) | Constant(type_) | Cast(_, type_):
            return type_.id is TypeId.BOOLEAN
        case FunctionCall(function):
            return function not in (Function.ROW, Function.COALESCE)
        case _:
            return False


def _compare_constants(left: Constant, operator: Operator, right: Constant) -> Condition:
    family = family_of(left.type)[0]
    if family is not family_of(right.type)[0] or family in (Family.OTHER, Family.FLOAT):
        return ALWAYS
    if is_infinite(left) or is_infinite(right):
        return ALWAYS
    is_plain = family in (Family.TEXT, Family.BYTES, Family.TRUTH)
    one, other = (left.value, right.value) if is_plain else (number_of(left), number_of(right))
    # Python orders texts by code point, which is the order of their UTF-8 bytes.
    return ALWAYS if _PYTHON[operator](one, other) else NEVER


def _compare_fields(left: Field, operator: Operator, right: Field) -> Condition:
    """Two columns: only where an engine compares them without converting either to a lesser type."""
    if left.family is not right.family or left.family in (Family.OTHER, Family.FLOAT):
        return ALWAYS
    if left.whole_days or right.whole_days or left.precision or right.precision:
        return ALWAYS
    one, other = left.target.type, right.target.type
    if left.target.meaning != right.target.meaning and not (pa.types.is_integer(one) and pa.types.is_integer(other)):
        return ALWAYS
    alike = left.units == right.units and (one == other or (pa.types.is_integer(one) and pa.types.is_integer(other)))
    if not alike and not (pa.types.is_decimal128(one) and pa.types.is_decimal128(other) and _have_room(one, other)):
        return ALWAYS
    return CompareColumns(left.target, operator, right.target)


def _have_room(left: pa.DataType, right: pa.DataType) -> bool:
    digits: int = max(left.precision - left.scale, right.precision - right.scale) + max(left.scale, right.scale)
    return digits <= 38


def _match_text(function: Function, operands: list[Operand | None], truth: bool) -> Condition:
    subject, *texts = operands
    if any(isinstance(text, Constant) and text.value is None for text in texts):
        return NEVER
    values = [text.value for text in texts if isinstance(text, Constant) and isinstance(text.value, str)]
    if not isinstance(subject, Field) or subject.family is not Family.TEXT or len(values) < len(texts):
        return ALWAYS
    tokens = _tokens(function, values)
    return ALWAYS if tokens is None else _match_tokens(subject.target, tokens, truth)


ANY_TEXT, ANY_CHARACTER = object(), object()


def _tokens(function: Function, texts: list[str]) -> list[object] | None:
    """A pattern as characters and the two wildcards."""
    match function, texts:
        case Function.PREFIX, [text]:
            return [*text, ANY_TEXT]
        case Function.SUFFIX, [text]:
            return [ANY_TEXT, *text]
        case Function.CONTAINS, [text]:
            return [ANY_TEXT, *text, ANY_TEXT]
        case Function.LIKE, [pattern]:
            return _like_tokens(pattern, "")
        case Function.LIKE_ESCAPE, [pattern, escape] if len(escape) <= 1:
            return _like_tokens(pattern, escape)
        case _:
            return None


def _like_tokens(pattern: str, escape: str) -> list[object] | None:
    """LIKE as DuckDB reads it: without ESCAPE clause no character escapes, the backslash neither."""
    tokens: list[object] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped not in ("%", "_", escape):
                return None  # DuckDB may raise an error
            tokens.append(escaped)
        elif character == "%":
            tokens.append(ANY_TEXT)
        else:
            tokens.append(ANY_CHARACTER if character == "_" else character)
    return tokens


def _match_tokens(target: Target, tokens: list[object], truth: bool) -> Condition:
    wildcards = [index for index, token in enumerate(tokens) if not isinstance(token, str)]
    plain = "".join(token for token in tokens if isinstance(token, str))
    if not wildcards:
        return Compare(target, Operator.EQUAL if truth else Operator.NOT_EQUAL, plain)
    if plain == "" and ANY_CHARACTER not in tokens:
        return Null(target, negated=True) if truth else NEVER
    start = _starts_with(target, plain[: wildcards[0]], truth)
    if wildcards == [len(tokens) - 1] and tokens[-1] is ANY_TEXT:
        return start
    match = _match(target, tokens, wildcards, plain, negated=not truth)
    # The beginning is stated once more as a range, which file statistics can judge.
    return all_of([start, match]) if truth and wildcards[0] > 0 else match


def _match(target: Target, tokens: list[object], wildcards: list[int], plain: str, *, negated: bool) -> Match:
    if all(tokens[index] is ANY_TEXT for index in wildcards):
        if wildcards == [0]:
            return Match(target, Shape.SUFFIX, plain, negated)
        if wildcards == [0, len(tokens) - 1]:
            return Match(target, Shape.CONTAINS, plain, negated)
    return Match(target, Shape.LIKE, "".join(map(_like_part, tokens)), negated)


def _like_part(token: object) -> str:
    if token is ANY_TEXT:
        return "%"
    if token is ANY_CHARACTER:
        return "_"
    return f"\\{token}" if token in ("%", "_", "\\") else str(token)


def _starts_with(target: Target, prefix: str, truth: bool) -> Condition:
    """A beginning is a range: engines skip files by ranges better than by patterns."""
    if not prefix:
        return Null(target, negated=True) if truth else NEVER
    first, end = Compare(target, Operator.GREATER_EQUAL, prefix), _text_after(prefix)
    if not truth:
        outside: list[Condition] = [Compare(target, Operator.LESS, prefix)]
        if end is not None:
            outside.append(Compare(target, Operator.GREATER_EQUAL, end))
        return any_of(outside)
    return first if end is None else all_of([first, Compare(target, Operator.LESS, end)])


def _text_after(prefix: str) -> str | None:
    """The least text above every text that begins with the prefix, in UTF-8 order."""
    while prefix:
        following = ord(prefix[-1]) + 1
        if following == 0xD800:
            following = 0xE000  # surrogates are no characters
        if following <= 0x10FFFF:
            return prefix[:-1] + chr(following)
        prefix = prefix[:-1]
    return None
