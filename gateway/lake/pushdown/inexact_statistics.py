"""Statistics that lie: conditions made safe against them.

Engines skip files by the minimum and maximum in the Delta log. delta-rs writes those
of a DECIMAL as a double, or, without a scale, as a 64-bit integer that stops at its
end. Up to 15 digits that is exact; a literal with more is compared loosely, so that a
file whose numbers are a little off is read all the same. NaN, which delta-rs leaves
out, is dealt with where floats are compared.
"""

import pyarrow as pa

from gateway.lake.pushdown.conditions import (
    NEVER,
    AllOf,
    Among,
    AnyOf,
    Compare,
    Condition,
    Null,
    StoredValue,
    Target,
    all_of,
    any_of,
)
from gateway.wire.filter_tree import Operator

_EXACT_DIGITS = 15  # a double has them all
_EXACT_SCALE = 22  # larger powers of ten are no doubles


def may_be_off(target: Target) -> bool:
    """Whether a file's minimum and maximum of this column may not be what they should."""
    type_ = target.type
    if target.exact_statistics:
        return False
    is_wide = pa.types.is_decimal128(type_) and (type_.precision > _EXACT_DIGITS or type_.scale > _EXACT_SCALE)
    return bool(is_wide or pa.types.is_floating(type_))


def guarded(condition: Condition) -> Condition:
    """The same condition, or a wider one where statistics may be off."""
    match condition:
        case AllOf(children):
            return all_of(guarded(child) for child in children)
        case AnyOf(children):
            return any_of(guarded(child) for child in children)
        case Compare(target, operator, value) if not _is_exact(target, value):
            return _loosely(target, operator, value, value)
        case Among():
            return _guarded_list(condition)
        case _:
            return condition


def _guarded_list(among: Among) -> Condition:
    exact: list[StoredValue] = []
    vague: list[StoredValue] = []
    for value in among.values:
        (exact if _is_exact(among.target, value) else vague).append(value)
    if not vague:
        return among
    listed: Condition = Among(among.target, tuple(exact), among.negated) if exact else NEVER
    if among.negated:
        return listed if exact else Null(among.target, negated=True)
    return any_of([listed, _loosely(among.target, Operator.EQUAL, *Among(among.target, tuple(vague)).range)])


def _is_exact(target: Target, value: StoredValue) -> bool:
    if not pa.types.is_decimal128(target.type) or not may_be_off(target) or not isinstance(value, int):
        return True
    scale: int = target.type.scale
    return abs(value) < 10**_EXACT_DIGITS - 1 and scale <= _EXACT_SCALE


def _loosely(target: Target, operator: Operator, low: StoredValue, high: StoredValue) -> Condition:
    assert isinstance(low, int)
    assert isinstance(high, int)
    least, most = low - (abs(low) >> 50) - 1, high + (abs(high) >> 50) + 1
    if target.type.scale == 0:
        least, most = min(least, 2**63 - 1), max(most, -(2**63))
    limit = 10**target.type.precision
    bounds: list[Condition] = []
    if operator in (Operator.EQUAL, Operator.GREATER, Operator.GREATER_EQUAL) and least > -limit:
        bounds.append(Compare(target, Operator.GREATER_EQUAL, least))
    if operator in (Operator.EQUAL, Operator.LESS, Operator.LESS_EQUAL) and most < limit:
        bounds.append(Compare(target, Operator.LESS_EQUAL, most))
    return all_of(bounds or [Null(target, negated=True)])
