"""Names of the gateway's own columns: no table gets one, and a table that has one is not written. No Spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from gateway.catalog.changes import Operation
from gateway.errors import PreconditionError, RequestError
from gateway.lake.ddl.alterations import apply
from gateway.lake.ddl.definitions import Definition, define
from gateway.lake.tables import internal_names
from gateway.lake.tables.internal_names import is_internal
from gateway.lake.tables.schemas import read_schema
from gateway.lake.writing.conversion import plan_upload
from gateway.wire.ddl_messages import AddColumn, Alteration, RenameColumn, RenameField, TableDefinition

NAMES = sorted(value for name, value in vars(internal_names).items() if name.isupper() and not name.startswith("_"))


def refusal(name: str) -> str:
    return f"column name '{name}' begins as the names that the gateway keeps for itself do"


def table(*names: str) -> Definition:
    return define("s.t", TableDefinition(pa.schema([(name, pa.int64()) for name in names])), "_rowid")


@pytest.mark.parametrize("name", [*NAMES, NAMES[0].upper(), "__deltaport", "__Deltaport2"])
def test_no_table_is_made_with_such_a_column(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        table("k", name)
    assert str(refused.value) == refusal(name)


@pytest.mark.parametrize("name", [*NAMES, NAMES[0].upper()])
def test_no_table_gets_such_a_column(name: str) -> None:
    changes: list[Alteration] = [
        AddColumn(pa.field(name, pa.int64())),
        RenameColumn("k", name),
        RenameField(("k",), name),
    ]
    for change in changes:
        with pytest.raises(RequestError) as refused:
            apply(table("k"), change)
        assert str(refused.value) == refusal(name)


@pytest.mark.parametrize("name", ["_deltaport_rowid", "deltaport", "my__deltaport_rowid", "_rowids"])
def test_other_names_are_free(name: str) -> None:
    assert not is_internal(name)
    assert table("k", name).find(name) is not None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", Operation)
def test_a_table_that_has_such_a_column_takes_no_statement(name: str, operation: Operation) -> None:
    fields = [{"name": each, "type": "long", "nullable": True, "metadata": {}} for each in ("_rowid", "k", name)]
    schema = read_schema(json.dumps({"fields": fields}), {}, "_rowid")
    upload = pa.schema([("k", pa.int64()), (name, pa.int64()), ("rowid", pa.int64())])
    with pytest.raises(PreconditionError, match=f"column '{name}' has a name that the gateway keeps for itself"):
        plan_upload(operation, schema, upload)
