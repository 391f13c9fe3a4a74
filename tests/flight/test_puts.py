"""The JSON dialect over a real Flight server and in-memory tables of every ability."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pyarrow as pa
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    GatewayError,
    NotFoundError,
    RequestError,
    UnavailableError,
)
from gateway.wire.listing import ROWID_KEY
from tests.flight.memory_changes import (
    BatchForms,
    BothForms,
    DeletesRows,
    Inserts,
    ListForms,
    MemoryRows,
    PutServer,
    UpdatesRows,
)
from tests.flight.test_rpc import wait_for
from tests.refusals import read_refusal, refusal_of

EVENTS = pa.table(
    {
        "id": pa.array([10, 20, 30], pa.int64()),
        "name": pa.array(["a", "b", "c"], pa.string()),
        "score": pa.array([0.1, None, 0.3], pa.float64()),
    }
)
CHANGING = [ListForms, BatchForms, BothForms]


@pytest.fixture
def server() -> Iterator[PutServer]:
    with PutServer() as running:
        yield running


@pytest.fixture
def client(server: PutServer) -> Iterator[flight.FlightClient]:
    with flight.connect(server.location) as connected:
        yield connected


def command(operation: str, **fields: Any) -> bytes:
    return json.dumps({"operation": operation, "schema_name": "analytics", "table_name": "events", **fields}).encode()


def put(
    client: flight.FlightClient,
    raw: bytes,
    rows: pa.Table,
    chunk: int | None = None,
    options: flight.FlightCallOptions | None = None,
) -> dict[str, Any]:
    writer, replies = client.do_put(flight.FlightDescriptor.for_command(raw), rows.schema, options)
    with writer:
        writer.write_table(rows, max_chunksize=chunk)
        writer.done_writing()
        reply = replies.read()
        assert reply is None or replies.read() is None, "more than one reply"
    return msgpack.unpackb(reply.to_pybytes())


def insert(client: flight.FlightClient, rows: pa.Table, **fields: Any) -> dict[str, Any]:
    return put(client, command("insert", **fields), rows)


def update(client: flight.FlightClient, row_ids: list[int], rows: pa.Table, **fields: Any) -> dict[str, Any]:
    return put(client, command("update", row_ids=row_ids, **fields), rows)


def act(client: flight.FlightClient, body: bytes) -> dict[str, Any]:
    (result,) = client.do_action(flight.Action("delete", body))
    return json.loads(result.body.to_pybytes())


def delete(client: flight.FlightClient, row_ids: Any, **fields: Any) -> dict[str, Any]:
    body = {"schema_name": "analytics", "table_name": "events", "row_ids": row_ids, **fields}
    return act(client, json.dumps(body).encode())


def refusal(code: str, work: Callable[[], object]) -> str:
    """The text of a refused call; what Arrow adds to it is checked, and that nothing leaks."""
    refusal = refusal_of(work)
    assert refusal.code == code, refusal
    return refusal.text


def precondition(work: Callable[[], object]) -> str:
    refusal = refusal_of(work)
    assert (refusal.code, refusal.reason) == ("UNKNOWN", "FAILED_PRECONDITION"), refusal
    return refusal.text


def returned(data: bytes | str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(data) if isinstance(data, str) else data).read_all()


NOT_FOUND, INVALID = "NOT_FOUND", "INVALID_ARGUMENT"


# What works.


@pytest.mark.parametrize("kind", [Inserts, *CHANGING])
def test_rows_are_inserted(server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]) -> None:
    events = server.add(kind, EVENTS)
    assert insert(client, EVENTS) == {"status": "success", "affected_rows": 3}
    assert len(events.rows) == 6
    assert events.rows[4] == {"id": 10, "name": "a", "score": 0.1}
    assert (events.commits, events.aborts) == (1, 0)


@pytest.mark.parametrize("kind", CHANGING)
def test_rows_are_updated_by_position(server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]) -> None:
    events = server.add(kind, EVENTS)
    rows = EVENTS.slice(0, 2)
    assert update(client, [3, 1], rows) == {"status": "success", "affected_rows": 2}
    assert events.rows[3] == {"id": 10, "name": "a", "score": 0.1}
    assert events.rows[1] == {"id": 20, "name": "b", "score": None}


@pytest.mark.parametrize("kind", CHANGING)
def test_row_ids_run_on_over_many_batches(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    events = server.add(kind, pa.concat_tables([EVENTS] * 100))
    row_ids = list(range(300, 0, -1))
    rows = pa.table({"id": pa.array(row_ids, pa.int64())})
    raw = command("update", row_ids=row_ids)
    assert put(client, raw, rows, chunk=7)["affected_rows"] == 300
    assert all(row["id"] == row_id for row_id, row in events.rows.items())


@pytest.mark.parametrize("kind", CHANGING)
def test_some_columns_are_updated_alone(server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]) -> None:
    events = server.add(kind, EVENTS)
    assert update(client, [2], pa.table({"NAME": ["x"]}))["affected_rows"] == 1
    assert events.rows[2] == {"id": 20, "name": "x", "score": None}


@pytest.mark.parametrize("kind", CHANGING)
def test_rows_are_deleted(server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]) -> None:
    events = server.add(kind, EVENTS)
    assert delete(client, [1, 3]) == {"status": "success", "affected_rows": 2}
    assert list(events.rows) == [2]


def test_batch_forms_are_preferred(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BothForms, EVENTS)
    update(client, [1], EVENTS.slice(0, 1))
    delete(client, [1])
    assert events.called == ["update_batches", "delete_batches"]


def test_list_forms_serve_where_there_is_nothing_else(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(ListForms, EVENTS)
    update(client, [1], EVENTS.slice(0, 1))
    delete(client, [1])
    assert events.called == ["update_rows", "delete_rows"]


def test_statements_are_strict_and_return_nothing_unless_asked(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BatchForms, EVENTS)
    insert(client, EVENTS, returning_columns=["id"])
    update(client, [1], EVENTS.slice(0, 1))
    delete(client, [1])
    assert all(options.strict and not options.returning for options in events.options)


def test_an_empty_insert_affects_nothing(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(Inserts, EVENTS)
    assert insert(client, EVENTS.slice(0, 0)) == {"status": "success", "affected_rows": 0}
    writer, replies = client.do_put(flight.FlightDescriptor.for_command(command("insert")), EVENTS.schema)
    with writer:
        writer.done_writing()
        assert msgpack.unpackb(replies.read().to_pybytes())["affected_rows"] == 0
    assert len(events.rows) == 3


def test_columns_of_an_insert_come_in_any_order_and_case(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(Inserts, EVENTS)
    shuffled = EVENTS.select(["score", "id", "name"]).rename_columns(["Score", "ID", "name"])
    assert insert(client, shuffled)["affected_rows"] == 3
    assert events.rows[4] == {"id": 10, "name": "a", "score": 0.1}


def test_types_are_the_tables_to_cast(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BatchForms, EVENTS)
    narrow = pa.table({"id": pa.array([1], pa.int8()), "name": pa.array(["x"], pa.large_string()), "score": [2]})
    assert insert(client, narrow)["affected_rows"] == 1
    assert events.rows[4] == {"id": 1, "name": "x", "score": 2.0}
    assert "column 'id'" in refusal(INVALID, lambda: update(client, [1], pa.table({"id": ["no number"]})))
    assert (events.commits, events.aborts) == (1, 1)


def test_a_rowid_sent_with_new_rows_is_left_out(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(Inserts, EVENTS)
    assert insert(client, EVENTS.append_column("rowid", pa.array([7, 8, 9])))["affected_rows"] == 3
    assert list(events.rows) == [1, 2, 3, 4, 5, 6]


def test_a_mark_on_an_ordinary_column_does_not_make_it_the_rowid(
    server: PutServer, client: flight.FlightClient
) -> None:
    events = server.add(Inserts, EVENTS)
    marked = [field.with_metadata({ROWID_KEY: b"1", b"kept": b"1"}) for field in EVENTS.schema]
    rows = EVENTS.add_column(0, "rowid", pa.array([7, 8, 9])).cast(pa.schema([("rowid", pa.int64()), *marked]))
    assert insert(client, rows)["affected_rows"] == 3
    (upload,) = events.uploads
    assert upload.names == ["id", "name", "score"]
    assert all(field.metadata == {b"kept": b"1"} for field in upload)


def test_long_lists_of_row_ids_are_deleted_up_to_the_limit(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BatchForms, pa.table({"id": pa.array(range(1000), pa.int64())}))
    row_ids = [1 + index % 1000 for index in range(200_000)]
    assert delete(client, row_ids)["affected_rows"] == 1000
    assert events.rows == {}
    assert "more than 1000000" in refusal(INVALID, lambda: delete(client, [1] * 1_000_001))


# Returning.


@pytest.mark.parametrize("kind", [Inserts, BatchForms, BothForms])
def test_an_insert_returns_its_rows(server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]) -> None:
    server.add(kind, EVENTS)
    reply = insert(client, EVENTS, returning=True)
    assert reply["affected_rows"] == 3
    assert returned(reply["returning_data"]).select(EVENTS.schema.names).to_pylist() == EVENTS.to_pylist()


@pytest.mark.parametrize("kind", [BatchForms, BothForms])
def test_an_update_returns_whole_rows_as_they_are_now(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    server.add(kind, EVENTS)
    reply = update(client, [3, 1], pa.table({"name": ["x", "y"]}), returning=True)
    assert returned(reply["returning_data"]).to_pylist() == [
        {"id": 30, "name": "x", "score": 0.3, "rowid": 3},
        {"id": 10, "name": "y", "score": 0.1, "rowid": 1},
    ]


@pytest.mark.parametrize("kind", [BatchForms, BothForms])
def test_a_delete_returns_rows_as_they_were(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    server.add(kind, EVENTS)
    reply = delete(client, [2], returning=True)
    assert reply["affected_rows"] == 1
    assert returned(reply["returning_data"]).to_pylist() == [{"id": 20, "name": "b", "score": None, "rowid": 2}]


def test_returned_columns_are_those_asked_for_in_that_order(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BatchForms, EVENTS)
    asked = {"returning": True, "returning_columns": ["rowid", "SCORE", "id"]}
    for reply in (insert(client, EVENTS, **asked), update(client, [1], EVENTS.slice(0, 1), **asked)):
        assert returned(reply["returning_data"]).schema.names == ["rowid", "score", "id"]
    reply = delete(client, [1], **asked)
    assert returned(reply["returning_data"]).to_pylist() == [{"rowid": 1, "score": 0.1, "id": 10}]
    assert all(options.returning for options in events.options)


def test_a_returning_insert_of_nothing_returns_the_schema(server: PutServer, client: flight.FlightClient) -> None:
    server.add(Inserts, EVENTS)
    reply = insert(client, EVENTS.slice(0, 0), returning=True, returning_columns=["id"])
    assert returned(reply["returning_data"]).schema == pa.schema([("id", pa.int64())])


def test_an_update_by_list_returns_what_was_sent(server: PutServer, client: flight.FlightClient) -> None:
    server.add(ListForms, EVENTS)
    reply = update(client, [3], pa.table({"name": ["x"]}), returning=True)
    assert returned(reply["returning_data"]).to_pylist() == [{"name": "x", "rowid": 3}]
    fields = {"returning": True, "returning_columns": ["id"]}
    text = precondition(lambda: update(client, [3], pa.table({"name": ["y"]}), **fields))
    assert text == "table 'events' cannot return column 'id'"


def test_a_delete_by_list_cannot_return_rows(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(ListForms, EVENTS)
    assert precondition(lambda: delete(client, [3], returning=True)) == "table does not support DELETE with RETURNING"
    assert len(events.rows) == 3


def test_an_unknown_returned_column_is_refused(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BothForms, EVENTS)
    asked = {"returning": True, "returning_columns": ["id", "nope"]}
    expected = "returning_columns: table 'events' has no column 'nope'"
    assert refusal(INVALID, lambda: insert(client, EVENTS, **asked)) == expected
    assert refusal(INVALID, lambda: update(client, [1], EVENTS.slice(0, 1), **asked)) == expected
    assert refusal(INVALID, lambda: delete(client, [1], **asked)) == expected
    twice = {"returning": True, "returning_columns": ["id", "ID"]}
    assert refusal(INVALID, lambda: delete(client, [1], **twice)) == "returning_columns: column 'ID' is given twice"
    assert events.called == []


@pytest.mark.parametrize("operation", ["insert", "delete"])
def test_too_much_to_return_is_refused_before_the_commit(operation: str) -> None:
    """The limit is on the answer as it travels: what may be received is sent, and not a byte more."""
    most, size = 4096, 0
    with PutServer(returned_bytes=most) as server, flight.connect(server.location) as client:
        events = server.add(BatchForms, pa.table({"id": pa.array(range(20_000), pa.int64())}))
        for step, rows in enumerate(range(8, 400, 8)):
            ids = list(events.rows)[:rows]
            new = pa.table({"id": pa.array(range(rows), pa.int64())})
            try:
                reply = (
                    insert(client, new, returning=True)
                    if operation == "insert"
                    else delete(client, ids, returning=True)
                )
            except pa.ArrowInvalid as refused:
                assert read_refusal(refused).text == (
                    "the returned rows take more than 4096 bytes (limits.returned_bytes);"
                    " return fewer columns, or change fewer rows"
                )
                assert events.commits == step
                break
            assert returned(reply["returning_data"]).num_rows == rows
            size = len(json.dumps(reply) if operation == "delete" else msgpack.packb(reply))
            assert size <= most
        assert most - 600 < size, "refused too early, or never"


# The contract's error tables.


def test_a_missing_schema_or_table_is_not_found(server: PutServer, client: flight.FlightClient) -> None:
    server.add(BothForms, EVENTS, table="other")
    for call in (insert, lambda c, rows, **f: update(c, [1], rows, **f), lambda c, _rows, **f: delete(c, [1], **f)):
        missing = refusal(NOT_FOUND, lambda call=call: call(client, EVENTS, schema_name="nope"))
        assert missing == "schema 'nope' not found"
        assert refusal(NOT_FOUND, lambda call=call: call(client, EVENTS)) == "table 'analytics.events' not found"
        missing = refusal(NOT_FOUND, lambda call=call: call(client, EVENTS, catalog_name="nope"))
        assert missing == "catalog 'nope' not found; this gateway has: lake"


def test_a_table_dropped_by_others_is_not_found_and_forgotten(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BothForms, EVENTS)
    delete(client, [1])
    events.gone = True
    del server.source.found["analytics", "events"]
    assert refusal(NOT_FOUND, lambda: insert(client, EVENTS)) == "table 'analytics.events' not found"
    assert server.catalog.listing().tables == {}


@pytest.mark.parametrize("kind", [MemoryRows, UpdatesRows, DeletesRows])
def test_a_table_without_insert_is_read_only(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    server.add(kind, EVENTS)
    expected = "table 'events' does not support INSERT operations"
    assert precondition(lambda: insert(client, EVENTS)) == expected


@pytest.mark.parametrize("kind", [MemoryRows, Inserts, DeletesRows])
def test_a_table_without_update_has_no_rowid(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    server.add(kind, EVENTS)
    expected = "table 'events' does not support UPDATE (no rowid)"
    assert precondition(lambda: update(client, [1], EVENTS.slice(0, 1))) == expected


@pytest.mark.parametrize("kind", [MemoryRows, Inserts, UpdatesRows])
def test_a_table_without_delete_has_no_rowid(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    server.add(kind, EVENTS)
    assert precondition(lambda: delete(client, [1])) == "table 'events' does not support DELETE (no rowid)"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (EVENTS.select(["id", "name"]), "column mismatch: table has 3 columns, input has 2"),
        (EVENTS.append_column("more", EVENTS["id"]), "column mismatch: table has 3 columns, input has 4"),
        (pa.table({}), "column mismatch: table has 3 columns, input has 0"),
        (pa.table({"rowid": [1]}), "column mismatch: table has 3 columns, input has 0"),
        (
            EVENTS.rename_columns(["id", "nom\n", "score"]),
            "column mismatch: table 'events' has no column 'nom\ufffd'; columns are matched by name, in any order",
        ),
        (EVENTS.rename_columns(["id", "ID", "score"]), "column mismatch: column 'ID' is given twice"),
    ],
)
def test_an_insert_must_hold_the_tables_columns(
    server: PutServer, client: flight.FlightClient, rows: pa.Table, text: str
) -> None:
    events = server.add(Inserts, EVENTS)
    assert refusal(INVALID, lambda: insert(client, rows)) == text
    assert events.called == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            pa.table({"nope": [1]}),
            "column mismatch: table 'events' has no column 'nope'; columns are matched by name, in any order",
        ),
        (
            pa.table({"id": [1], "rowid": [1]}),
            "column mismatch: UPDATE takes the row ids from row_ids, not from a rowid column",
        ),
        (pa.table({}), "column mismatch: UPDATE sets no column"),
    ],
)
def test_an_update_must_hold_columns_of_the_table(
    server: PutServer, client: flight.FlightClient, rows: pa.Table, text: str
) -> None:
    events = server.add(BothForms, EVENTS)
    assert refusal(INVALID, lambda: update(client, [1], rows)) == text
    assert events.called == []


def test_empty_row_ids_are_refused(server: PutServer, client: flight.FlightClient) -> None:
    server.add(BothForms, EVENTS)
    assert refusal(INVALID, lambda: update(client, [], EVENTS)) == "row_ids cannot be empty for UPDATE"
    assert refusal(INVALID, lambda: delete(client, [])) == "row_ids cannot be empty for DELETE"
    assert refusal(INVALID, lambda: delete(client, None)) == "row_ids cannot be empty for DELETE"


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("row_ids", [[1, 2, 3, 3], [1, 2], [1]])
@pytest.mark.parametrize("chunk", [1, None])
def test_row_ids_and_rows_must_be_equally_many(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows], row_ids: list[int], chunk: int | None
) -> None:
    events = server.add(kind, EVENTS)
    before = dict(events.rows)
    text = refusal(INVALID, lambda: put(client, command("update", row_ids=row_ids), EVENTS, chunk))
    assert text == f"row_ids count ({len(row_ids)}) does not match input rows (3)"
    assert events.rows == before
    assert events.commits == 0


@pytest.mark.parametrize("kind", CHANGING)
def test_an_unknown_row_id_is_not_found_and_changes_nothing(
    server: PutServer, client: flight.FlightClient, kind: type[MemoryRows]
) -> None:
    events = server.add(kind, EVENTS)
    before = dict(events.rows)
    expected = "row_id 99 not found in table"
    assert refusal(NOT_FOUND, lambda: update(client, [1, 99], EVENTS.slice(0, 2))) == expected
    assert refusal(NOT_FOUND, lambda: delete(client, [1, 99])) == expected
    assert refusal(NOT_FOUND, lambda: delete(client, [2**63 - 1])) == f"row_id {2**63 - 1} not found in table"
    assert events.rows == before


# Context.


def test_the_transaction_and_the_read_version_reach_the_table(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BatchForms, EVENTS)
    transaction = server.transactions.begin()
    options = flight.FlightCallOptions(headers=[(b"x-transaction-id", transaction.encode())])
    put(client, command("insert", read_version=7), EVENTS, options=options)
    delete(client, [1], read_version=0)
    update(client, [2], EVENTS.slice(0, 1))
    assert [context.transaction for context in events.contexts] == [transaction, None, None]
    assert [context.read_version for context in events.contexts] == [7, 0, None]
    assert {context.caller for context in events.contexts} == {"anonymous"}


def test_a_refused_request_does_not_reach_the_table(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BothForms, EVENTS)
    refusal(INVALID, lambda: insert(client, EVENTS.select(["id"])))
    refusal(INVALID, lambda: update(client, [1], pa.table({"nope": [1]})))
    refusal(INVALID, lambda: delete(client, []))
    assert events.contexts == []


# Failures on the way.


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConstraintError("CHECK constraint failed"), "UNKNOWN"),
        (ConflictError("table 'events' changed; start over"), "UNKNOWN"),
        (UnavailableError("later"), "UNAVAILABLE"),
        (RequestError("a value does not fit"), INVALID),
        (NotFoundError("gone"), NOT_FOUND),
    ],
)
@pytest.mark.parametrize("where", ["before_add", "before_commit"])
def test_whatever_fails_aborts_the_statement(
    server: PutServer, client: flight.FlightClient, error: GatewayError, code: str, where: str
) -> None:
    events = server.add(BatchForms, EVENTS)

    def fail() -> None:
        raise error

    setattr(events, where, fail)
    for number, work in enumerate(
        [
            lambda: insert(client, EVENTS),
            lambda: update(client, [1], EVENTS.slice(0, 1)),
            lambda: delete(client, [1]),
        ],
        start=1,
    ):
        assert refusal(code, work) == error.message
        assert (events.commits, events.aborts) == (0, number)


def test_an_error_in_a_long_upload_keeps_its_code_and_text(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(Inserts, EVENTS)
    long = pa.concat_tables([EVENTS] * 100_000).combine_chunks()

    def fail() -> None:
        raise RequestError("a value does not fit")

    events.before_add = fail
    assert refusal(INVALID, lambda: put(client, command("insert"), long, chunk=1000)) == "a value does not fit"
    assert (events.commits, events.aborts) == (0, 1)


def test_a_fault_of_a_table_is_sent_as_a_reference(server: PutServer, client: flight.FlightClient) -> None:
    events = server.add(BatchForms, EVENTS)

    def fail() -> None:
        raise KeyError("/var/lib/secret.py")

    events.before_commit = fail
    text = refusal("INTERNAL", lambda: delete(client, [1]))
    assert re.fullmatch(r"internal error \(reference [0-9a-f]{8}\)", text)
    assert (events.commits, events.aborts) == (0, 1)


@pytest.mark.parametrize("raw", [command("insert"), command("update", row_ids=[1, 2, 3])])
def test_an_upload_whose_caller_gave_up_commits_nothing(
    server: PutServer, client: flight.FlightClient, raw: bytes
) -> None:
    events = server.add(BatchForms, EVENTS)
    impatient = flight.FlightCallOptions(timeout=0.5)
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(raw), EVENTS.schema, impatient)
    writer.write_table(EVENTS)
    wait_for(lambda: bool(server.outcomes), "the end of the call")
    with pytest.raises(flight.FlightTimedOutError):
        writer.close()
    assert server.outcomes == ["cancelled"]
    assert (events.commits, events.aborts) == (0, 1)


def test_an_upload_whose_caller_died_commits_nothing(server: PutServer) -> None:
    events = server.add(BatchForms, EVENTS)
    script = (
        "import os, sys, pyarrow as pa; from pyarrow import flight;"
        "rows = pa.table({'id': [1], 'name': ['x'], 'score': [0.5]});"
        "client = flight.connect(sys.argv[1]);"
        "writer, _ = client.do_put(flight.FlightDescriptor.for_command(sys.argv[2].encode()), rows.schema);"
        "writer.write_table(rows); sys.stdin.read(1); os._exit(9)"
    )
    arrived = threading.Event()
    events.before_add = arrived.set
    arguments = [sys.executable, "-c", script, server.location, command("insert").decode()]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE) as dying:
        assert arrived.wait(60)
        dying.communicate(b"x")
    wait_for(lambda: bool(server.outcomes), "the end of the call")
    assert server.outcomes == ["cancelled"]
    assert (events.commits, events.aborts) == (0, 1)
    assert len(events.rows) == 3


def test_a_caller_who_died_before_the_answer_is_no_fault(server: PutServer) -> None:
    """The commit stands; the call ends as cancelled, and nothing is logged as unexpected."""
    events = server.add(Inserts, EVENTS)
    script = (
        "import os, sys, pyarrow as pa; from pyarrow import flight;"
        "rows = pa.table({'id': [1], 'name': ['x'], 'score': [0.5]});"
        "client = flight.connect(sys.argv[1]);"
        "writer, _ = client.do_put(flight.FlightDescriptor.for_command(sys.argv[2].encode()), rows.schema);"
        "writer.write_table(rows); writer.done_writing(); sys.stdin.read(1); os._exit(9)"
    )
    committed = threading.Event()

    def leave() -> None:
        committed.set()
        wait_for(events.contexts[-1].is_cancelled, "the end of the caller")

    events.after_commit = leave
    arguments = [sys.executable, "-c", script, server.location, command("insert").decode()]
    with structlog.testing.capture_logs() as logged:
        with subprocess.Popen(arguments, stdin=subprocess.PIPE) as dying:
            assert committed.wait(60)
            dying.communicate(b"x")
        wait_for(lambda: bool(server.outcomes), "the end of the call")
    assert server.outcomes == ["cancelled"]
    assert logged == []
    assert (events.commits, len(events.rows)) == (1, 4)


class Upload:
    """An upload as the server reads it, broken where a test wants it."""

    def __init__(self, schema: pa.Schema | Exception, *chunks: pa.RecordBatch | Exception | None) -> None:
        self._schema = schema
        self._chunks = list(chunks)

    @property
    def schema(self) -> pa.Schema:
        if isinstance(self._schema, Exception):
            raise self._schema
        return self._schema

    def read_chunk(self) -> Any:
        if not self._chunks:
            raise StopIteration
        chunk = self._chunks.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        return type("Chunk", (), {"data": chunk, "app_metadata": None})()


def run_put(server: PutServer, upload: Upload, is_cancelled: Callable[[], bool] = lambda: False) -> list[bytes]:
    replies: list[bytes] = []
    writer = type("Writer", (), {"write": lambda _self, buffer: replies.append(buffer.to_pybytes())})()
    descriptor = flight.FlightDescriptor.for_command(command("insert"))
    server.puts.put(Call(is_cancelled=is_cancelled), descriptor, upload, writer)
    return replies


BATCH = EVENTS.to_batches()[0]


@pytest.mark.parametrize("broken", [pa.ArrowInvalid("x"), OSError("x"), flight.FlightInternalError("x")])
def test_a_broken_upload_is_refused_and_aborted(server: PutServer, broken: Exception) -> None:
    events = server.add(Inserts, EVENTS)
    with pytest.raises(RequestError, match=r"^the upload cannot be read$"):
        run_put(server, Upload(EVENTS.schema, BATCH, broken))
    with pytest.raises(RequestError, match=r"^the upload has no schema that can be read$"):
        run_put(server, Upload(broken))
    for ended in (Upload(EVENTS.schema, broken), Upload(broken)):
        with pytest.raises(CancelledError):
            run_put(server, ended, lambda: True)
    assert (events.commits, events.aborts) == (0, 2)


def test_messages_without_rows_are_passed_over(server: PutServer) -> None:
    events = server.add(Inserts, EVENTS)
    (reply,) = run_put(server, Upload(EVENTS.schema, None, BATCH, None))
    assert msgpack.unpackb(reply)["affected_rows"] == 3
    assert events.commits == 1


def test_a_caller_who_leaves_after_the_last_batch_gets_no_commit(server: PutServer) -> None:
    events = server.add(Inserts, EVENTS)
    asked = iter([False, True, True])
    with pytest.raises(CancelledError):
        run_put(server, Upload(EVENTS.schema, BATCH), lambda: next(asked))
    assert (events.commits, events.aborts) == (0, 1)


def test_a_cancelled_delete_commits_nothing(server: PutServer) -> None:
    events = server.add(BatchForms, EVENTS)
    body = json.dumps({"schema_name": "analytics", "table_name": "events", "row_ids": [1]}).encode()
    with pytest.raises(CancelledError):
        server.puts.delete(Call(is_cancelled=lambda: True), body)
    assert (events.commits, events.aborts) == (0, 1)


def test_many_callers_at_once_all_get_their_own_count(server: PutServer) -> None:
    events = server.add(BatchForms, EVENTS)
    together = threading.Barrier(8)
    counts: list[int] = []

    def work(number: int) -> None:
        with flight.connect(server.location) as client:
            together.wait(20)
            counts.append(insert(client, EVENTS.slice(0, number % 3 + 1))["affected_rows"])

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(counts) == [1, 1, 1, 2, 2, 2, 3, 3]
    assert len(events.rows) == 3 + sum(counts)


# Malformed requests.


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"operation": "insert"}', b'{"a": NaN}'])
def test_malformed_json_is_refused(server: PutServer, client: flight.FlightClient, raw: bytes) -> None:
    server.add(BothForms, EVENTS)
    assert refusal(INVALID, lambda: put(client, raw, EVENTS)).startswith("command: ")
    assert refusal(INVALID, lambda: act(client, raw)).startswith("delete: ")


def test_a_path_is_no_command(server: PutServer, client: flight.FlightClient) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("analytics", "events"), EVENTS.schema)
    text = refusal(INVALID, writer.close)
    assert text == "DoPut takes a command descriptor that holds a JSON object"


@pytest.mark.parametrize("name", ["..", "a\0b", "a" + chr(92) + "b", "_delta_log", "x" * 500])
def test_a_bad_name_is_an_invalid_argument(server: PutServer, client: flight.FlightClient, name: str) -> None:
    server.add(BothForms, EVENTS)
    with pytest.raises(pa.ArrowInvalid):
        delete(client, [1], table_name=name)
    with pytest.raises(pa.ArrowInvalid):
        insert(client, EVENTS, schema_name=name)


_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.integers(), max_size=3)
)
_fields = st.dictionaries(
    st.sampled_from(
        ["operation", "schema_name", "table_name", "row_ids", "returning", "returning_columns", "read_version", "x"]
    ),
    _values | st.sampled_from(["insert", "update"]),
    max_size=4,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60) | _fields.map(lambda fields: command(**{"operation": "update", **fields})))
def test_whatever_is_sent_the_answer_is_a_reply_or_a_clean_refusal(
    server: PutServer, client: flight.FlightClient, raw: bytes
) -> None:
    server.add(BothForms, EVENTS)
    for work in (lambda: put(client, raw, EVENTS), lambda: act(client, raw)):
        try:
            work()
        except (pa.ArrowInvalid, pa.ArrowKeyError) as refused:
            assert len(read_refusal(refused).text) < 250
