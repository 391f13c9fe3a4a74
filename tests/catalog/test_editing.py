"""Changing a catalog whose source cannot be changed is refused; the editor itself is tested over a warehouse."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from gateway.catalog.editing import Editor
from gateway.catalog.names import TableName
from gateway.errors import UnsupportedError
from gateway.wire.ddl_messages import DropNotNull, OnConflict, TableDefinition
from tests.doubles import MemorySource, MemoryTable, memory_catalog

DATA = pa.table({"a": [1]})


@pytest.mark.parametrize(
    "act",
    [
        lambda editor, _table: editor.create_schema("n"),
        lambda editor, _table: editor.drop_schema("s", ignore_not_found=True),
        lambda editor, _table: editor.create_table("s", "n", TableDefinition(DATA.schema), OnConflict.ERROR),
        lambda editor, _table: editor.drop_table("s", "t", ignore_not_found=True),
        lambda editor, table: editor.rename_table(table, "n"),
        lambda editor, table: editor.alter_table(table, DropNotNull("a"), "me"),
    ],
)
def test_a_source_that_cannot_be_changed_is_not_changed(act: Callable[[Editor, MemoryTable], object]) -> None:
    source = MemorySource()
    table = source.add(MemoryTable(TableName("lake", "s", "t"), [DATA]))
    catalog = memory_catalog(source)
    catalog.refresh()
    version = catalog.version
    with pytest.raises(UnsupportedError, match="cannot be"):
        act(Editor(catalog), table)
    assert catalog.version == version
    assert catalog.table("s", "t") is table
