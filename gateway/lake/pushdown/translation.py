"""Pushdown: the client's conjuncts -> a predicate for the engine that reads.

The client filters again, so a predicate may keep too many rows and never too few,
and it must never make an engine raise. Each conjunct is turned into a condition
(`rules`), once per scan, and what is left of it into the engine's own words; a conjunct
of which nothing is left, or which is too large for an engine, is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from gateway.lake.pushdown.conditions import (
    ALWAYS,
    NEVER,
    AllOf,
    AnyOf,
    Condition,
    Leaf,
    Size,
    size_of,
)
from gateway.lake.pushdown.inexact_statistics import guarded
from gateway.lake.pushdown.operands import Binding, Bindings
from gateway.lake.pushdown.rules import OutOfStepsError, Rules
from gateway.wire.filter_tree import Expression

__all__ = ["Binding", "Bindings", "Conditions", "Engine", "Translation", "conditions_of", "say", "translate"]

P = TypeVar("P")
Conditions: TypeAlias = Sequence[Condition | None]

# One predicate. DataFusion's parser ends at 50 levels, and a chain of 5,000 ORs ends the
# process with a stack overflow; Spark's code generator gives up at some hundred conditions.
MOST = Size(leaves=128, values=20_000, nesting=20)


class Engine(Protocol[P]):
    """An engine's words: None from `leaf` where it has no word for it."""

    @property
    def false(self) -> P: ...

    def leaf(self, leaf: Leaf) -> P | None: ...

    def all(self, parts: Sequence[P]) -> P: ...

    def any(self, parts: Sequence[P]) -> P: ...


@dataclass(frozen=True, slots=True)
class Translation(Generic[P]):
    """A predicate, None if there is nothing to say, and how many conjuncts are in it and how many are not."""

    predicate: P | None
    pushed: int
    dropped: int


def conditions_of(conjuncts: Sequence[Expression], bindings: Bindings) -> Conditions:
    """Each of the client's conjuncts as a condition on the stored columns; None where it is too deep for that."""
    rules = Rules(bindings)
    found: list[Condition | None] = []
    for conjunct in conjuncts:
        try:
            found.append(rules.holds(conjunct, True))
        except (OutOfStepsError, RecursionError):
            found.append(None)
    return found


def translate(engine: Engine[P], conditions: Conditions) -> Translation[P]:
    """A scan's conditions in the engine's words, over unqualified column names."""
    room, parts = MOST, []
    for known in conditions:
        if known is None:
            continue
        try:
            condition = guarded(known)
            size = size_of(condition)
        except RecursionError:
            continue
        if size.leaves > room.leaves or size.values > room.values or size.nesting > room.nesting:
            continue
        part = say(engine, condition)
        if part is not None:
            parts.append(part)
            room = Size(room.leaves - size.leaves, room.values - size.values, room.nesting)
    predicate = engine.all(parts) if parts else None
    return Translation(predicate, pushed=len(parts), dropped=len(conditions) - len(parts))


def say(engine: Engine[P], condition: Condition) -> P | None:
    """A condition in the engine's words, as it stands; None, as ALWAYS, says nothing."""
    if isinstance(condition, AllOf | AnyOf):
        said = [say(engine, child) for child in condition.children]
        known = [part for part in said if part is not None]
        if isinstance(condition, AllOf):
            return engine.all(known) if known else None
        return engine.any(known) if len(known) == len(said) else None
    if condition is NEVER:
        return engine.false
    return None if condition is ALWAYS else engine.leaf(condition)
