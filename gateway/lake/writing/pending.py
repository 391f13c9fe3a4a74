"""What waits for its commit: complete statements, and transactions to be undone. All are compared by identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from gateway.catalog.changes import Footprint, Operation, WriteContext, WriteOptions
from gateway.errors import GatewayError
from gateway.lake.commits.notes import StatementNote
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.internal_names import ROWID_FIELD
from gateway.lake.writing.conversion import UploadPlan
from gateway.lake.writing.staging import StagedRows

# Of row ids, in the note of a statement that has its commit to itself: what changed is then what the commit changed.
_NOTED_CHARACTERS = 16_384


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a statement; `version` is None when there was nothing to change."""

    affected: int
    version: int | None
    row_ids: IdSet = field(default_factory=IdSet)
    is_repeat: bool = field(default=False, compare=False)  # it was written before, and is only reported again


Outcome: TypeAlias = Committed | GatewayError


@dataclass(eq=False, kw_only=True)
class _Waiting:
    """In a table's queue; whoever waits for it finds what became of it in `outcome`, which the queue's lock guards."""

    context: WriteContext
    outcome: Outcome | BaseException | None = None
    named_ids: IdSet = field(default_factory=IdSet, init=False)  # the rows that it changes, where they are in memory


@dataclass(eq=False)
class Pending(_Waiting):
    """A statement whose rows are all there."""

    operation: Operation
    plan: UploadPlan
    rows: StagedRows
    options: WriteOptions
    digest: str | None = None  # of what it writes, where it brings an idempotency key

    def __post_init__(self) -> None:
        if self.operation is not Operation.INSERT and not self.stands_alone:
            self.named_ids = IdSet.of(self.rows.table().column(ROWID_FIELD).to_pylist())

    @property
    def stands_alone(self) -> bool:
        """Whether it needs a commit of its own."""
        return self.rows.is_spooled

    @property
    def kind(self) -> str:
        return self.operation.value

    def note(self, done: Committed, *, is_shared: bool) -> StatementNote:
        """In a shared commit all ids are noted, however many: an undo must tell them from the neighbours'."""
        ids = done.row_ids.encode() if done.row_ids.is_exact else ""
        return StatementNote(
            self.kind,
            self.context.caller,
            done.affected,
            self.context.transaction,
            ids if ids and (is_shared or len(ids) <= _NOTED_CHARACTERS) else None,
            key=self.context.idempotency_key,
            digest=self.digest,
            since=self.context.since,
        )


@dataclass(eq=False)
class Undoing(_Waiting):
    """A transaction whose changes of a table are to be taken back."""

    transaction: str
    footprint: Footprint = field(default_factory=Footprint)
    stands_alone: ClassVar[bool] = True
    kind: ClassVar[str] = "undo"

    def note(self, done: Committed, *, is_shared: bool) -> StatementNote:
        assert not is_shared
        return StatementNote(self.kind, self.context.caller, done.affected, undoes=self.transaction)


Work: TypeAlias = Pending | Undoing
