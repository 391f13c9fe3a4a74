"""Conditions as Arrow expressions, for batches that are already decoded.

Only comparisons that Arrow and DuckDB surely decide alike are said; for the rest more rows are kept.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_

import pyarrow as pa
import pyarrow.compute as pc

from gateway.lake.pushdown.conditions import Among, Compare, Leaf, Null, Target
from gateway.wire.filter_tree import Operator

_OPERATORS = {
    Operator.EQUAL: eq,
    Operator.NOT_EQUAL: ne,
    Operator.LESS: lt,
    Operator.LESS_EQUAL: le,
    Operator.GREATER: gt,
    Operator.GREATER_EQUAL: ge,
}


class ArrowDialect:
    """Leaves and junctions as expressions over the stored columns' names."""

    false = pc.scalar(False)

    def leaf(self, leaf: Leaf) -> pc.Expression | None:
        match leaf:
            case Compare(target, operator, value) if _is_comparable(target) and operator in _OPERATORS:
                return _OPERATORS[operator](pc.field(target.column), pa.scalar(value, target.type))
            case Among(target, values, False) if _is_comparable(target):
                return pc.field(target.column).isin(pa.array(values, target.type))
            case Null(target, negated) if not target.path:
                column = pc.field(target.column)
                return column.is_valid() if negated else column.is_null()
        return None

    def all(self, parts: Sequence[pc.Expression]) -> pc.Expression:
        return reduce(and_, parts)

    def any(self, parts: Sequence[pc.Expression]) -> pc.Expression:
        return reduce(or_, parts)


def _is_comparable(target: Target) -> bool:
    kind = target.type
    # Floats have NaN and two zeros, and values of decimals come unscaled.
    ordered = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
    return not target.path and bool(ordered or pa.types.is_timestamp(kind))
