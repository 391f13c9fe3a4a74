"""ALTER TABLE as an edit of the definition: what follows a column, and what refuses to let it go. No Spark."""

from __future__ import annotations

import copy
import json
from typing import Any

import pyarrow as pa
import pytest

from gateway.errors import GatewayError
from gateway.lake.ddl.alterations import EveryRow, NoDuplicates, NoNulls, apply
from gateway.lake.ddl.definitions import Definition, define, first_commit
from gateway.wire.ddl_messages import (
    AddColumn,
    AddConstraint,
    AddField,
    Alteration,
    ChangeColumnType,
    DropNotNull,
    RemoveColumn,
    RemoveField,
    RenameColumn,
    RenameField,
    SetDefault,
    SetNotNull,
    TableDefinition,
)

STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])
COLUMNS = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("tag", pa.string()),
        ("plain", pa.int64()),
        ("st", STRUCT),
        ("li", pa.list_(STRUCT)),
        ("mp", pa.map_(pa.string(), STRUCT)),
    ]
)


def table(**options: Any) -> Definition:
    wanted = TableDefinition(
        COLUMNS, frozenset([1]), ("score >= 0", "length(name) > 0"), ("id",), (("tag",), ("name", "tag"))
    )
    made = define("s.t", wanted, "_rowid")
    # As Delta gives it back: with its own notes at every column.
    metadata = json.loads(first_commit(made).splitlines()[2])["metaData"]
    properties = {**metadata["configuration"], **options}
    return Definition("s.t", "_rowid", json.loads(metadata["schemaString"])["fields"], properties)


def names(definition: Definition) -> list[str]:
    return [each["name"] for each in definition.fields]


def test_a_renamed_column_takes_keys_and_checks_along_and_keeps_its_place_in_files() -> None:
    definition = table()
    physical = definition.column("name")["metadata"]
    apply(definition, RenameColumn("NAME", 'full "name"'))
    assert definition.column('full "name"')["metadata"] == physical
    assert definition.unique_keys == [["tag"], ['full "name"', "tag"]]
    assert definition.checks()["check_2"] == 'coalesce((LENGTH(`full "name"`) > 0), true)'
    assert definition.original_check("check_2") == 'LENGTH("full ""name""") > 0'
    apply(definition, RenameColumn("id", "key"))
    assert definition.primary_key == ["key"]
    assert definition.checks()["check_1"] == "coalesce((`score` >= 0), true)"


def test_cascade_drops_what_depends_on_the_column() -> None:
    definition = table(**{"delta.dataSkippingStatsColumns": "_rowid,`name`,score"})
    apply(definition, RemoveColumn("name", cascade=True))
    assert "name" not in names(definition)
    assert definition.unique_keys == [["tag"]]
    assert list(definition.checks()) == ["check_1"]
    assert definition.properties["delta.dataSkippingStatsColumns"] == "_rowid,score"
    apply(definition, RemoveColumn("id", cascade=True))
    assert definition.primary_key == []


def test_fields_are_renamed_and_dropped_at_any_depth() -> None:
    definition = table()
    apply(definition, RenameField(("st", "X"), "xx"))
    apply(definition, RemoveField(("li", "element", "y")))
    apply(definition, RenameField(("mp", "value", "y"), "why"))
    assert [each["name"] for each in definition.column("st")["type"]["fields"]] == ["xx", "y"]
    assert [each["name"] for each in definition.column("li")["type"]["elementType"]["fields"]] == ["x"]
    assert [each["name"] for each in definition.column("mp")["type"]["valueType"]["fields"]] == ["x", "why"]


def test_not_null_keys_and_checks_ask_for_proof() -> None:
    assert apply(table(), SetNotNull("plain")).proofs == (NoNulls("plain"),)
    assert apply(table(), AddConstraint("UNIQUE(plain, ID)")).proofs == (NoDuplicates(("plain", "id"), "unique"),)
    assert apply(table(), AddConstraint("CHECK (plain > 0)")).proofs == (
        EveryRow("coalesce((`plain` > 0), true)", "plain > 0"),
    )
    bare = define("s.t", TableDefinition(COLUMNS), "_rowid")
    assert apply(bare, AddConstraint("PRIMARY KEY(id)")).proofs == (NoNulls("id"), NoDuplicates(("id",), "primary key"))
    assert bare.primary_key == ["id"]
    assert not bare.column("id")["nullable"]


def test_a_default_is_kept_for_spark_and_in_the_clients_words() -> None:
    definition = table()
    apply(definition, SetDefault("name", r"'it''s \ me'"))
    metadata = definition.column("name")["metadata"]
    assert metadata["CURRENT_DEFAULT"] == r"'it\'s \\ me'"
    assert json.loads(metadata["deltaport.default"])["text"] == r"'it''s \ me'"
    assert "allowColumnDefaults" in definition.needed_features()
    apply(definition, SetDefault("name", "NULL"))
    assert "CURRENT_DEFAULT" not in definition.column("name")["metadata"]
    apply(definition, SetDefault("score", "random()"))
    assert "CURRENT_DEFAULT" not in definition.column("score")["metadata"], "Spark has no such default"


NOTHING_TO_DO: list[Alteration] = [
    AddColumn(pa.field("NAME", pa.int8()), if_not_exists=True),
    RemoveColumn("nosuch", if_exists=True),
    RenameColumn("name", "name"),
    ChangeColumnType(pa.field("plain", pa.int64()), "CAST(plain AS BIGINT)"),
    ChangeColumnType(pa.field("st", STRUCT), "CAST(st AS STRUCT(x INTEGER, y VARCHAR))"),
    SetNotNull("name"),
    DropNotNull("plain"),
    SetDefault("name", "NULL"),
    RemoveField(("st", "nosuch"), if_exists=True),
    AddConstraint("UNIQUE(tag)"),
]


@pytest.mark.parametrize("change", NOTHING_TO_DO, ids=repr)
def test_what_is_so_already_needs_no_commit(change: Alteration) -> None:
    definition = table()
    before = copy.deepcopy(definition)
    assert not apply(definition, change).is_needed
    assert definition == before


FOREIGN_CHECK = {"delta.constraints.theirs": "plain > 5 AND st.x > 1"}
REFUSED: list[tuple[Alteration, dict[str, str], str]] = [
    (AddColumn(pa.field("ID", pa.int8())), {}, "already has a column"),
    (AddColumn(pa.field("_rowid", pa.int64())), {}, "row ids"),
    (AddColumn(pa.field("u", pa.dense_union([pa.field("x", pa.int8())]))), {}, "UNION"),
    (RemoveColumn("nosuch"), {}, "no column 'nosuch'"),
    (RemoveColumn("_rowid"), {}, "no column '_rowid'"),
    (RemoveColumn("id"), {}, "primary key"),
    (RemoveColumn("tag"), {}, "UNIQUE"),
    (RemoveColumn("score"), {}, "CHECK"),
    (RemoveColumn("plain"), FOREIGN_CHECK, "CHECK"),
    (RemoveColumn("plain"), {"delta.columnMapping.mode": "none"}, "column mapping"),
    (RenameColumn("nosuch", "x"), {}, "nosuch"),
    (RenameColumn("name", "SCORE"), {}, "already has"),
    (RenameColumn("name", "rowid"), {}, "row ids"),
    (RenameColumn("name", ""), {}, "empty"),
    (RenameColumn("plain", "x"), FOREIGN_CHECK, "others made"),
    (RenameColumn("plain", "x"), {"delta.columnMapping.mode": "none"}, "column mapping"),
    (RenameField(("st", "x"), "xx"), FOREIGN_CHECK, "CHECK"),
    (RenameField(("st", "nosuch"), "x"), {}, "no field 'st.nosuch'"),
    (RenameField(("st", "x"), "Y"), {}, "already has a field"),
    (RenameField(("plain", "x"), "y"), {}, "no field"),
    (RemoveField(("st", "nosuch")), {}, "no field"),
    (AddField(("st",)), {}, "does not send"),
    (ChangeColumnType(pa.field("id", pa.int64()), "CAST(id AS BIGINT)"), {}, "key depends"),
    (ChangeColumnType(pa.field("score", pa.int64()), "CAST(score AS BIGINT)"), {}, "CHECK"),
    (ChangeColumnType(pa.field("plain", pa.string()), "upper(nosuch)"), {}, "nosuch"),
    (ChangeColumnType(pa.field("plain", pa.string()), "random()"), {}, "random"),
    (ChangeColumnType(pa.field("plain", pa.string()), "'x'; DROP TABLE t"), {}, "cannot be read as SQL"),
    (SetDefault("nosuch", "1"), {}, "nosuch"),
    (SetDefault("plain", "'text'"), {}, "plain value"),
    (SetDefault("plain", "1; DROP TABLE t"), {}, "one expression"),
    (SetDefault("plain", "id"), {}, "'id'"),
    (SetDefault("plain", "(SELECT 1)"), {}, "sub-queries"),
    (SetDefault("plain", "1 +"), {}, "cannot be read"),
    (SetDefault("plain", "9223372036854775808"), {}, "plain value"),
    (SetNotNull("nosuch"), {}, "nosuch"),
    (DropNotNull("id"), {}, "primary key"),
    (AddConstraint("PRIMARY KEY(plain)"), {}, "already"),
    (AddConstraint("UNIQUE(nosuch)"), {}, "nosuch"),
    (AddConstraint("UNIQUE(st)"), {}, "nested"),
    (AddConstraint("FOREIGN KEY (id) REFERENCES u (id)"), {}, "FOREIGN KEY"),
    (AddConstraint("CHECK (nosuch > 1)"), {}, "nosuch"),
]


@pytest.mark.parametrize(("change", "properties", "named"), REFUSED, ids=lambda value: repr(value)[:60])
def test_what_cannot_be_is_refused_by_name(change: Alteration, properties: dict[str, str], named: str) -> None:
    with pytest.raises(GatewayError, match=named) as failure:
        apply(table(**properties), change)
    assert failure.value.message.count(". ") == 0, "one sentence"


def test_the_last_column_and_the_last_field_stay() -> None:
    definition = define("s.t", TableDefinition(pa.schema([("st", pa.struct([("x", pa.int8())]))])), "_rowid")
    with pytest.raises(GatewayError, match="only one"):
        apply(definition, RemoveColumn("st"))
    with pytest.raises(GatewayError, match="only field"):
        apply(definition, RemoveField(("st", "x")))


def test_a_partition_column_stays_and_keeps_its_type_and_may_be_renamed() -> None:
    definition = table()
    definition.partition_columns.append("plain")
    with pytest.raises(GatewayError, match="partitioned"):
        apply(definition, RemoveColumn("plain"))
    with pytest.raises(GatewayError, match="partitioned"):
        apply(definition, ChangeColumnType(pa.field("plain", pa.string()), "CAST(plain AS VARCHAR)"))
    apply(definition, RenameColumn("plain", "part"))
    assert definition.partition_columns == ["part"]


def test_columns_of_generated_columns_stay() -> None:
    definition = table()
    definition.column("score")["metadata"]["delta.generationExpression"] = "plain * 2"
    for change in (RemoveColumn("plain"), RenameColumn("plain", "p"), RenameColumn("score", "p")):
        with pytest.raises(GatewayError, match="generated"):
            apply(definition, change)
