"""Which statements of a group break a constraint: found by evaluating the constraints, once for all of them.

Delta names the constraint that a MERGE broke, but not the row. Looking for the
statement by trying halves of the group costs almost two MERGEs for each guilty one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import LongType

from gateway.catalog.changes import Operation
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.internal_names import OPERATION, ROWID_FIELD, STATEMENT
from gateway.lake.tables.schemas import CONSTRAINT_PREFIX
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.writing.change_sets import CODES, ChangeSet
from gateway.lake.writing.merge import rows_in_memory, stored_types


def find_violations(session: Any, head: LogSnapshot, change: ChangeSet, rows_each: Sequence[int]) -> dict[int, str]:
    """Statements by their place in the change, with what each one breaks; they have so many rows each, in order."""
    assert isinstance(change.rows, pa.Table)
    constraints = list(_constraints(head))
    if not constraints:
        return {}
    table = session.read.format("delta").option("versionAsOf", head.version).load(head.uri)
    source = _with_statements(session, table, change.rows, rows_each)
    broken = functions.coalesce(
        *(functions.when(violated, functions.lit(place)) for place, (_, violated) in enumerate(constraints))
    )
    found = reduce(lambda one, other: one.unionByName(other), _images(table, source, head, change))
    first = found.groupBy(STATEMENT).agg(functions.min(broken).alias("broken")).where("broken IS NOT NULL")
    return {row[0]: constraints[row[1]][0] for row in first.collect()}


def _constraints(head: LogSnapshot) -> Iterator[tuple[str, Any]]:
    """Each with its text for the client, and the condition under which a row breaks it."""
    for column in head.schema.columns:
        if not column.nullable and column.computed is None:
            text = f"NOT NULL constraint failed: column '{column.name}'"
            yield text, functions.col(quoted(column.name)).isNull()
    for key, expression in head.configuration.items():
        if key.startswith(CONSTRAINT_PREFIX):
            text = f"CHECK constraint failed: {key.removeprefix(CONSTRAINT_PREFIX)}"
            yield text, ~functions.coalesce(functions.expr(expression), functions.lit(False))


def _with_statements(session: Any, table: Any, rows: pa.Table, rows_each: Sequence[int]) -> Any:
    numbers = pa.array([number for number, count in enumerate(rows_each) for _ in range(count)], pa.int64())
    numbered = rows.append_column(STATEMENT, numbers)
    return rows_in_memory(session, numbered, {**stored_types(table), STATEMENT: LongType()})


def _images(table: Any, source: Any, head: LogSnapshot, change: ChangeSet) -> Iterator[Any]:
    """The rows as they would be stored."""

    def of(operation: Operation) -> Any:
        if len(change.operations) == 1:
            return source
        return source.where(functions.col(OPERATION) == functions.lit(CODES[operation]).cast("byte"))

    if Operation.INSERT in change.operations:
        new = of(Operation.INSERT)
        kinds = {field.name: field.dataType for field in table.schema.fields}
        yield new.select(
            STATEMENT,
            *(
                functions.col(quoted(column.name))
                if column.name in change.inserted
                else functions.lit(None).cast(kinds[column.name]).alias(column.name)
                for column in head.schema.columns
            ),
        )
    if Operation.UPDATE in change.operations:
        assert head.schema.rowid is not None
        old, new = table.alias("t"), of(Operation.UPDATE).alias("s")
        is_same = functions.col(f"t.{quoted(head.schema.rowid.name)}") == functions.col(f"s.{ROWID_FIELD}")
        yield new.join(old, is_same).select(
            f"s.{STATEMENT}",
            *(
                functions.col(f"{'s' if column.name in change.updated else 't'}.{quoted(column.name)}")
                for column in head.schema.columns
            ),
        )
