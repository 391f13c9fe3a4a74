"""What is remembered of one transaction. Not thread-safe: the manager's lock guards all of it."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from gateway.catalog.calls import Owner
from gateway.catalog.changes import Footprint, OwnWrite, Undone
from gateway.errors import GatewayError, PreconditionError
from gateway.transactions.ids import ParsedId, TransactionId
from gateway.transactions.state import Event, NotAllowedError, TransactionState, next_state


@dataclass(frozen=True, slots=True)
class TableView:
    """How a transaction sees a table; `identity` distinguishes a table from one that replaced it."""

    base: int
    read_version: int
    identity: str | None = None
    own: tuple[OwnWrite, ...] = ()
    altered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """How a transaction stands, and which of its writes were undone, by table."""

    state: TransactionState
    undone: Mapping[Hashable, Undone] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableInstance:
    """One table under its name, which another table may take over later."""

    table: Hashable
    identity: str | None = None


class Ending(Enum):
    """How a statement ended."""

    DONE = "done"
    FAILED = "failed"  # surely nothing was written
    UNKNOWN = "unknown"  # it may have been written, or may still be
    BROKEN = "broken"  # whether it was written is in the log by now


class StatementManager(Protocol):
    """What a statement asks of the manager, which has the lock."""

    def begin_commit(self, statement: RunningStatement) -> None: ...

    def wrote(
        self, transaction: str | None, table: Hashable, version: int | None, own_ids: Container[int] = ()
    ) -> None: ...

    def refusal(self, transaction: str, *, once: bool) -> GatewayError: ...


@dataclass(eq=False, slots=True)
class RunningStatement:
    """From its opening to its end. Once it is stopped, its commit does not begin; one that has begun may land."""

    manager: StatementManager
    transaction: TransactionId
    instance: TableInstance
    since: int  # a version up to which its transaction wrote nothing into the table
    is_stopped: bool = False
    is_committing: bool = False
    is_written: bool = False

    def refusal(self) -> None:
        return None

    def begin_commit(self) -> None:
        self.manager.begin_commit(self)

    def wrote(self, version: int | None, row_ids: Container[int]) -> None:
        self.manager.wrote(self.transaction, self.instance.table, version, row_ids)


@dataclass(frozen=True, slots=True)
class RefusedStatement:
    """One that its transaction did not take: it may be a repetition of one that was written before, and no more."""

    manager: StatementManager
    transaction: str
    once: bool
    since: None = None
    is_stopped: bool = False

    def refusal(self) -> GatewayError:
        """As of now: what ran then may have ended."""
        return self.manager.refusal(self.transaction, once=self.once)

    def begin_commit(self) -> None:
        """Nothing is going to be written."""

    def wrote(self, version: int | None, row_ids: Container[int]) -> None:
        """What was written under another call is not written again."""


@dataclass(slots=True)
class TransactionRecord:
    id: ParsedId
    last_used: float
    is_renewed: bool  # it was forgotten meanwhile: only the log knows what it did before
    state: TransactionState = TransactionState.ACTIVE
    owner: Owner | None = None
    last_write: float | None = None
    is_undoing: bool = False
    has_failed: bool = False
    running: set[RunningStatement] = field(default_factory=set)
    tables: dict[Hashable, TableView] = field(default_factory=dict)
    instances: dict[Hashable, TableInstance] = field(default_factory=dict)  # which one current statements write to
    footprints: dict[TableInstance, Footprint] = field(default_factory=dict)
    unclear: set[TableInstance] = field(default_factory=set)  # may have been written to: only the log can say
    undone_instances: set[TableInstance] = field(default_factory=set)
    undone: dict[Hashable, Undone] = field(default_factory=dict)

    @property
    def is_in_use(self) -> bool:
        return bool(self.running) or self.is_undoing

    @property
    def status(self) -> TransactionStatus:
        return TransactionStatus(self.state, dict(self.undone))

    def is_of(self, caller: str | None) -> bool:
        """Whether this caller may know of it; without one, whoever asks may. Until it is used it is nobody's."""
        return caller is None or self.owner is None or self.owner.caller == caller

    def apply(self, event: Event) -> None:
        try:
            self.state = next_state(self.state, event, manual=self.id.is_manual)
        except NotAllowedError:
            raise not_active(self.id.id, self.state) from None

    def refusal(self, *, once: bool) -> PreconditionError | None:
        """Why it takes no further statement; with `once`, it takes one in all."""
        if self.is_undoing:
            return PreconditionError(f"transaction {self.id.id} is being rolled back")
        if self.undone_instances and self.state is TransactionState.ACTIVE:
            return PreconditionError(f"transaction {self.id.id} was rolled back in part; roll it back again")
        once = once and not self.id.is_manual
        is_over = self.state is TransactionState.COMMITTED and (once or self.id.is_manual or bool(self.undone))
        if self.state is TransactionState.ABORTED or is_over:
            return not_active(self.id.id, self.state)
        if once and self.running:
            return PreconditionError(f"transaction {self.id.id} allows one operation, and one is running")
        if once and self.unclear:
            return PreconditionError(
                f"transaction {self.id.id} allows one operation, of which it is not known whether it was written"
            )
        return None

    def open(self, manager: StatementManager, instance: TableInstance, version: int) -> RunningStatement:
        self.instances[instance.table] = instance
        footprint = self.footprints.setdefault(instance, Footprint(version, identity=instance.identity))
        statement = RunningStatement(manager, self.id.id, instance, footprint.since)
        self.running.add(statement)
        return statement

    def end(self, statement: RunningStatement, ending: Ending) -> None:
        self.running.discard(statement)
        if ending is Ending.DONE and self.state is not TransactionState.ABORTED:
            self.apply(Event.WROTE)
        elif ending is Ending.FAILED:
            self.has_failed = True
        elif ending in (Ending.UNKNOWN, Ending.BROKEN):
            self.unclear.add(statement.instance)
        self.settle_failure()

    def settle_failure(self) -> None:
        """A failure aborts the transaction, but not while another statement of it may still be written."""
        if self.has_failed and not self.running and not self.unclear and self.state is TransactionState.ACTIVE:
            self.apply(Event.FAILED)

    def add_write(self, table: Hashable, write: OwnWrite) -> None:
        for statement in self.running:
            # Of several at once one would do, but which one it was makes no difference to what is reported.
            statement.is_written |= statement.is_committing and statement.instance.table == table
        # A table that it never read has no older base: nothing was computed from it.
        seen = self.tables.get(table, TableView(write.version, write.version))
        self.tables[table] = replace(seen, read_version=max(write.version, seen.read_version), own=(*seen.own, write))
        instance = self.instances.get(table, TableInstance(table))
        footprint = self.footprints.get(instance, Footprint(write.version - 1, identity=instance.identity))
        self.footprints[instance] = replace(footprint, versions=footprint.versions | {write.version})

    def to_undo(self) -> Iterator[tuple[TableInstance, Footprint]]:
        for instance, footprint in self.footprints.items():
            if instance in self.undone_instances:
                continue
            if instance in self.unclear:
                yield instance, footprint
            elif footprint.versions:
                yield instance, replace(footprint, since=min(footprint.versions) - 1)

    def record_undo(self, instance: TableInstance, table: Hashable, undone: Undone) -> None:
        """`table` is the name that it has now."""
        if undone.version is not None and self.state is TransactionState.ACTIVE:
            self.apply(Event.WROTE)  # it was unclear; the undo found it written
        if self.footprints[instance].versions or undone.version is not None:
            self.undone[table] = undone
        self.undone_instances.add(instance)
        self.unclear.discard(instance)
        view = self.tables.get(instance.table)
        if undone.version is not None and view is not None and table == instance.table:
            self.tables[table] = replace(view, read_version=undone.version)


def not_active(transaction: TransactionId, state: TransactionState) -> PreconditionError:
    return PreconditionError(f"transaction {transaction} is not active (state: {state.value})")
