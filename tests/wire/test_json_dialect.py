"""The JSON dialect: what is read, what is refused and in which words, and the replies."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.wire import json_dialect
from gateway.wire.json_dialect import (
    DeleteCommand,
    InsertCommand,
    UpdateCommand,
    decode_delete,
    decode_put,
    encode_delete_reply,
    encode_put_reply,
    encode_rows,
)

INSERT = {"operation": "insert", "schema_name": "analytics", "table_name": "events"}
UPDATE = {**INSERT, "operation": "update", "row_ids": [1, 5]}
DELETE = {"schema_name": "analytics", "table_name": "events", "row_ids": [1, 5]}


def put(**fields: Any) -> InsertCommand | UpdateCommand:
    return decode_put(json.dumps(fields).encode())


def delete(**fields: Any) -> DeleteCommand:
    return decode_delete(json.dumps(fields).encode())


def test_the_contracts_examples_are_read() -> None:
    assert put(**INSERT, returning=False) == InsertCommand(schema="analytics", table="events")
    assert put(**UPDATE, returning=True) == UpdateCommand(
        schema="analytics", table="events", row_ids=(1, 5), returning=True
    )
    assert delete(**DELETE) == DeleteCommand(schema="analytics", table="events", row_ids=(1, 5))


def test_every_optional_field_is_kept() -> None:
    options = {
        "catalog_name": "lake",
        "returning": True,
        "returning_columns": ["b", "a"],
        "read_version": 7,
        "idempotency_key": "k-1",
    }
    for command in (put(**INSERT, **options), put(**UPDATE, **options), delete(**DELETE, **options)):
        assert (command.catalog, command.returning, command.returning_columns) == ("lake", True, ("b", "a"))
        assert (command.read_version, command.idempotency_key) == (7, "k-1")


def test_a_null_is_an_absent_field() -> None:
    assert put(**INSERT, catalog_name=None, returning=None, returning_columns=None, read_version=None) == put(**INSERT)


def test_row_ids_reach_to_the_ends_of_64_bits() -> None:
    ends = [-(2**63), 0, 2**63 - 1]
    assert delete(**{**DELETE, "row_ids": ends}).row_ids == tuple(ends)


def test_a_million_row_ids_are_taken_and_one_more_is_not() -> None:
    most = json_dialect.MAX_ROW_IDS
    assert len(delete(**{**DELETE, "row_ids": [1] * most}).row_ids) == most
    with pytest.raises(RequestError, match="'row_ids' must not hold more than 1000000 items"):
        delete(**{**DELETE, "row_ids": [1] * (most + 1)})


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "command: the request is not valid JSON"),
        (b"{", "command: the request is not valid JSON"),
        (b"\xff\xfe", "command: the request is not valid JSON"),
        (b"\xef\xbb\xbf{}", "command: the request is not valid JSON"),
        (json.dumps(INSERT).encode("utf-16"), "command: the request is not valid JSON"),
        (b"{} {}", "command: the request is not valid JSON"),
        (b"{'operation': 'insert'}", "command: the request is not valid JSON"),
        (b'{"read_version": NaN}', "command: the request is not valid JSON"),
        (b'{"read_version": -Infinity}', "command: the request is not valid JSON"),
        (b'{"read_version": ' + b"9" * 10_000 + b"}", "command: the request is not valid JSON"),
        (b"[" * 100_000, "command: the request is not valid JSON"),
        (b'{"a":' * 100_000, "command: the request is not valid JSON"),
        (msgpack.packb(INSERT), "command: the request is not valid JSON"),
        (b"[]", "command: the request must be a JSON object"),
        (b"null", "command: the request must be a JSON object"),
        (b'"insert"', "command: the request must be a JSON object"),
        (b"{}", "command: field 'operation' is missing"),
        (b'{"operation": "insert", "operation": "update"}', "command: field 'operation' is given twice"),
        (b" " * (json_dialect.MAX_DOCUMENT_BYTES + 1), "command: the JSON is larger than 16777216 bytes"),
    ],
)
def test_what_is_not_a_json_object_is_refused(raw: bytes, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode_put(raw)
    assert refused.value.message == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"operation": ""}, "field 'operation' must not be empty"),
        ({"operation": 1}, "field 'operation' must be text"),
        (
            {"operation": "delete"},
            "field 'operation' must be 'insert' or 'update'; DELETE is the action 'delete'",
        ),
        ({"operation": "INSERT"}, "field 'operation' must be 'insert' or 'update'; DELETE is the action 'delete'"),
        ({"schema_name": None}, "field 'schema_name' is missing"),
        ({"schema_name": ""}, "field 'schema_name' must not be empty"),
        ({"schema_name": ["a"]}, "field 'schema_name' must be text"),
        ({"schema_name": "x" * 1001}, "field 'schema_name' must not be longer than 1000 characters"),
        ({"table_name": None}, "field 'table_name' is missing"),
        ({"table_name": {}}, "field 'table_name' must be text"),
        ({"table_name": "a\ud800b"}, "field 'table_name' must be Unicode text"),
        ({"catalog_name": 3}, "field 'catalog_name' must be text"),
        ({"returning": 1}, "field 'returning' must be true or false"),
        ({"returning": "true"}, "field 'returning' must be true or false"),
        ({"returning_columns": "a"}, "field 'returning_columns' must be a list"),
        ({"returning_columns": [1]}, "field 'returning_columns' must be text"),
        ({"returning_columns": ["a", "a"]}, "field 'returning_columns' must not hold a name twice"),
        ({"returning_columns": ["a"] * 10_001}, "field 'returning_columns' must not hold more than 10000 items"),
        ({"read_version": -1}, "field 'read_version' must be a whole number of 64 bits, not below 0"),
        ({"read_version": 1.0}, "field 'read_version' must be a whole number of 64 bits, not below 0"),
        ({"read_version": True}, "field 'read_version' must be a whole number of 64 bits, not below 0"),
        ({"read_version": "1"}, "field 'read_version' must be a whole number of 64 bits, not below 0"),
        ({"read_version": 2**63}, "field 'read_version' must be a whole number of 64 bits, not below 0"),
        ({"idempotency_key": 5}, "field 'idempotency_key' must be text"),
        ({"row_ids": [1]}, "field 'row_ids' is unknown"),
        ({"Returning": True}, "field 'Returning' is unknown"),
        (
            {"a\n\x1b" + "x" * 100: 1},
            f"field 'a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}{'x' * 57}' is unknown",
        ),
    ],
)
def test_a_defect_is_named_by_field_and_rule(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError) as refused:
        put(**{**INSERT, **fields})
    assert refused.value.message == f"command: {text}"


@pytest.mark.parametrize("row_ids", [[], None])
def test_empty_row_ids_are_refused_in_the_contracts_words(row_ids: Any) -> None:
    with pytest.raises(RequestError) as refused:
        put(**{**UPDATE, "row_ids": row_ids})
    assert refused.value.message == "row_ids cannot be empty for UPDATE"
    with pytest.raises(RequestError) as refused:
        delete(**{**DELETE, "row_ids": row_ids})
    assert refused.value.message == "row_ids cannot be empty for DELETE"


def test_absent_row_ids_are_empty_ones() -> None:
    with pytest.raises(RequestError, match=r"^row_ids cannot be empty for UPDATE$"):
        put(**{**INSERT, "operation": "update"})
    with pytest.raises(RequestError, match=r"^row_ids cannot be empty for DELETE$"):
        delete(schema_name="analytics", table_name="events")


@pytest.mark.parametrize("wrong", [True, 1.0, 1e3, "1", None, [1], {}, 2**63, -(2**63) - 1, 10**30])
def test_a_row_id_is_a_whole_number_of_64_bits(wrong: Any) -> None:
    with pytest.raises(RequestError) as refused:
        put(**{**UPDATE, "row_ids": [1, wrong]})
    assert refused.value.message == "command: field 'row_ids' must hold whole numbers of 64 bits"
    with pytest.raises(RequestError) as refused:
        delete(**{**DELETE, "row_ids": [1, wrong]})
    assert refused.value.message == "delete: field 'row_ids' must hold whole numbers of 64 bits"


@pytest.mark.parametrize("wrong", [1, "1,2", {"0": 1}, True])
def test_row_ids_are_a_list(wrong: Any) -> None:
    with pytest.raises(RequestError, match=r"^delete: field 'row_ids' must be a list$"):
        delete(**{**DELETE, "row_ids": wrong})


def test_a_delete_body_has_no_operation() -> None:
    with pytest.raises(RequestError, match=r"^delete: field 'operation' is unknown$"):
        delete(**DELETE, operation="delete")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_never_crash(raw: bytes) -> None:
    for decode in (decode_put, decode_delete):
        with pytest.raises(RequestError):
            decode(raw)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from([*UPDATE, "catalog_name", "returning", "returning_columns", "read_version", "other"])


@given(st.dictionaries(_names, _json | st.sampled_from(["insert", "update"]) | st.lists(st.integers(0, 9)), max_size=9))
def test_arbitrary_json_is_a_command_or_a_short_refusal(fields: dict[str, Any]) -> None:
    raw = json.dumps({**INSERT, **fields}).encode()
    for decode in (decode_put, decode_delete):
        try:
            command = decode(raw)
        except RequestError as refused:
            assert len(refused.message) < 150
        else:
            assert all(type(row_id) is int for row_id in getattr(command, "row_ids", ()))
            assert isinstance(command.returning, bool)


def test_a_put_reply_is_a_msgpack_map() -> None:
    assert encode_put_reply(3) == msgpack.packb({"status": "success", "affected_rows": 3})
    assert msgpack.unpackb(encode_put_reply(3, b"\x00\xff")) == {
        "status": "success",
        "affected_rows": 3,
        "returning_data": b"\x00\xff",
    }


def test_a_delete_reply_is_json_with_base64() -> None:
    assert encode_delete_reply(4) == b'{"status": "success", "affected_rows": 4}'
    reply = json.loads(encode_delete_reply(4, b"\x00\xff"))
    assert reply == {"status": "success", "affected_rows": 4, "returning_data": base64.b64encode(b"\x00\xff").decode()}


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_returned_rows_are_one_arrow_stream(rows: int) -> None:
    table = pa.table({"a": pa.array(range(rows), pa.int32()), "b": pa.array(["x"] * rows)})
    batches = table.to_batches(max_chunksize=2)
    assert pa.ipc.open_stream(encode_rows(table.schema, batches)).read_all() == table
