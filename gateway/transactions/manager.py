"""Transactions: which version of each table a transaction reads, what it wrote, and how it ended.

Issuing an id stores nothing and never fails. State starts when a transaction
first touches a table; what stays unused for long, or exceeds the limit, is
forgotten, those that only read first. A forgotten or foreign id gets a fresh
pin when it reads, but cannot change rows: the versions it read are gone.

Per table a transaction has a conflict base, the version at first touch, which
never moves, and a read version, which moves to the transaction's own commits.
An ALTER names no transaction: it is one of each in which its session met the table.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.catalog.changes import OwnWrite, Undone
from gateway.errors import NotFoundError, PreconditionError, UnavailableError, UnsupportedError
from gateway.settings import TransactionSettings
from gateway.transactions.ids import ParsedId, TransactionId, TransactionIds
from gateway.transactions.state import Event, NotAllowedError, State, after

# The tables that a transaction wrote to, each with what took that back, by the log; it cannot be older than its id,
# whose issue time is given in milliseconds.
FindInLog = Callable[[TransactionId, int], Mapping[Hashable, Undone | None]]
# Takes back what a transaction wrote to one table; a second time it only says so again.
Undo = Callable[[Hashable], Undone]


# A transaction that has not written yet may be about to: thousands of writers must not push it out meanwhile.
_IN_USE_SECONDS = 60


class Pinnable(Protocol):
    @property
    def version(self) -> int: ...

    @property
    def identity(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TableView:
    """How a transaction sees a table; `identity` tells a table from another one that replaced it."""

    base: int
    read_version: int
    identity: str | None = None
    own: tuple[OwnWrite, ...] = ()
    altered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who runs a transaction: the client's session, and the authenticated caller."""

    session: str | None
    caller: str


@dataclass(frozen=True, slots=True)
class Status:
    """How a transaction stands, and which of its writes were taken back, by table."""

    state: State
    undone: Mapping[Hashable, Undone] = field(default_factory=dict)


@dataclass(slots=True)
class _Transaction:
    id: ParsedId
    last_used: float
    is_renewed: bool  # it was forgotten meanwhile: what it read before is not known any more
    is_unclear: bool  # it may have written what is not told here: only the log can say
    state: State = State.ACTIVE
    owner: Owner | None = None
    last_write: float | None = None
    is_undoing: bool = False
    tables: dict[Hashable, TableView] = field(default_factory=dict)
    undone: dict[Hashable, Undone] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        try:
            self.state = after(self.state, event, manual=self.id.is_manual)
        except NotAllowedError:
            raise _not_active(self.id.id, self.state) from None

    @property
    def status(self) -> Status:
        return Status(self.state, dict(self.undone))


class TransactionManager:
    """Thread-safe: one lock guards everything; nothing slow happens under it."""

    def __init__(
        self,
        settings: TransactionSettings,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        find_in_log: FindInLog = lambda _transaction, _issued_ms: {},
    ) -> None:
        self._settings = settings
        self._clock = clock
        # Issue times go on with the monotonic clock: a wall clock that is set back would make new ids look old.
        self._started_ms, self._started = wall_clock() * 1000, clock()
        self._find_in_log = find_in_log
        self._ids = TransactionIds(settings.secret.get_secret_value() if settings.secret else None)
        self._lock = threading.Lock()
        # Longest unused first.
        self._readers: OrderedDict[TransactionId, _Transaction] = OrderedDict()
        self._writers: OrderedDict[TransactionId, _Transaction] = OrderedDict()
        # Whatever was issued up to here and is not in memory may have been forgotten, by a restart for instance.
        self._forgotten_until_ms = self._now_ms() - 1

    @property
    def is_enabled(self) -> bool:
        return self._settings.enabled

    def check_enabled(self) -> None:
        if not self.is_enabled:
            raise UnsupportedError("transaction manager not configured")

    def begin(self, *, manual: bool = False) -> TransactionId:
        self.check_enabled()
        return self._ids.issue(self._now_ms(), manual=manual)

    def is_issued(self, transaction: str | None) -> bool:
        """Whether this gateway issued the id, ever."""
        return self._genuine(transaction) is not None

    def now_ms(self) -> int:
        """The clock that ids are issued by, in milliseconds."""
        return self._now_ms()

    def issued_ms(self, transaction: str) -> int | None:
        """When the id was issued; None for one that this gateway did not issue."""
        parsed = self._genuine(transaction)
        return None if parsed is None else parsed.issued_ms

    def open_statement(self, transaction: str, owner: Owner, *, once: bool, changes_rows: bool) -> None:
        """Refuse a statement whose transaction has ended; with `once`, one that has written already has, too.

        New rows need no base: any id will do for them.
        """
        parsed = self._genuine(transaction)
        if parsed is None:
            if changes_rows:
                raise PreconditionError(f"transaction {transaction[:60]} is not known; run the statement again")
            return
        with self._lock:
            known = self._touch(parsed)
            known.owner = owner
            if known.is_renewed and (changes_rows or once):
                raise _expired(parsed.id)
            is_over = known.state is State.COMMITTED and (once or parsed.is_manual or bool(known.undone))
            if known.state is State.ABORTED or is_over:
                raise _not_active(parsed.id, known.state)

    def touch(
        self, transaction: str | None, table: Hashable, newest: Callable[[], Pinnable], owner: Owner | None = None
    ) -> TableView:
        """How this transaction sees a table: as it met it first, and as it wrote it. Without an id, the newest."""
        parsed = self._genuine(transaction)
        if parsed is None:
            return _view_of(newest())
        with self._lock:
            known = self._touch(parsed)
            known.owner = known.owner or owner
            if table in known.tables:
                return known.tables[table]
        view = _view_of(newest())  # looks at the log: not under the lock
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
            # A table that it never read has no older base: nothing was computed from it.
            seen = known.tables.get(table, TableView(version, version))
            own = (*seen.own, OwnWrite(version, own_ids))
            known.tables[table] = replace(seen, read_version=max(version, seen.read_version), own=own)
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

    def failed(self, transaction: str | None) -> None:
        """A statement of this transaction failed, and wrote nothing."""
        if (parsed := self._genuine(transaction)) is not None:
            with self._lock:
                self._touch(parsed).apply(Event.FAILED)

    def unclear(self, transaction: str | None) -> None:
        """A statement may or may not have been written: only the log can say."""
        if (parsed := self._genuine(transaction)) is not None:
            with self._lock:
                self._touch(parsed).is_unclear = True

    def commit(self, transaction: str) -> State:
        """Its statements are durable already; this ends it. May be said again."""
        parsed = self._parsed(transaction)
        with self._lock:
            known = self._remembered(parsed)
            if known is not None:
                known.apply(Event.COMMIT)
                return known.state
        if self._find_in_log(parsed.id, parsed.issued_ms):
            return State.COMMITTED
        raise _expired(parsed.id)

    def rollback(self, transaction: str, undo: Undo) -> Status:
        """End it, and take back what it wrote, table by table. May be said again: nothing is taken back twice."""
        parsed = self._parsed(transaction)
        with self._lock:
            known = self._remembered(parsed)
            if known is not None:
                if known.is_undoing:
                    raise UnavailableError(f"transaction {parsed.id} is being taken back; try again")
                known.is_undoing = True
        if known is None:
            return self._rollback_from_log(parsed, undo)
        try:
            self._undo(known, undo)
        finally:
            with self._lock:
                known.is_undoing = False
        with self._lock:
            known.apply(Event.ROLLBACK)
            return known.status

    def _undo(self, known: _Transaction, undo: Undo) -> None:
        written = [key for key, view in known.tables.items() if view.own]
        if known.is_unclear and (found := self._find_in_log(known.id.id, known.id.issued_ms)):
            written.extend(found)
            with self._lock:
                known.apply(Event.WROTE)
        for key in dict.fromkeys(written):
            if key not in known.undone:
                known.undone[key] = undone = undo(key)
                self._read_from(known, key, undone.version)

    def _read_from(self, known: _Transaction, table: Hashable, version: int | None) -> None:
        with self._lock:
            if version is not None and table in known.tables:
                known.tables[table] = replace(known.tables[table], read_version=version)

    def _rollback_from_log(self, parsed: ParsedId, undo: Undo) -> Status:
        """Of a transaction that is forgotten the log still knows what it wrote."""
        written = self._find_in_log(parsed.id, parsed.issued_ms)
        if not written:
            raise _expired(parsed.id)
        return Status(State.COMMITTED, {key: undo(key) for key in written})

    def last_written_by(self, owner: Owner) -> TransactionId | None:
        """The transaction in which this session's caller wrote last."""
        if owner.session is None:
            return None
        with self._lock:
            own = [known for known in self._writers.values() if known.owner == owner]
            last = max(own, key=lambda known: known.last_write or 0, default=None)
            return None if last is None else last.id.id

    def status(self, transaction: str) -> Status | None:
        """From memory, else from the log; None when nothing is known. Changes nothing."""
        parsed = self._ids.parse(transaction)
        if parsed is None:
            return None
        remembered = self._status_in_memory(parsed)
        if remembered is not None:
            return remembered
        found = self._find_in_log(parsed.id, parsed.issued_ms)
        if found:
            return Status(State.COMMITTED, {key: undone for key, undone in found.items() if undone is not None})
        with self._lock:
            known = self._known(parsed)
            return None if known is None else known.status

    def _status_in_memory(self, parsed: ParsedId) -> Status | None:
        """None when only the log can say."""
        with self._lock:
            known = self._known(parsed)
            if known is not None:
                is_sure = known.state is not State.ACTIVE or not known.is_unclear
                return known.status if is_sure else None
            is_new = parsed.is_genuine and not self._may_be_forgotten(parsed)
            return Status(State.ACTIVE) if is_new else None

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

    def _remembered(self, parsed: ParsedId) -> _Transaction | None:
        """What is known of it; a transaction that has not begun to do anything is known, too."""
        if not parsed.is_genuine:
            return None
        return self._known(parsed) or (None if self._may_be_forgotten(parsed) else self._touch(parsed))

    def _known(self, parsed: ParsedId) -> _Transaction | None:
        return (self._readers.get(parsed.id) or self._writers.get(parsed.id)) if parsed.is_genuine else None

    def _touch(self, parsed: ParsedId) -> _Transaction:
        now = self._clock()
        kind = self._writers if parsed.id in self._writers else self._readers
        known = kind.get(parsed.id)
        if known is None:
            is_renewed = self._may_be_forgotten(parsed)
            known = kind[parsed.id] = _Transaction(parsed, now, is_renewed, is_unclear=is_renewed)
        known.last_used = now
        kind.move_to_end(parsed.id)
        self._forget()
        return known

    def _may_be_forgotten(self, parsed: ParsedId) -> bool:
        idle_ms = self._settings.idle_seconds * 1000
        return parsed.issued_ms <= max(self._forgotten_until_ms, self._now_ms() - idle_ms)

    def _forget(self) -> None:
        horizon = self._clock() - self._settings.idle_seconds
        for kind in (self._readers, self._writers):
            while kind and next(iter(kind.values())).last_used < horizon:
                self._drop_oldest(kind)
        while len(self._readers) + len(self._writers) > self._settings.limit:
            oldest = next(iter(self._readers.values()), None)
            is_in_use = oldest is not None and oldest.last_used > self._clock() - _IN_USE_SECONDS
            self._drop_oldest(self._readers if oldest is not None and not is_in_use else self._writers or self._readers)

    def _drop_oldest(self, kind: OrderedDict[TransactionId, _Transaction]) -> None:
        _, dropped = kind.popitem(last=False)
        self._forgotten_until_ms = max(self._forgotten_until_ms, dropped.id.issued_ms)

    def _now_ms(self) -> int:
        return int(self._started_ms + (self._clock() - self._started) * 1000)


def _view_of(snapshot: Pinnable) -> TableView:
    return TableView(snapshot.version, snapshot.version, snapshot.identity)


def _not_active(transaction: TransactionId, state: State) -> PreconditionError:
    return PreconditionError(f"transaction {transaction} is not active (state: {state.value})")


def _expired(transaction: TransactionId) -> PreconditionError:
    return PreconditionError(f"transaction {transaction} is not known any more; start a new one")
