"""Transactions: which version of each table a transaction reads, what it wrote, and how it ended.

Issuing an id stores nothing and never fails. State starts when a transaction
first uses a table; what stays unused for long, or exceeds the limit, is
forgotten, those that only read first. A forgotten or foreign id gets a fresh
pin when it reads, but cannot write: what it read and whether it was rolled
back is not known any more. What it wrote before is in the log.

Per table a transaction has a conflict base, the version at first use, which
never moves, and a read version, which moves to the transaction's own commits.
An ALTER names no transaction: it belongs to each one in which its session used the table.

A transaction knows its running statements. A rollback first stops them: one
whose commit has not begun will not begin it, and one whose commit has begun is
waited for, so that it is known what there is to undo. Until then the
transaction is neither aborted nor rolled back.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable
from dataclasses import replace
from typing import Protocol

from gateway.catalog.calls import Owner
from gateway.catalog.changes import Footprint, OwnWrite, Traces, Undone
from gateway.errors import (
    CancelledError,
    GatewayError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from gateway.settings import TransactionSettings
from gateway.transactions.ids import ParsedId, TransactionId, TransactionIds
from gateway.transactions.records import (
    Ending,
    RefusedStatement,
    RunningStatement,
    TableInstance,
    TableView,
    TransactionRecord,
    TransactionStatus,
)
from gateway.transactions.state import Event, TransactionState

# What the logs record of a transaction, which cannot be older than its id, whose issue time is given in milliseconds.
FindInLog = Callable[[TransactionId, int], Traces]
# Undoes what a transaction wrote to one table; a second time it only reports that again. A NotFoundError means that
# the table is not under that name any more.
Undo = Callable[[Hashable, Footprint], Undone]


# A transaction that has not written yet may be about to: thousands of writers must not push it out meanwhile.
_IN_USE_SECONDS = 60


class Pinnable(Protocol):
    @property
    def version(self) -> int: ...

    @property
    def identity(self) -> str: ...


class TransactionManager:
    """Thread-safe: one lock guards everything; nothing slow happens under it."""

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        find_in_log: FindInLog = lambda _transaction, _issued_ms: Traces({}),
        commit_seconds: float = 60,
    ) -> None:
        self._settings = settings
        self._clock = clock
        # Issue times go on with the monotonic clock: a wall clock that is set back would make new ids look old.
        self._started_ms, self._started = wall_clock() * 1000, clock()
        self._find_in_log = find_in_log
        self._ids = TransactionIds(settings.secret.get_secret_value() if settings.secret else None)
        self._commit_seconds = commit_seconds  # how long a rollback waits for a commit that has begun
        self._lock = threading.Lock()
        self._statement_ended = threading.Condition(self._lock)
        # Longest unused first.
        self._readers: OrderedDict[TransactionId, TransactionRecord] = OrderedDict()
        self._writers: OrderedDict[TransactionId, TransactionRecord] = OrderedDict()
        # Whatever was issued up to here and is not in memory may have been forgotten, by a restart for instance.
        self._forgotten_until_ms = self.now_ms() - 1

    @property
    def is_enabled(self) -> bool:
        return self._settings.enabled

    def check_enabled(self) -> None:
        if not self.is_enabled:
            raise UnsupportedError("transaction manager not configured")

    def begin(self, *, manual: bool = False) -> TransactionId:
        self.check_enabled()
        return self._ids.issue(self.now_ms(), manual=manual)

    def now_ms(self) -> int:
        """The clock that ids are issued by, in milliseconds."""
        return int(self._started_ms + (self._clock() - self._started) * 1000)

    def issued_ms(self, transaction: str) -> int | None:
        """When the id was issued; None for one that this gateway did not issue."""
        parsed = self._genuine(transaction)
        return None if parsed is None else parsed.issued_ms

    def open_statement(
        self, transaction: str, owner: Owner, table: Hashable, newest: Pinnable, *, once: bool
    ) -> RunningStatement:
        """Refuse a statement whose transaction is not known or has ended; with `once`, it takes one in all.

        The caller ends the statement that it opened.
        """
        parsed = self._genuine(transaction)
        if parsed is None:
            raise _not_known(transaction)
        with self._lock:
            known = self._touch(parsed)
            if known.is_renewed:
                raise _expired(parsed.id)
            if known.owner is not None and known.owner.caller != owner.caller:
                raise _not_known(parsed.id)
            if (refusal := known.refusal(once=once)) is not None:
                raise refusal
            known.owner = owner
            return known.open(self, TableInstance(table, newest.identity), newest.version)

    def refusal(self, transaction: str, *, once: bool) -> GatewayError:
        """Why the transaction takes no statement now, for one that it did not take a while ago."""
        parsed = self._genuine(transaction)
        if parsed is None:
            return _not_known(transaction)
        with self._lock:
            known = self._known(parsed)
            if known is None or known.is_renewed:
                return _expired(parsed.id)
            # It may be free again when a rollback has failed meanwhile.
            return known.refusal(once=once) or _being_undone(parsed.id)

    def refused_statement(self, transaction: str, *, once: bool) -> RefusedStatement | None:
        """One that may be a repetition; None where this gateway, or one before it, never wrote under this id."""
        return None if self._ids.parse(transaction) is None else RefusedStatement(self, transaction, once)

    def begin_commit(self, statement: RunningStatement) -> None:
        """From here on the statement may be written at any moment; refused once a rollback has stopped it."""
        with self._lock:
            if statement.is_stopped:
                raise CancelledError(f"transaction {statement.transaction} was rolled back; nothing was written")
            statement.is_committing = True

    def end_statement(self, statement: RunningStatement, ending: Ending) -> None:
        with self._lock:
            known = self._readers.get(statement.transaction) or self._writers[statement.transaction]
            known.end(statement, ending)
            self._statement_ended.notify_all()
        if ending is Ending.BROKEN:
            self._settle(known, statement.instance)

    def _settle(self, known: TransactionRecord, instance: TableInstance) -> None:
        """What failed in a way that does not say whether it was written is looked up at once."""
        try:
            traces = self._find_in_log(known.id.id, known.id.issued_ms)
        except GatewayError:
            return  # it stays unclear, and is looked up when somebody asks
        with self._lock:
            if traces.tables:
                if known.state is TransactionState.ACTIVE:
                    known.apply(Event.WROTE)
            elif traces.gap is None:
                known.unclear.discard(instance)
                known.has_failed = True
                known.settle_failure()

    def pin(
        self, transaction: str | None, table: Hashable, newest: Callable[[], Pinnable], owner: Owner | None = None
    ) -> TableView:
        """How this transaction sees a table: as it first read it, and as it wrote it. Without an id, the newest."""
        parsed = self._genuine(transaction)
        if parsed is None:
            return _view_of(newest())
        with self._lock:
            known = self._touch(parsed)
            known.owner = known.owner or owner
            is_own = owner is None or known.owner is None or known.owner.caller == owner.caller
            if is_own and table in known.tables:
                return known.tables[table]
        if not is_own:  # as with any id that is not known
            return _view_of(newest())
        view = _view_of(newest())  # reads the log: not under the lock
        with self._lock:
            return self._touch(parsed).tables.setdefault(table, view)

    def wrote(
        self, transaction: str | None, table: Hashable, version: int | None, own_ids: Container[int] = ()
    ) -> None:
        """A statement was written; the transaction goes on reading the table as of its own last write."""
        parsed = self._genuine(transaction)
        if parsed is None:
            return
        with self._lock:
            known = self._touch(parsed)
            known.apply(Event.WROTE)
            if version is None:
                return
            known.last_write = self._clock()
            known.add_write(table, OwnWrite(version, own_ids))
            self._readers.pop(parsed.id, None)
            self._writers[parsed.id] = known

    def altered(self, owner: Owner, table: Hashable, version: int) -> None:
        """A session's client altered a table, and made this version of it."""
        if owner.session is None:
            return
        with self._lock:
            for known in (*self._readers.values(), *self._writers.values()):
                if known.owner == owner and table in known.tables:
                    seen = known.tables[table]
                    known.tables[table] = replace(seen, altered=(*seen.altered, version))

    def failed(self, transaction: str | None, caller: str | None = None) -> None:
        """A statement of this transaction failed before it was opened."""
        if (parsed := self._genuine(transaction)) is None:
            return
        with self._lock:
            known = self._remembered(parsed)
            if known is not None and not known.is_undoing and known.is_of(caller):
                known.has_failed = True
                known.settle_failure()

    def commit(self, transaction: str, caller: str | None = None) -> TransactionState:
        """Its statements are durable already; this ends it. May be repeated. Only a given caller's are found."""
        parsed = self._parsed(transaction)
        with self._lock:
            known = self._remembered(parsed, caller)
            if known is not None:
                if known.is_undoing:
                    raise _being_undone(parsed.id)
                known.apply(Event.COMMIT)
                return known.state
        if self._traces(parsed, caller).tables:
            return TransactionState.COMMITTED
        raise _expired(parsed.id)

    def rollback(self, transaction: str, undo: Undo, caller: str | None = None) -> TransactionStatus:
        """End it, and undo what it wrote, table by table. May be repeated: nothing is undone twice.

        An UnavailableError when a statement of it is being written and does not end in time.
        """
        parsed = self._parsed(transaction)
        known = self._begin_rollback(parsed, caller)
        if known is None:
            return self._rollback_from_log(parsed, undo, caller)
        try:
            self._wait_for_commits(known)
            with self._lock:
                to_undo = list(known.to_undo())
            for instance, footprint in to_undo:
                table, undone = self._undo_table(parsed, instance.table, footprint, undo)
                with self._lock:
                    known.record_undo(instance, table, undone)
            with self._lock:
                known.apply(Event.ROLLBACK)
                return known.status
        finally:
            with self._lock:
                known.is_undoing = False

    def _begin_rollback(self, parsed: ParsedId, caller: str | None) -> TransactionRecord | None:
        """From here on no statement of it begins, neither itself nor its commit."""
        with self._lock:
            known = self._remembered(parsed, caller)
            if known is not None:
                if known.is_undoing:
                    raise _being_undone(parsed.id)
                known.is_undoing = True
                for statement in known.running:
                    statement.is_stopped = True
            return known

    def _wait_for_commits(self, known: TransactionRecord) -> None:
        with self._lock:
            are_over = self._statement_ended.wait_for(
                lambda: not any(statement.is_committing for statement in known.running), self._commit_seconds
            )
        if not are_over:
            raise UnavailableError(f"a statement of transaction {known.id.id} is being written; try again")

    def _undo_table(
        self, parsed: ParsedId, table: Hashable, footprint: Footprint, undo: Undo
    ) -> tuple[Hashable, Undone]:
        """Under which name the table was found, and what was done to it."""
        try:
            return table, undo(table, footprint)
        except NotFoundError as error:
            gone = error
        # It may have been renamed: then the log under another name records the transaction.
        for other in self._find_in_log(parsed.id, parsed.issued_ms).tables:
            if other != table:
                try:
                    return other, undo(other, footprint)
                except NotFoundError:
                    continue
        raise PreconditionError(
            f"{gone.message}: what transaction {parsed.id} wrote into it cannot be undone"
        ) from gone

    def _rollback_from_log(self, parsed: ParsedId, undo: Undo, caller: str | None) -> TransactionStatus:
        """Of a transaction that is forgotten the log still knows what it wrote."""
        traces = self._traces(parsed, caller)
        if not traces.tables:
            raise _expired(parsed.id)
        if traces.gap is not None:
            raise PreconditionError(f"transaction {parsed.id} cannot be rolled back as a whole: {traces.gap}")
        return TransactionStatus(
            TransactionState.COMMITTED, {table: undo(table, trace.footprint) for table, trace in traces.tables.items()}
        )

    def last_written_by(self, owner: Owner) -> TransactionId | None:
        """The transaction in which this session's caller wrote last."""
        if owner.session is None:
            return None
        with self._lock:
            own = [known for known in self._writers.values() if known.owner == owner]
            last = max(own, key=lambda known: known.last_write or 0, default=None)
            return None if last is None else last.id.id

    def status(self, transaction: str, caller: str | None = None) -> TransactionStatus | None:
        """From memory, else from the log; None when nothing is known. Changes nothing."""
        parsed = self._ids.parse(transaction)
        if parsed is None or self._is_foreign(parsed, caller):
            return None
        remembered = self._status_in_memory(parsed)
        if remembered is not None:
            return remembered
        found = self._traces(parsed, caller).tables
        if found:
            undone = {table: trace.undone for table, trace in found.items() if trace.undone is not None}
            return TransactionStatus(TransactionState.COMMITTED, undone)
        with self._lock:
            known = self._known(parsed)
            return None if known is None or known.is_renewed else known.status

    def _status_in_memory(self, parsed: ParsedId) -> TransactionStatus | None:
        """None when only the log can say."""
        with self._lock:
            known = self._known(parsed)
            if known is None:
                is_new = parsed.is_genuine and not self._may_be_forgotten(parsed)
                return TransactionStatus(TransactionState.ACTIVE) if is_new else None
            # A manual transaction is active until its caller ends it, whatever was written.
            is_sure = known.state is not TransactionState.ACTIVE or not known.unclear or parsed.is_manual
            return known.status if is_sure and not known.is_renewed else None

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._readers) + len(self._writers)

    def _genuine(self, transaction: str | None) -> ParsedId | None:
        parsed = self._ids.parse(transaction) if self.is_enabled else None
        return parsed if parsed is not None and parsed.is_genuine else None

    def _parsed(self, transaction: str) -> ParsedId:
        parsed = self._ids.parse(transaction)
        if parsed is None:
            raise NotFoundError(f"transaction {transaction[:60]} not found")
        return parsed

    def _traces(self, parsed: ParsedId, caller: str | None) -> Traces:
        """What the log records of it; nothing where it was another caller who wrote."""
        traces = self._find_in_log(parsed.id, parsed.issued_ms)
        writers = {name for trace in traces.tables.values() for name in trace.callers}
        return traces if caller is None or writers <= {caller} else Traces({})

    def _is_foreign(self, parsed: ParsedId, caller: str | None) -> bool:
        with self._lock:
            known = self._known(parsed)
            return known is not None and not known.is_of(caller)

    def _remembered(self, parsed: ParsedId, caller: str | None = None) -> TransactionRecord | None:
        """What is known of all it did; a transaction that has not begun to do anything is known, too.

        Given a caller, one of another is not found.
        """
        if (other := self._known(parsed)) is not None and not other.is_of(caller):
            raise NotFoundError(f"transaction {parsed.id} not found")
        if not parsed.is_genuine:
            return None
        known = self._known(parsed)
        if known is None:
            return None if self._may_be_forgotten(parsed) else self._touch(parsed)
        return None if known.is_renewed else known

    def _known(self, parsed: ParsedId) -> TransactionRecord | None:
        return (self._readers.get(parsed.id) or self._writers.get(parsed.id)) if parsed.is_genuine else None

    def _touch(self, parsed: ParsedId) -> TransactionRecord:
        now = self._clock()
        kind = self._writers if parsed.id in self._writers else self._readers
        known = kind.get(parsed.id)
        if known is None:
            known = kind[parsed.id] = TransactionRecord(parsed, now, self._may_be_forgotten(parsed))
        known.last_used = now
        kind.move_to_end(parsed.id)
        self._forget()
        return known

    def _may_be_forgotten(self, parsed: ParsedId) -> bool:
        idle_ms = self._settings.idle_seconds * 1000
        return parsed.issued_ms <= max(self._forgotten_until_ms, self.now_ms() - idle_ms)

    def _forget(self) -> None:
        now = self._clock()
        for kind in (self._readers, self._writers):
            while kind and (oldest := next(iter(kind.values()))).last_used < now - self._settings.idle_seconds:
                if oldest.is_in_use:
                    oldest.last_used = now
                    kind.move_to_end(oldest.id.id)
                else:
                    self._drop(kind, oldest)
        while len(self._readers) + len(self._writers) > self._settings.limit and self._drop_longest_unused():
            pass

    def _drop_longest_unused(self) -> bool:
        """False when every transaction is in use."""
        reader, writer = (
            next((known for known in kind.values() if not known.is_in_use), None)
            for kind in (self._readers, self._writers)
        )
        is_recent = reader is not None and reader.last_used > self._clock() - _IN_USE_SECONDS
        if reader is not None and not (is_recent and writer is not None):
            self._drop(self._readers, reader)
        elif writer is not None:
            self._drop(self._writers, writer)
        return reader is not None or writer is not None

    def _drop(self, kind: OrderedDict[TransactionId, TransactionRecord], dropped: TransactionRecord) -> None:
        del kind[dropped.id.id]
        self._forgotten_until_ms = max(self._forgotten_until_ms, dropped.id.issued_ms)


def _view_of(snapshot: Pinnable) -> TableView:
    return TableView(snapshot.version, snapshot.version, snapshot.identity)


def _not_known(transaction: str) -> PreconditionError:
    return PreconditionError(f"transaction {transaction[:60]} is not known; start a new one")


def _being_undone(transaction: TransactionId) -> UnavailableError:
    return UnavailableError(f"transaction {transaction} is being rolled back; try again")


def _expired(transaction: TransactionId) -> PreconditionError:
    return PreconditionError(f"transaction {transaction} is not known any more; start a new one")
