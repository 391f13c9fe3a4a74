"""Uploads become rows of the table's own types, or an error that names the column."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.changes import Operation
from gateway.errors import ConstraintError, GatewayError, PreconditionError, RequestError
from gateway.lake.tables.id_sets import IdSet, few_ranges
from gateway.lake.tables.internal_names import POSITION, ROWID_FIELD
from gateway.lake.tables.schemas import Column, TableSchema
from gateway.lake.values.types import stored_form
from gateway.lake.writing.change_sets import last_of_each
from gateway.lake.writing.conversion import convert, plan_upload
from gateway.lake.writing.staging import StagedRows, StagingFolder
from gateway.settings import StagingSettings


def table(**kinds: pa.DataType) -> TableSchema:
    return TableSchema(tuple(column(name, kind) for name, kind in kinds.items()), column("_rowid", pa.int64()), ())


def column(name: str, kind: pa.DataType) -> Column:
    form = stored_form(pa.field(name, kind))
    return Column(name, form.arrow, name != "must", None, None, name, None, form)


def converted(schema: TableSchema, operation: Operation = Operation.INSERT, **arrays: pa.Array) -> pa.Table:
    batch = pa.record_batch(list(arrays.values()), names=list(arrays))
    return convert(plan_upload(operation, schema, batch.schema), batch)


@pytest.mark.parametrize(
    ("stored", "uploaded", "value"),
    [
        (pa.string(), pa.array(["é"], pa.large_string()), "é"),
        (pa.string(), pa.array(["é"], pa.string_view()), "é"),
        (pa.string(), pa.array(["é"]).dictionary_encode(), "é"),
        (pa.binary(), pa.array([b"\x00"], pa.binary_view()), b"\x00"),
        (pa.int32(), pa.array([7], pa.int64()), 7),
        (pa.decimal128(12, 2), pa.array([Decimal("1.50")], pa.decimal128(9, 2)), Decimal("1.50")),
        (pa.date32(), pa.array([date(9999, 12, 31)]), date(9999, 12, 31)),
        (
            pa.timestamp("us", tz="UTC"),
            pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Paris")),
            datetime(2024, 1, 1, tzinfo=UTC),
        ),
        (pa.timestamp("us"), pa.array([datetime(1, 1, 1)], pa.timestamp("us")), datetime(1, 1, 1)),  # noqa: DTZ001
        (pa.list_(pa.field("element", pa.string())), pa.array([["a", None]], pa.list_(pa.large_string())), ["a", None]),
        (pa.bool_(), pa.ExtensionArray.from_storage(pa.bool8(), pa.array([2], pa.int8())), True),
    ],
)  # fmt: skip
def test_an_uploaded_column_becomes_the_stored_type(stored: pa.DataType, uploaded: pa.Array, value: object) -> None:
    rows = converted(table(c=stored), c=uploaded)
    assert rows.schema.field("c").type == stored
    assert rows.column("c").to_pylist() == [value]


@pytest.mark.parametrize(
    ("stored", "uploaded"),
    [
        (pa.int8(), pa.array([300], pa.int32())),
        (pa.decimal128(4, 2), pa.array([Decimal("123.45")], pa.decimal128(9, 2))),
        (pa.decimal128(9, 1), pa.array([Decimal("1.25")], pa.decimal128(9, 2))),
        (pa.int64(), pa.array(["seven"])),
        (pa.int64(), pa.array([1.5])),
        (pa.date32(), pa.array([[1]])),
        (pa.timestamp("us"), pa.array([0], pa.timestamp("us", tz="UTC"))),
        (pa.timestamp("us"), pa.array([1], pa.timestamp("ns"))),
    ],
)
def test_a_value_that_does_not_fit_names_the_column(stored: pa.DataType, uploaded: pa.Array) -> None:
    with pytest.raises(RequestError, match=r"column 'amount': a value does not fit"):
        converted(table(amount=stored), amount=uploaded)


def test_bad_utf8_is_refused_with_the_column_named() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    with pytest.raises(RequestError, match="not valid Arrow data: column 'c'"):
        converted(table(c=pa.string()), c=broken)


def test_null_in_a_not_null_column_is_a_constraint_error() -> None:
    with pytest.raises(ConstraintError, match="NOT NULL constraint failed: column 'must'"):
        converted(table(must=pa.int64()), must=pa.array([None], pa.int64()))


@pytest.mark.parametrize(
    ("operation", "names", "words"),
    [
        (Operation.INSERT, ["a"], "column mismatch: table has 2 columns, input has 1"),
        (Operation.INSERT, ["a", "b", "c"], "column mismatch: table has 2 columns, input has 3"),
        (Operation.INSERT, ["a", "x"], "column 'x' is not a column of the table"),
        (Operation.INSERT, ["a", "A"], "column 'a' is given twice"),
        (Operation.UPDATE, ["a"], "UPDATE requires rowid column in input schema"),
        (Operation.UPDATE, ["rowid"], "UPDATE sets no column"),
        (Operation.UPDATE, ["x", "rowid"], "column 'x' is not a column of the table"),
        (Operation.DELETE, ["a"], "DELETE requires rowid column in input schema"),
    ],
)
def test_an_upload_of_another_shape_is_told_what_is_wrong(operation: Operation, names: list[str], words: str) -> None:
    upload = pa.schema([(name, pa.int64()) for name in names])
    with pytest.raises(RequestError) as refused:
        plan_upload(operation, table(a=pa.int64(), b=pa.int64()), upload)
    assert refused.value.message == words


def test_columns_are_matched_by_name_in_any_order_and_case() -> None:
    rows = converted(table(a=pa.int64(), b=pa.string()), B=pa.array(["x"]), a=pa.array([1]))
    assert rows.to_pylist() == [{"b": "x", "a": 1}]


def test_row_ids_of_several_types_become_one() -> None:
    for kind in (pa.int32(), pa.int64(), pa.uint64()):
        rows = converted(table(a=pa.int64()), Operation.DELETE, rowid=pa.array([3], kind))
        assert rows.column(ROWID_FIELD).type == pa.int64()
    with pytest.raises(PreconditionError, match="rowid must not be null"):
        converted(table(a=pa.int64()), Operation.DELETE, rowid=pa.array([None], pa.int64()))
    with pytest.raises(RequestError, match="rowid is out of range"):
        converted(table(a=pa.int64()), Operation.DELETE, rowid=pa.array([2**63], pa.uint64()))
    with pytest.raises(RequestError, match="rowid column must be Int64, Int32, or Uint64"):
        converted(table(a=pa.int64()), Operation.DELETE, rowid=pa.array(["1"]))


def staged(folder: StagingFolder, rows: int, size: int) -> StagedRows:
    made = StagedRows(folder, pa.schema([("k", pa.int64())]))
    for start in range(0, rows, size):
        made.add(pa.table({"k": pa.array(range(start, min(rows, start + size)), pa.int64())}))
    made.finish()
    return made


def folder_of(tmp_path: Path, **settings: object) -> StagingFolder:
    return StagingFolder(StagingSettings(folder=str(tmp_path), **settings))


def test_small_uploads_stay_in_memory_and_large_ones_are_spooled(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, memory_rows=100)
    small, large = staged(folder, 100, 7), staged(folder, 101, 7)
    assert not small.is_spooled
    assert small.table().column(POSITION).to_pylist() == list(range(100))
    assert large.is_spooled
    assert pq.read_table(large.folder).column(POSITION).to_pylist() == list(range(101))
    large.release()
    assert not any(path.name == "rows.parquet" for path in tmp_path.rglob("*"))


def test_an_upload_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"larger than 100 bytes \(staging.max_bytes\)"):
        staged(folder_of(tmp_path, max_bytes=100), 100, 10)


def test_a_disk_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    folder = StagingFolder(StagingSettings(folder=str(tmp_path / "taken"), memory_rows=1))
    with pytest.raises(GatewayError, match="the upload cannot be staged"):
        staged(folder, 10, 2)


def test_leftovers_of_a_dead_process_are_removed_and_those_of_a_living_one_kept(tmp_path: Path) -> None:
    living = folder_of(tmp_path, memory_rows=1)
    kept = staged(living, 10, 5)
    dead = folder_of(tmp_path, memory_rows=1)
    left = staged(dead, 10, 5)
    os.close(dead._held)  # as the kernel does for a process that is killed
    (tmp_path / "gateway-that-never-staged").mkdir()
    folder_of(tmp_path).remove_leftovers()
    assert (tmp_path / kept.folder).exists()
    assert not (tmp_path / left.folder).exists()
    living.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_starts_meanwhile_does_not_take_a_new_folder_for_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, lock = folder_of(tmp_path), fcntl.flock

    def others_start_first(held: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        folder_of(tmp_path).remove_leftovers()
        lock(held, how)

    monkeypatch.setattr(fcntl, "flock", others_start_first)
    first, second = staging.new_folder(), staging.new_folder()
    folder_of(tmp_path).remove_leftovers()
    assert first.is_dir()
    assert second.is_dir()
    staging.close()
    assert not [*tmp_path.rglob("*-*")]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=30))
def test_of_several_rows_with_one_id_the_last_counts(pairs: list[tuple[int, int]]) -> None:
    rows = pa.table(
        {
            "v": pa.array([value % 2**31 for _, value in pairs], pa.int64()),
            ROWID_FIELD: pa.array([row_id for row_id, _ in pairs], pa.int64()),
            POSITION: pa.array(range(len(pairs)), pa.int64()),
        }
    )
    kept = last_of_each(rows)
    expected = {row_id: value % 2**31 for row_id, value in pairs}
    assert dict(zip(kept.column(ROWID_FIELD).to_pylist(), kept.column("v").to_pylist(), strict=True)) == expected
    assert kept.num_rows == len(expected)


@given(st.sets(st.integers(-1000, 1000), min_size=1), st.integers(1, 10))
def test_ranges_hold_every_number_and_are_few(numbers: set[int], at_most: int) -> None:
    found = few_ranges([(number, number) for number in numbers], at_most)
    assert len(found) <= at_most
    assert all(any(low <= number <= high for low, high in found) for number in numbers)
    assert all(low in numbers and high in numbers for low, high in found)


@given(st.sets(st.integers(-50, 50)), st.sets(st.integers(-50, 50)))
def test_a_set_of_ids_is_what_it_was_made_of(numbers: set[int], others: set[int]) -> None:
    ids, more = IdSet.of(numbers), IdSet.of(others)
    assert sorted(numbers) == list(ids) == list(IdSet.decode(ids.encode()))
    assert [number for number in range(-60, 60) if number in ids] == sorted(numbers)
    assert len(ids) == len(numbers)
    assert ids.overlaps(more) == bool(numbers & others)


def test_the_end_of_the_day_is_a_time() -> None:
    midnight = pa.array([86_400_000_000], pa.int64())
    rows = converted(table(t=pa.time64("us")), t=midnight.cast(pa.time64("us")))
    assert rows.column("t").to_pylist() == midnight.to_pylist()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("value", [1e300, -1e39, Decimal(10) ** 40])
def test_a_number_too_large_for_a_float_is_refused(value: object, nested: bool) -> None:
    kind = pa.float64() if isinstance(value, float) else pa.decimal256(50, 0)
    column = pa.array([value, None], kind)
    stored = pa.float32()
    if nested:
        column, stored = pa.array([[value]], pa.list_(kind)), pa.list_(stored)
    with pytest.raises(RequestError, match="column 'x': a value does not fit"):
        converted(table(x=stored), x=column)


def test_infinite_numbers_stay_what_they_are() -> None:
    given = [float("inf"), float("-inf"), None, 1.5, 3.4028234e38]
    found = converted(table(x=pa.float32()), x=pa.array(given, pa.float64()))
    assert found.column("x").to_pylist() == pa.array(given, pa.float32()).to_pylist()


@pytest.mark.parametrize("encode", [lambda array: array.dictionary_encode("encode"), pc.run_end_encode])
def test_a_null_that_an_encoding_hides_is_found(encode: Callable[[pa.Array], pa.Array]) -> None:
    with pytest.raises(ConstraintError, match="column 'must'"):
        converted(table(must=pa.int64()), must=encode(pa.array([1, None])))


def test_empty_pieces_leave_no_trace(tmp_path: Path) -> None:
    staged = StagedRows(StagingFolder(StagingSettings(folder=str(tmp_path))), pa.schema([("k", pa.int64())]))
    for keys in ([], [1], [], [], [2, 3], []):
        staged.add(pa.table({"k": pa.array(keys, pa.int64())}))
    assert [len(chunk) for chunk in staged.table().column("k").chunks] == [1, 2]
    assert staged.table().column(POSITION).to_pylist() == [0, 1, 2]
