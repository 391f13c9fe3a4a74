"""Adoption by itself: a statement that meets a row without an id of its own has the table's rows numbered.

The statement has read the old rows, so it cannot go on: it is refused, and the
same statement works when it is run again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from gateway.catalog.changes import Statement, WriteContext, WriteOptions
from gateway.errors import ConflictError, OutcomeUnknownError, PreconditionError, UnavailableError
from gateway.lake.writing.delta_statements import FullyChangeable

if TYPE_CHECKING:
    from gateway.lake.adopting.adoption import Adopted

log = structlog.get_logger(__name__)


class Numbering:
    """Runs one table's adoption when it is asked for. Thread-safe: `_turn` lets one run at a time."""

    def __init__(self, table: str, adopt: Callable[[], Adopted]) -> None:
        self.table = table
        self._adopt = adopt
        self._turn = threading.Lock()
        self._useful_runs = 0

    def begin(self) -> int:
        """To be taken by a statement before it looks at rows."""
        return self._useful_runs

    def number(self, begun: int) -> bool:
        """Whether rows got ids since a statement has begun; many statements may meet the same rows."""
        with self._turn:
            if self._useful_runs == begun:
                try:
                    adopted = self._adopt()
                except OutcomeUnknownError as error:  # which is not the statement's own
                    raise UnavailableError(f"{error.message}; the statement was not written, run it again") from error
                log.info("rows_numbered", table=self.table, rows=adopted.rows, commits=adopted.commits)
                self._useful_runs += adopted.rows > 0
            return self._useful_runs > begun


@dataclass(frozen=True)
class SelfAdopting:
    """A table's abilities, with UPDATE and DELETE that have rows numbered where they lack ids."""

    able: FullyChangeable
    numbering: Numbering

    def insert(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        return self.able.insert(upload, options, context)

    def update_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        begun = self.numbering.begin()
        return _NumberingStatement(self.able.update_batches(upload, options, context), self.numbering, begun)

    def delete_batches(self, upload: pa.Schema, options: WriteOptions, context: WriteContext) -> Statement:
        begun = self.numbering.begin()
        return _NumberingStatement(self.able.delete_batches(upload, options, context), self.numbering, begun)


@dataclass(frozen=True)
class _NumberingStatement:
    statement: Statement
    numbering: Numbering
    begun: int

    @property
    def reply_schema(self) -> pa.Schema:
        return self.statement.reply_schema

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        with self._numbering_rows():
            return self.statement.add(batch)

    def commit(self) -> int:
        with self._numbering_rows():
            return self.statement.commit()

    def abort(self) -> None:
        self.statement.abort()

    @contextlib.contextmanager
    def _numbering_rows(self) -> Iterator[None]:
        """A table that is not in a state for the statement may be so for want of ids; else the error stands."""
        try:
            yield
        except PreconditionError as error:
            self.statement.abort()  # nothing is kept staged meanwhile
            if not self.numbering.number(self.begun):
                raise
            raise ConflictError(
                f"table '{self.numbering.table}' had rows without an id of their own;"
                " they have one now, run the statement again"
            ) from error
