"""Changing tables: how the rowid is found, and which of a table's forms is used."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gateway.access.callers import Caller
from gateway.catalog.calls import Call
from gateway.catalog.changes import (
    BatchDeletable,
    BatchUpdatable,
    Deletable,
    Insertable,
    Operation,
    Updatable,
    WriteContext,
    WriteOptions,
    abilities_of,
    can_delete,
    can_update,
    find_rowid_column,
    open_delete,
    open_insert,
    open_update,
    require_rowid,
)
from gateway.catalog.names import TableName
from gateway.errors import CancelledError, NotFoundError, PreconditionError, RequestError
from tests.flight.memory_changes import (
    BatchForms,
    BothForms,
    DeletesBatches,
    DeletesRows,
    Inserts,
    ListForms,
    MemoryRows,
    UpdatesBatches,
    UpdatesRows,
)

NAME = TableName("lake", "analytics", "events")
DATA = pa.table({"id": pa.array([10, 20, 30, 40, 50], pa.int64()), "name": list("abcde")})
ROWID = pa.field("rowid", pa.int64())
MARK = {b"is_rowid": b"1"}
SETS = pa.schema([pa.field("name", pa.string()), ROWID])
IDS = pa.schema([ROWID])
STRICT = WriteOptions(strict=True)
LENIENT = WriteOptions()
RETURNING = WriteOptions(returning=True, strict=True)
HERE = WriteContext(Call(caller=Caller("tester")))
GONE = WriteContext(Call(caller=Caller("tester"), is_cancelled=lambda: True))


class BothUpdates(UpdatesBatches, UpdatesRows):
    pass


class BothDeletes(DeletesBatches, DeletesRows):
    pass


class EverythingButInsert(BothUpdates, BothDeletes):
    pass


def names(rows: list[tuple[int, str]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"rowid": row_id, "name": name} for row_id, name in rows], schema=SETS)


def ids(*row_ids: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"rowid": row_id} for row_id in row_ids], schema=IDS)


UPDATERS = [UpdatesBatches, UpdatesRows, BothUpdates]
DELETERS = [DeletesBatches, DeletesRows, BothDeletes]


@pytest.mark.parametrize(
    ("schema", "position"),
    [
        (None, -1),
        (pa.schema([]), -1),
        (pa.schema([("a", pa.int64())]), -1),
        (pa.schema([("a", pa.int64()), ("rowid", pa.int64())]), 1),
        (pa.schema([("rowid", pa.int64()), ("a", pa.int64())]), 0),
        (pa.schema([pa.field("a", pa.int64()), pa.field("key", pa.int64(), metadata=MARK)]), 1),
        (pa.schema([pa.field("a", pa.int64(), metadata={b"is_rowid": b""})]), -1),
        (pa.schema([pa.field("a", pa.int64(), metadata={b"other": b"1"})]), -1),
        (pa.schema([("ROWID", pa.int64()), ("RowId", pa.int64())]), -1),
        (pa.schema([pa.field("rowid", pa.int64()), pa.field("key", pa.int64(), metadata=MARK)]), 0),
        (pa.schema([pa.field("key", pa.int64(), metadata=MARK), pa.field("rowid", pa.int64())]), 0),
        (pa.schema([("rowid", pa.string())]), 0),
    ],
)
def test_the_rowid_is_the_first_named_or_marked_field_from_the_left(schema: pa.Schema | None, position: int) -> None:
    assert find_rowid_column(schema) == position


@pytest.mark.parametrize("operation", [Operation.UPDATE, Operation.DELETE])
def test_an_upload_without_a_rowid_is_refused(operation: Operation) -> None:
    with pytest.raises(RequestError) as refused:
        require_rowid(operation, pa.schema([("a", pa.int64())]))
    assert refused.value.message == f"{operation.verb} requires rowid column in input schema"


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint64()])
def test_three_types_of_rowid_are_taken(kind: pa.DataType) -> None:
    assert require_rowid(Operation.UPDATE, pa.schema([("a", pa.string()), ("rowid", kind)])) == 1


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint32(), pa.float64(), pa.string(), pa.decimal128(18), pa.bool_()])
def test_other_types_of_rowid_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(RequestError) as refused:
        require_rowid(Operation.DELETE, pa.schema([("rowid", kind)]))
    assert refused.value.message == "rowid column must be Int64, Int32, or Uint64"


@pytest.mark.parametrize(
    ("kind", "update", "delete"),
    [
        (UpdatesBatches, "update_batches", None),
        (UpdatesRows, "update_rows", None),
        (BothUpdates, "update_batches", None),
        (DeletesBatches, None, "delete_batches"),
        (DeletesRows, None, "delete_rows"),
        (BothDeletes, None, "delete_batches"),
        (EverythingButInsert, "update_batches", "delete_batches"),
        (Inserts, None, None),
        (MemoryRows, None, None),
    ],
)
def test_the_compatibility_matrix_holds(kind: type[MemoryRows], update: str | None, delete: str | None) -> None:
    table = kind(NAME, DATA)
    assert (can_update(table), can_delete(table)) == (update is not None, delete is not None)
    if update is None:
        with pytest.raises(PreconditionError, match=r"^table does not support UPDATE operations$"):
            open_update(table, SETS, STRICT, HERE)
    else:
        statement = open_update(table, SETS, STRICT, HERE)
        statement.add(names([(1, "x")]))
        assert statement.commit() == 1
        assert table.rows[1] == {"id": 10, "name": "x"}
    if delete is None:
        with pytest.raises(PreconditionError, match=r"^table does not support DELETE operations$"):
            open_delete(table, IDS, STRICT, HERE)
    else:
        statement = open_delete(table, IDS, STRICT, HERE)
        statement.add(ids(2))
        assert statement.commit() == 1
        assert 2 not in table.rows
    assert table.called == [form for form in (update, delete) if form is not None]


def test_a_table_without_insert_says_so_by_name() -> None:
    with pytest.raises(PreconditionError, match=r"^table 'events' does not support INSERT operations$"):
        open_insert(MemoryRows(NAME, DATA), NAME, DATA.schema, STRICT, HERE)


def test_an_object_has_the_abilities_whose_methods_it_has() -> None:
    every = (Insertable, BatchUpdatable, Updatable, BatchDeletable, Deletable)
    table = ListForms(NAME, DATA)
    assert [isinstance(table, ability) for ability in every] == [True, False, True, False, True]
    assert all(isinstance(BothForms(NAME, DATA), ability) for ability in every)
    assert not any(isinstance(MemoryRows(NAME, DATA), ability) for ability in every)


def test_a_table_may_have_its_abilities_elsewhere() -> None:
    class Elsewhere:
        def __init__(self, able: object) -> None:
            self.able = able

        def changes(self) -> object:
            return self.able

    able = BatchForms(NAME, DATA)
    assert abilities_of(Elsewhere(able)) is able
    assert can_update(Elsewhere(able))
    assert not can_delete(Elsewhere(Inserts(NAME, DATA)))
    statement = open_insert(Elsewhere(able), NAME, DATA.schema, STRICT, HERE)
    statement.add(DATA.to_batches()[0])
    assert statement.commit() == 5


@pytest.mark.parametrize("kind", UPDATERS)
def test_rows_are_updated_wherever_the_rowid_stands(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)
    upload = pa.schema([ROWID, pa.field("id", pa.int64()), pa.field("name", pa.string())])
    statement = open_update(table, upload, STRICT, HERE)
    statement.add(pa.RecordBatch.from_pylist([{"rowid": 2, "id": 7, "name": "x"}], schema=upload))
    statement.add(pa.RecordBatch.from_pylist([{"rowid": 1, "id": 8, "name": "y"}], schema=upload))
    assert statement.commit() == 2
    assert (table.rows[1], table.rows[2]) == ({"id": 8, "name": "y"}, {"id": 7, "name": "x"})
    assert table.rows[3] == {"id": 30, "name": "c"}


@pytest.mark.parametrize("kind", DELETERS)
def test_three_of_five_rows_are_deleted_and_other_columns_ignored(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)
    statement = open_delete(table, SETS, STRICT, HERE)
    statement.add(names([(1, "whatever"), (3, "else")]))
    statement.add(names([(5, "there")]))
    assert statement.commit() == 3
    assert sorted(table.rows) == [2, 4]


@pytest.mark.parametrize("kind", UPDATERS)
def test_an_update_without_a_rowid_never_reaches_the_table(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)
    with pytest.raises(RequestError, match=r"^UPDATE requires rowid column in input schema$"):
        open_update(table, pa.schema([("name", pa.string())]), STRICT, HERE)
    assert table.called == []


@pytest.mark.parametrize("kind", DELETERS)
def test_a_delete_without_a_rowid_never_reaches_the_table(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)
    with pytest.raises(RequestError, match=r"^DELETE requires rowid column in input schema$"):
        open_delete(table, pa.schema([("name", pa.string())]), STRICT, HERE)
    with pytest.raises(RequestError, match=r"^rowid column must be Int64, Int32, or Uint64$"):
        open_delete(table, pa.schema([("rowid", pa.string())]), STRICT, HERE)
    assert table.called == []


@pytest.mark.parametrize("kind", UPDATERS)
@pytest.mark.parametrize("batches", [[], [names([])]])
def test_an_empty_update_affects_nothing(kind: type[MemoryRows], batches: list[pa.RecordBatch]) -> None:
    statement = open_update(kind(NAME, DATA), SETS, STRICT, HERE)
    for batch in batches:
        statement.add(batch)
    assert statement.commit() == 0


@pytest.mark.parametrize("kind", DELETERS)
@pytest.mark.parametrize("batches", [[], [ids()]])
def test_an_empty_delete_affects_nothing(kind: type[MemoryRows], batches: list[pa.RecordBatch]) -> None:
    statement = open_delete(kind(NAME, DATA), IDS, STRICT, HERE)
    for batch in batches:
        statement.add(batch)
    assert statement.commit() == 0


@pytest.mark.parametrize("kind", UPDATERS)
def test_a_cancelled_update_changes_nothing(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)
    statement = open_update(table, SETS, STRICT, GONE)
    statement.add(names([(1, "x")]))
    with pytest.raises(CancelledError):
        statement.commit()
    statement.abort()
    assert table.rows[1]["name"] == "a"


@pytest.mark.parametrize("kind", DELETERS)
def test_a_cancelled_delete_changes_nothing(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)
    statement = open_delete(table, IDS, STRICT, GONE)
    statement.add(ids(1))
    with pytest.raises(CancelledError):
        statement.commit()
    statement.abort()
    assert len(table.rows) == 5


@pytest.mark.parametrize("kind", UPDATERS)
def test_an_unknown_row_is_an_error_only_where_it_must_be(kind: type[MemoryRows]) -> None:
    table = kind(NAME, DATA)

    def update(options: WriteOptions) -> int:
        statement = open_update(table, SETS, options, HERE)
        statement.add(names([(1, "x"), (99, "y")]))
        return statement.commit()

    with pytest.raises(NotFoundError, match=r"^row_id 99 not found in table$"):
        update(STRICT)
    assert table.rows[1]["name"] == "a"
    assert update(LENIENT) == 1
    assert table.rows[1]["name"] == "x"


def test_an_update_by_list_returns_the_values_it_was_given() -> None:
    statement = open_update(UpdatesRows(NAME, DATA), SETS, RETURNING, HERE)
    batch = names([(1, "x"), (2, "y")])
    assert statement.reply_schema == SETS
    assert statement.add(batch) == batch
    assert statement.commit() == 2


def test_without_returning_nothing_is_answered() -> None:
    for kind in UPDATERS:
        assert open_update(kind(NAME, DATA), SETS, STRICT, HERE).add(names([(1, "x")])) is None


def test_a_batch_form_returns_deleted_rows_as_they_were() -> None:
    statement = open_delete(DeletesBatches(NAME, DATA), IDS, RETURNING, HERE)
    returned = statement.add(ids(2))
    assert returned is not None
    assert returned.to_pylist() == [{"id": 20, "name": "b", "rowid": 2}]
    assert statement.commit() == 1


def test_a_delete_by_list_cannot_return_rows_and_says_so() -> None:
    table = DeletesRows(NAME, DATA)
    with pytest.raises(PreconditionError, match=r"^table does not support DELETE with RETURNING$"):
        open_delete(table, IDS, RETURNING, HERE)
    assert len(table.rows) == 5


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint64()])
def test_a_list_holds_the_ids_whatever_their_type(kind: pa.DataType) -> None:
    table = DeletesRows(NAME, DATA)
    upload = pa.schema([("rowid", kind)])
    statement = open_delete(table, upload, STRICT, HERE)
    statement.add(pa.RecordBatch.from_arrays([pa.array([1, 2], kind)], schema=upload))
    assert statement.commit() == 2


def test_a_null_rowid_in_a_list_is_refused() -> None:
    table = DeletesRows(NAME, DATA)
    statement = open_delete(table, IDS, LENIENT, HERE)
    statement.add(ids(1, None))
    with pytest.raises(RequestError, match=r"^rowid must not be null$"):
        statement.commit()
    assert len(table.rows) == 5


def test_an_aborted_list_statement_applies_nothing() -> None:
    table = DeletesRows(NAME, DATA)
    statement = open_delete(table, IDS, STRICT, HERE)
    statement.add(ids(1))
    statement.abort()
    statement.abort()
    assert statement.commit() == 0
    assert table.called == []
