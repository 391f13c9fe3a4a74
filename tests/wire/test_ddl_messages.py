"""Bodies of the DDL actions: what the client sends is understood, what is malformed is named."""

from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest

from gateway.errors import RequestError
from gateway.wire.ddl_messages import (
    ALTERATIONS,
    AddColumn,
    AddConstraint,
    AddField,
    ChangeColumnType,
    DropNotNull,
    OnConflict,
    RemoveColumn,
    RemoveField,
    RenameColumn,
    RenameField,
    RenameTable,
    SetDefault,
    SetNotNull,
    decode_alter,
    decode_create_schema,
    decode_create_table,
    decode_drop_schema,
    decode_drop_table,
)
from tests.airport import requests
from tests.captures import rpcs

COLUMNS = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("c", pa.string())])
BODY = requests.Alter("lake", "s", "t", ignore_not_found=True)
FIELD = pa.field("a", pa.int64())
ALTERED = [
    ("add_column", BODY.add_column(FIELD, if_column_not_exists=True), AddColumn(FIELD, True)),
    ("remove_column", BODY.remove_column("a", if_column_exists=True), RemoveColumn("a", True, False)),
    ("remove_column", BODY.remove_column("a", cascade=True), RemoveColumn("a", False, True)),
    ("rename_column", BODY.rename_column("a", "b"), RenameColumn("a", "b")),
    ("rename_table", BODY.rename_table("u"), RenameTable("u")),
    (
        "change_column_type",
        BODY.change_column_type(FIELD, "CAST(a AS BIGINT)"),
        ChangeColumnType(FIELD, "CAST(a AS BIGINT)"),
    ),
    ("set_default", BODY.set_default("a", "42"), SetDefault("a", "42")),
    ("set_not_null", BODY.set_not_null("a"), SetNotNull("a")),
    ("drop_not_null", BODY.drop_not_null("a"), DropNotNull("a")),
    ("add_field", BODY.add_field(["st"], pa.int32()), AddField(("st",))),
    ("rename_field", BODY.rename_field(["st", "b"], "bb"), RenameField(("st", "b"), "bb")),
    ("remove_field", BODY.remove_field(["st", "a"], if_column_exists=True), RemoveField(("st", "a"), True, False)),
    ("add_constraint", BODY.add_constraint("PRIMARY KEY(id)"), AddConstraint("PRIMARY KEY(id)")),
]


@pytest.mark.parametrize(
    ("action", "body", "change"), ALTERED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_alteration_is_understood(action: str, body: bytes, change: object) -> None:
    request = decode_alter(action, body)
    assert (request.catalog, request.schema, request.table) == ("lake", "s", "t")
    assert request.change == change


def test_every_alteration_has_a_test() -> None:
    assert {action for action, _, _ in ALTERED} == set(ALTERATIONS)


def test_constraint_lists_become_one_definition() -> None:
    body = requests.create_table(
        "lake", "s", "t", COLUMNS, on_conflict="ignore", not_null_constraints=[1, 0], unique_constraints=[2],
        check_constraints=["(a >= 0)"], unique_columns=["b"], multi_key_primary_keys=["b", "a"],
        extra_constraints=["UNIQUE(b, c)"],
    )  # fmt: skip
    request = decode_create_table(body)
    assert (request.catalog, request.schema, request.table, request.on_conflict) == (
        "lake",
        "s",
        "t",
        OnConflict.IGNORE,
    )
    wanted = request.definition
    assert wanted.columns == COLUMNS
    assert wanted.not_null == {0, 1}
    assert wanted.primary_key == ("a", "b"), "the client loses the order: the table's order counts"
    assert wanted.unique == (("c",), ("b",))
    assert wanted.checks == ("(a >= 0)",)
    assert wanted.constraints == ("UNIQUE(b, c)",)


def test_schemas_and_drops_are_understood() -> None:
    assert decode_create_schema(requests.create_schema("lake", "s")).schema == "s"
    assert decode_drop_schema(requests.drop_schema("lake", "s", ignore_not_found=True)).ignore_not_found
    dropped = decode_drop_table(requests.drop_table("lake", "s", "t"))
    assert (dropped.schema, dropped.table, dropped.ignore_not_found) == ("s", "t", False)


def _create(**fields: object) -> bytes:
    whole = {"catalog_name": "lake", "schema_name": "s", "table_name": "t", **fields}
    return msgpack.packb({"arrow_schema": COLUMNS.serialize().to_pybytes(), **whole})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "msgpack"),
        (b"\x93\x01\x02\x03", "map"),
        (msgpack.packb({"schema_name": "s", "table_name": "t"}), "arrow_schema"),
        (_create(arrow_schema=b"no schema"), "arrow_schema"),
        (_create(arrow_schema=7), "arrow_schema"),
        (_create(table_name=None), "table_name"),
        (_create(table_name=b"\xff\xfe"), "table_name"),
        (_create(on_conflict="perhaps"), "on_conflict"),
        (_create(not_null_constraints=[3]), "not_null_constraints"),
        (_create(not_null_constraints=["a"]), "not_null_constraints"),
        (_create(check_constraints="a > 0"), "check_constraints"),
        (_create(check_constraints=[1]), "check_constraints"),
        (_create(primary_key_columns=["a", "b"]), "primary key"),
        (_create(primary_key_columns=["a"], multi_key_primary_keys=["b"]), "primary key"),
    ],
)
def test_a_malformed_table_is_refused_by_name(body: bytes, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        decode_create_table(body)


@pytest.mark.parametrize(
    ("action", "fields", "named"),
    [
        ("add_column", {}, "column_schema"),
        ("add_column", {"column_schema": COLUMNS.serialize().to_pybytes()}, "one column"),
        ("remove_column", {"removed_column": "a", "cascade": "yes"}, "cascade"),
        ("rename_column", {"old_name": "a"}, "new_name"),
        ("rename_field", {"column_path": [], "new_name": "x"}, "column_path"),
        ("rename_field", {"column_path": "st.a", "new_name": "x"}, "column_path"),
        ("set_default", {"column_name": "a"}, "expression"),
    ],
)
def test_a_malformed_alteration_is_refused_by_name(action: str, fields: dict[str, object], named: str) -> None:
    body = msgpack.packb({"catalog": "lake", "schema": "s", "name": "t", "ignore_not_found": False, **fields})
    with pytest.raises(RequestError, match=named):
        decode_alter(action, body)


CAPTURED = [(action, rpc.body) for action in ALTERATIONS for rpc in rpcs("DoAction", action)]


def test_what_the_real_client_sends_is_understood() -> None:
    assert {action for action, _ in CAPTURED} == set(ALTERATIONS) - {"add_constraint"}
    for action, body in CAPTURED:
        decode_alter(action, body)
    for rpc in rpcs("DoAction", "create_table"):
        decode_create_table(rpc.body)
    for rpc in rpcs("DoAction", "drop_table"):
        decode_drop_table(rpc.body)
    for rpc in rpcs("DoAction", "drop_schema"):
        decode_drop_schema(rpc.body)
    for rpc in rpcs("DoAction", "create_schema"):
        decode_create_schema(rpc.body)
