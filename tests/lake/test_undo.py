"""Which versions of a table are alike enough for a value to go back from one into the other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.lake.tables.schemas import TableSchema, read_schema
from gateway.lake.writing.undo import has_same_columns

PHYSICAL = "delta.columnMapping.physicalName"


def column(name: str, kind: str = "integer", physical: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {PHYSICAL: physical or name, **more.pop("metadata", {})}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata, **more}


def table(*columns: dict[str, Any]) -> TableSchema:
    text = json.dumps({"type": "struct", "fields": [column("_rowid", "long"), *columns]})
    return read_schema(text, {}, "_rowid")


@pytest.mark.parametrize(
    ("altered", "is_same"),
    [
        ([column("a"), column("b")], True),
        ([column("a", nullable=False), column("b", metadata={"comment": "new"})], True),
        ([column("a")], False),
        ([column("a"), column("b"), column("c")], False),
        ([column("a"), column("d", physical="b")], False),
        ([column("a"), column("b", physical="dropped and added again")], False),
        ([column("a", physical="b"), column("b", physical="a")], False),
        ([column("a"), column("b", "long")], False),
    ],
)
def test_a_value_goes_back_only_into_the_column_that_it_came_from(altered: list[dict[str, Any]], is_same: bool) -> None:
    assert has_same_columns(table(column("a"), column("b")), table(*altered)) is is_same
