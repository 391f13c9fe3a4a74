"""Conditions: what is left of a filter once only engines have to understand it.

A condition is in positive form: comparisons of one stored column with literals of
exactly its type, joined by AND and OR. There is no NOT, so making any part true
for more rows makes the whole true for more rows. That one property carries all of
pushdown: ALWAYS stands for whatever is not known or cannot be said, and joining
conditions takes care of what that does to the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, TypeAlias

import pyarrow as pa

from gateway.wire.filter_tree import Operator

StoredValue: TypeAlias = bool | int | float | str | bytes
"""A value in the stored type's own unit: decimals unscaled, dates in days, timestamps in the type's unit."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stored column, or a member of a stored struct; `meaning` is what its values stand for, None if themselves."""

    column: str
    type: pa.DataType
    path: tuple[str, ...] = ()
    exact_statistics: bool = False
    meaning: str | None = None


class Constancy(Enum):
    ALWAYS = "always"
    NEVER = "never"


ALWAYS: Final = Constancy.ALWAYS
NEVER: Final = Constancy.NEVER


@dataclass(frozen=True, slots=True)
class Compare:
    target: Target
    operator: Operator
    value: StoredValue


@dataclass(frozen=True, slots=True)
class CompareColumns:
    left: Target
    operator: Operator
    right: Target


@dataclass(frozen=True, slots=True)
class Among:
    """IN, or NOT IN; never empty and without NULL."""

    target: Target
    values: tuple[StoredValue, ...]
    negated: bool = False

    @property
    def range(self) -> tuple[StoredValue, StoredValue]:
        """The least and the greatest value."""
        low, high = min(self.values), max(self.values)
        # Both zeros are in the range, however an engine orders them.
        return (-0.0 if isinstance(low, float) and low == 0 else low), (
            0.0 if isinstance(high, float) and high == 0 else high
        )


@dataclass(frozen=True, slots=True)
class Null:
    target: Target
    negated: bool = False


@dataclass(frozen=True, slots=True)
class NaN:
    target: Target


class Shape(StrEnum):
    SUFFIX = "suffix"
    CONTAINS = "contains"
    LIKE = "like"


@dataclass(frozen=True, slots=True)
class Match:
    """A test of a text; a LIKE pattern has the backslash as its escape, as both engines do."""

    target: Target
    shape: Shape
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AllOf:
    children: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    children: tuple["Condition", ...]


Leaf: TypeAlias = Compare | CompareColumns | Among | Null | NaN | Match
Condition: TypeAlias = Constancy | Leaf | AllOf | AnyOf


def all_of(parts: Iterable[Condition]) -> Condition:
    """AND: the parts that say nothing are left out."""
    children: list[Condition] = []
    for part in parts:
        if part is NEVER:
            return NEVER
        if isinstance(part, AllOf):
            children.extend(part.children)
        elif part is not ALWAYS:
            children.append(part)
    children = _without_needless_nans(_merged(children, Operator.NOT_EQUAL, negated=True))
    return _joined(AllOf, children, ALWAYS)


def any_of(parts: Iterable[Condition]) -> Condition:
    """OR: one part that says nothing makes the whole say nothing."""
    children: list[Condition] = []
    for part in parts:
        if part is ALWAYS:
            return ALWAYS
        if isinstance(part, AnyOf):
            children.extend(part.children)
        elif part is not NEVER:
            children.append(part)
    return _joined(AnyOf, _merged(children, Operator.EQUAL, negated=False), NEVER)


def _joined(kind: type[AllOf] | type[AnyOf], children: list[Condition], if_empty: Condition) -> Condition:
    children = list(dict.fromkeys(children))
    if len(children) > 1:
        return kind(tuple(children))
    return children[0] if children else if_empty


def _without_needless_nans(children: list[Condition]) -> list[Condition]:
    """`(x >= 1 OR isnan(x)) AND x <= 5` -> `x >= 1 AND x <= 5`, which file statistics can judge."""
    excluded = {
        NaN(child.target)
        for child in children
        if isinstance(child, Compare) and child.operator in (Operator.LESS, Operator.LESS_EQUAL, Operator.EQUAL)
    }
    if not excluded:
        return children
    return [
        any_of(part for part in child.children if part not in excluded) if isinstance(child, AnyOf) else child
        for child in children
    ]


def _merged(children: list[Condition], operator: Operator, *, negated: bool) -> list[Condition]:
    """`x = 1 OR x = 2 OR …` -> `x IN (1, 2, …)`, `x <> 1 AND x <> 2 AND …` -> `x NOT IN (1, 2, …)`.

    Engines choke on thousands of conditions, not on thousands of items, and DuckDB 2.x
    sends every IN list as such an OR.
    """
    values: dict[Target, list[StoredValue]] = {}
    others: list[Condition] = []
    for child in children:
        if isinstance(child, Compare) and child.operator is operator:
            values.setdefault(child.target, []).append(child.value)
        elif isinstance(child, Among) and child.negated is negated:
            values.setdefault(child.target, []).extend(child.values)
        else:
            others.append(child)
    lists = (_listed(target, several, operator, negated) for target, several in values.items())
    return [*lists, *others]


def _listed(target: Target, values: list[StoredValue], operator: Operator, negated: bool) -> Condition:
    distinct = tuple({(value, str(value)): value for value in values}.values())  # 0.0 and -0.0 are two
    return Compare(target, operator, distinct[0]) if len(distinct) == 1 else Among(target, distinct, negated)


@dataclass(frozen=True, slots=True)
class Size:
    """What a condition costs an engine: its leaves, its literals, its nesting."""

    leaves: int
    values: int
    nesting: int


def size_of(condition: Condition) -> Size:
    if isinstance(condition, AllOf | AnyOf):
        sizes = [size_of(child) for child in condition.children]
        return Size(
            sum(size.leaves for size in sizes),
            sum(size.values for size in sizes),
            1 + max(size.nesting for size in sizes),
        )
    return Size(1, len(condition.values) if isinstance(condition, Among) else 1, 0)
