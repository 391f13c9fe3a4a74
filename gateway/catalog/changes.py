"""Changing a table: the abilities a table may have, and one statement's way through them.

A statement takes an upload batch by batch and becomes one atomic change when it
is committed; until then nothing is written that anybody could see. The forms
that take the rowid inside the batches are preferred over those that take a
list of ids; `open_update` and `open_delete` choose, in one place, for everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import pyarrow as pa

from gateway.catalog.calls import Call
from gateway.catalog.names import TableName
from gateway.errors import CancelledError, GatewayError, PreconditionError, RequestError
from gateway.wire.listing import ROWID_KEY


class Operation(Enum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"

    @property
    def verb(self) -> str:
        return self.value.upper()


@dataclass(frozen=True, slots=True)
class OwnWrite:
    """What a transaction itself wrote into a table: the version, and the rows' ids."""

    version: int
    row_ids: Container[int]


class TransactionStatement(Protocol):
    """A statement of a transaction, as the table that writes it sees it."""

    @property
    def transaction(self) -> str: ...

    @property
    def since(self) -> int | None:
        """A version up to which the transaction surely wrote nothing into the table."""

    @property
    def is_stopped(self) -> bool:
        """Whether its transaction was rolled back meanwhile."""

    def refusal(self) -> GatewayError | None:
        """Why its transaction does not take it. It may then only be answered as one that was written before."""

    def begin_commit(self) -> None:
        """From here on it may be written at any moment; raises where it must not be written any more."""

    def wrote(self, version: int | None, row_ids: Container[int]) -> None:
        """It was written; without a version there was nothing to write."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """For which call a statement writes, in which transaction, and from which version of the table.

    `read_version` is the version the caller computed its change from; None means
    it did not say, and its last write wins. A row must still be what it was at the
    `conflict_base` (else at the read version), or where the transaction wrote it
    last: `own` are these writes, oldest first; `altered` are the versions that the caller's own
    ALTERs made since then. A statement that is sent again under one `idempotency_key` is written once.
    """

    call: Call
    statement: TransactionStatement | None = None
    read_version: int | None = None
    conflict_base: int | None = None
    own: tuple[OwnWrite, ...] = ()
    altered: tuple[int, ...] = ()
    idempotency_key: str | None = None

    @property
    def caller(self) -> str:
        return self.call.caller.name

    @property
    def transaction(self) -> str | None:
        return None if self.statement is None else self.statement.transaction

    @property
    def since(self) -> int | None:
        return None if self.statement is None else self.statement.since

    def is_cancelled(self) -> bool:
        """Asked before the commit, again and again."""
        return (self.statement is not None and self.statement.is_stopped) or self.call.is_cancelled()

    def refusal(self) -> GatewayError | None:
        return None if self.statement is None else self.statement.refusal()

    def begin_commit(self) -> None:
        """Once, when all rows are there."""
        if self.statement is not None:
            self.statement.begin_commit()

    def wrote(self, version: int | None, row_ids: Container[int]) -> None:
        if self.statement is not None:
            self.statement.wrote(version, row_ids)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`returning` asks for the changed rows.

    `strict` makes an unknown row id an error; otherwise it is skipped. `echo` makes an
    UPDATE return the uploaded columns, in their order, instead of whole rows.
    """

    returning: bool = False
    strict: bool = False
    echo: bool = False


class Statement(Protocol):
    """One upload on its way to one commit. For one thread; `abort` after any failure, as often as you like."""

    @property
    def reply_schema(self) -> pa.Schema:
        """The schema of what `add` answers when rows are returned."""

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a batch; with `returning`, the rows it changes as the commit will leave them (DELETE: as they were)."""

    def commit(self) -> int:
        """Make the change durable and say how many rows it affected; raises when nothing was written."""

    def abort(self) -> None:
        """Give up: release what was staged. Nothing was written."""


@runtime_checkable
class Insertable(Protocol):
    def insert(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement: ...


@runtime_checkable
class BatchUpdatable(Protocol):
    def update_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        """The upload holds the columns to set and the rowid."""


@runtime_checkable
class Updatable(Protocol):
    def update_rows(self, row_ids: Sequence[int], rows: pa.Table, options: WriteOptions, context: WriteContext) -> int:
        """Row i of `rows` replaces the values of row_ids[i]."""


@runtime_checkable
class BatchDeletable(Protocol):
    def delete_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        """The upload holds the rowid; other columns are ignored."""


@runtime_checkable
class Deletable(Protocol):
    def delete_rows(self, row_ids: Sequence[int], options: WriteOptions, context: WriteContext) -> int: ...


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did to one table; no version where there was nothing to undo."""

    rows: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Footprint:
    """Where a transaction wrote into a table: not up to version `since`, and surely at `versions`.

    `identity` distinguishes the table from another one of that name; None where this is read from the table's own log.
    """

    since: int = -1
    versions: frozenset[int] = frozenset()
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """What a table's log records of a transaction."""

    footprint: Footprint
    undone: Undone | None = None
    callers: frozenset[str] = frozenset()  # who wrote it, as far as the commits say


@dataclass(frozen=True, slots=True)
class Traces:
    """What the logs record of a transaction, by table; `gap` says why they may be incomplete."""

    tables: Mapping[Hashable, Trace]
    gap: str | None = None


@runtime_checkable
class Undoable(Protocol):
    def undo(self, transaction: str, context: WriteContext, footprint: Footprint) -> Undone:
        """Undo all that a transaction wrote into the table, or raise; a second time only reports that again."""


@runtime_checkable
class Changeable(Protocol):
    def changes(self) -> object:
        """An object that has exactly the abilities which the table has now: they follow from what the table is."""


def abilities_of(table: object) -> object:
    return table.changes() if isinstance(table, Changeable) else table


def can_update(table: object) -> bool:
    return isinstance(abilities_of(table), BatchUpdatable | Updatable)


def can_delete(table: object) -> bool:
    return isinstance(abilities_of(table), BatchDeletable | Deletable)


def why_unchangeable(table: object) -> str:
    """Why a table's rows stay as they are, in a word or two; where the table does not say, they have no ids."""
    return str(getattr(abilities_of(table), "unchangeable", "no rowid"))


def find_rowid_column(schema: pa.Schema | None) -> int:
    """Position of the first field named `rowid` or marked as one, from the left; -1 when there is none."""
    if schema is None:
        return -1
    for index, field in enumerate(schema):
        if field.name == "rowid" or (field.metadata or {}).get(ROWID_KEY):
            return index
    return -1


def require_rowid(operation: Operation, upload: pa.Schema) -> int:
    index = find_rowid_column(upload)
    if index < 0:
        raise RequestError(f"{operation.verb} requires rowid column in input schema")
    if upload.field(index).type not in (pa.int64(), pa.int32(), pa.uint64()):
        raise RequestError("rowid column must be Int64, Int32, or Uint64")
    return index


def open_insert(
    table: object, name: TableName, upload: pa.Schema, options: WriteOptions, context: WriteContext
) -> Statement:
    able = abilities_of(table)
    if not isinstance(able, Insertable):
        raise PreconditionError(f"table '{name.table}' does not support INSERT operations")
    return able.insert(upload, options, context)


def open_update(table: object, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
    """An UPDATE whose batches hold the rowid, whichever form the table has."""
    able = abilities_of(table)
    if isinstance(able, BatchUpdatable):
        require_rowid(Operation.UPDATE, upload)
        return able.update_batches(upload, options, context)
    if isinstance(able, Updatable):
        return _IdListStatement(Operation.UPDATE, upload, options, context, _update_with(able, options, context))
    raise PreconditionError("table does not support UPDATE operations")


def open_delete(table: object, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
    """A DELETE whose batches hold the rowid, whichever form the table has."""
    able = abilities_of(table)
    if isinstance(able, BatchDeletable):
        require_rowid(Operation.DELETE, upload)
        return able.delete_batches(upload, options, context)
    if isinstance(able, Deletable):
        if options.returning:
            raise PreconditionError("table does not support DELETE with RETURNING")
        return _IdListStatement(Operation.DELETE, upload, options, context, _delete_with(able, options, context))
    raise PreconditionError("table does not support DELETE operations")


ApplyIds = Callable[[list[int], pa.Table], int]


def _update_with(table: Updatable, options: WriteOptions, context: WriteContext) -> ApplyIds:
    return lambda row_ids, rows: table.update_rows(row_ids, rows, options, context)


def _delete_with(table: Deletable, options: WriteOptions, context: WriteContext) -> ApplyIds:
    return lambda row_ids, _rows: table.delete_rows(row_ids, options, context)


class _IdListStatement:
    """For tables that take lists of ids: collects the upload, takes the ids out, and applies them at the end.

    Such tables do not report the rows they changed: an UPDATE returns the values it was given, a DELETE nothing.
    """

    def __init__(
        self,
        operation: Operation,
        upload: pa.Schema,
        options: WriteOptions,
        context: WriteContext,
        apply: ApplyIds,
    ) -> None:
        self._rowid = require_rowid(operation, upload)
        self._upload = upload
        self._options = options
        self._context = context
        self._apply = apply
        self._batches: list[pa.RecordBatch] = []

    @property
    def reply_schema(self) -> pa.Schema:
        return self._upload

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        self._batches.append(batch)
        return batch if self._options.returning else None

    def commit(self) -> int:
        rows = pa.Table.from_batches(self._batches, self._upload)
        if rows.num_rows == 0:
            return 0
        row_ids = rows.column(self._rowid).to_pylist()
        if any(row_id is None for row_id in row_ids):
            raise RequestError("rowid must not be null")
        if self._context.is_cancelled():
            raise CancelledError("the upload was cancelled; nothing was written")
        self._context.begin_commit()
        return self._apply(row_ids, rows.remove_column(self._rowid))

    def abort(self) -> None:
        self._batches.clear()
