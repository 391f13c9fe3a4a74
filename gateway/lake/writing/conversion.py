"""Uploaded batches to rows of the table's own types.

Clients differ in how they write one type (plain, large and view strings, time
zones, narrow decimals, lossless mode), so every column is converted to the
stored type. A batch is validated first; a value that does not fit is an error that
names the column, and nothing of the statement is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from gateway.catalog.changes import Operation, find_rowid_column, require_rowid
from gateway.catalog.names import fold
from gateway.errors import ConstraintError, PreconditionError, RequestError
from gateway.lake.tables.internal_names import ROWID_FIELD, check_writable
from gateway.lake.tables.schemas import Column, Computed, TableSchema
from gateway.lake.values.codec import encode
from gateway.lake.values.partitions import check_partition_values


@dataclass(frozen=True, slots=True)
class Partitions:
    """The columns that a table is partitioned by, and whether its folders are named after their values."""

    columns: frozenset[str] = frozenset()
    in_folders: bool = False


NO_PARTITIONS = Partitions()


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Which uploaded column becomes which stored one; the row id's place, where there is one."""

    columns: tuple[tuple[int, Column], ...]
    rowid: int | None
    partitions: Partitions = NO_PARTITIONS

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for _, column in self.columns)

    def without(self, names: Collection[str]) -> UploadPlan:
        """The same upload, of which these columns are not written."""
        return replace(self, columns=tuple(each for each in self.columns if each[1].name not in names))


class ComputedColumns:
    """Identity and generated columns of an INSERT: where every row has NULL, Delta fills them in. For one thread.

    Clients send every column, and NULL for what they were not given.
    """

    def __init__(self, plan: UploadPlan) -> None:
        self._columns = [column for _, column in plan.columns if column.computed is not None]
        self._has_null: set[str] = set()
        self._has_value: set[str] = set()

    def look_at(self, rows: pa.Table) -> None:
        for column in self._columns:
            nulls = rows.column(column.name).null_count
            if nulls:
                self._has_null.add(column.name)
            if nulls == rows.num_rows:
                continue
            if column.computed is Computed.IDENTITY_ALWAYS:
                raise RequestError(f"column '{column.name}' is {column.computed.value}: leave it out")
            self._has_value.add(column.name)

    def left_out(self) -> frozenset[str]:
        """The columns that Delta fills in; RequestError where only some rows have a value."""
        for column in self._columns:
            if column.name in self._has_null & self._has_value:
                assert column.computed is not None
                raise RequestError(
                    f"column '{column.name}' is {column.computed.value}: give it a value in every row or in none"
                )
        return frozenset(self._has_null)


def plan_upload(
    operation: Operation, schema: TableSchema, upload: pa.Schema, partitions: Partitions = NO_PARTITIONS
) -> UploadPlan:
    """Match an upload with the table by name; every defect is reported before a row is taken."""
    check_writable(column.name for column in (*schema.columns, schema.rowid) if column is not None)
    if operation is Operation.INSERT:
        return UploadPlan(_match_all(schema, upload), None, partitions)
    rowid = require_rowid(operation, upload)
    if operation is Operation.DELETE:
        return UploadPlan((), rowid)
    sets = [index for index in range(len(upload)) if index != rowid]
    if not sets:
        raise RequestError("UPDATE sets no column")
    matched = _match(schema, upload, sets)
    for _, column in matched:
        if column.computed is not None and column.computed.is_identity:
            raise RequestError(f"column '{column.name}' is an identity column: it cannot be updated")
    return UploadPlan(matched, rowid, partitions)


def _match_all(schema: TableSchema, upload: pa.Schema) -> tuple[tuple[int, Column], ...]:
    places = list(range(len(upload)))
    extra = find_rowid_column(upload)
    if extra >= 0 and schema.column(upload.field(extra).name) is None:
        places.remove(extra)  # a row id sent along with new rows says nothing: ids are given at the commit
    if len(places) != len(schema.columns):
        raise RequestError(f"column mismatch: table has {len(schema.columns)} columns, input has {len(places)}")
    return _match(schema, upload, places)


def _match(schema: TableSchema, upload: pa.Schema, places: Sequence[int]) -> tuple[tuple[int, Column], ...]:
    by_name = {fold(column.name): column for column in schema.columns}
    matched: dict[str, tuple[int, Column]] = {}
    for place in places:
        name = upload.field(place).name
        column = schema.column(name) or by_name.get(fold(name))
        if column is None:
            raise RequestError(f"column '{name[:60]}' is not a column of the table")
        if column.name in matched:
            raise RequestError(f"column '{column.name}' is given twice")
        matched[column.name] = place, column
    return tuple(matched.values())


def convert(plan: UploadPlan, batch: pa.RecordBatch) -> pa.Table:
    """The batch's rows in stored types; the row id, if any, as int64 under a name of its own."""
    _validate(batch)
    arrays = [_stored(batch.column(place), column, plan.partitions) for place, column in plan.columns]
    fields = [pa.field(column.name, column.type) for _, column in plan.columns]
    if plan.rowid is not None:
        arrays.append(_row_ids(batch.column(plan.rowid)))
        fields.append(pa.field(ROWID_FIELD, pa.int64()))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _validate(batch: pa.RecordBatch) -> None:
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        try:
            # DuckDB's last time of day is 24:00:00, which Arrow does not count as one; times are checked when stored.
            (array.view(pa.int64()) if pa.types.is_time64(array.type) else array).validate(full=True)
        except pa.ArrowInvalid as error:
            raise RequestError(f"the uploaded batch is not valid Arrow data: column '{name[:60]}'") from error


def _row_ids(array: pa.Array) -> pa.Array:
    if array.null_count:
        raise PreconditionError(
            "rowid must not be null: a row without an id cannot be named; `deltaport adopt` gives it one"
        )
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise RequestError("rowid is out of range") from error


def _stored(array: pa.Array, column: Column, partitions: Partitions) -> pa.Array:
    stored = encode(array, column.form)
    # Counted in the stored form: dictionaries and run-end encodings hide their nulls. Delta checks what it computes.
    if stored.null_count and not column.nullable and column.computed is None:
        raise ConstraintError(f"NOT NULL constraint failed: column '{column.name}'")
    if column.name in partitions.columns:
        check_partition_values(column.name, stored, in_folders=partitions.in_folders)
    return stored
