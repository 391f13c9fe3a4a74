"""Uploaded batches to rows of the table's own types.

Clients differ in how they write one type (plain, large and view strings, time
zones, narrow decimals, lossless mode), so every column is converted to the
stored type. A batch is validated first; a value that does not fit is an error that
names the column, and nothing of the statement is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from gateway.catalog.changes import Operation, find_rowid_column, require_rowid
from gateway.catalog.names import fold
from gateway.errors import ConstraintError, PreconditionError, RequestError
from gateway.lake.tables.schemas import Column, TableSchema
from gateway.lake.values.codec import encode

ROWID_FIELD = "_deltaport_rowid"


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Which uploaded column becomes which stored one; the row id's place, where there is one."""

    columns: tuple[tuple[int, Column], ...]
    rowid: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for _, column in self.columns)


def plan_upload(operation: Operation, schema: TableSchema, upload: pa.Schema) -> UploadPlan:
    """Match an upload with the table by name; every defect is told before a row is taken."""
    if operation is Operation.INSERT:
        return UploadPlan(_match_all(schema, upload), None)
    rowid = require_rowid(operation, upload)
    if operation is Operation.DELETE:
        return UploadPlan((), rowid)
    sets = [index for index in range(len(upload)) if index != rowid]
    if not sets:
        raise RequestError("UPDATE sets no column")
    return UploadPlan(_match(schema, upload, sets), rowid)


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
    arrays = [_stored(batch.column(place), column) for place, column in plan.columns]
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


def _stored(array: pa.Array, column: Column) -> pa.Array:
    if array.null_count and not column.nullable:
        raise ConstraintError(f"NOT NULL constraint failed: column '{column.name}'")
    return encode(array, column.form)
