"""Transactions: ids, and which version of each table a transaction reads.

An id carries its issue time and a signature, so issuing one stores nothing and
never fails. State starts when a transaction first touches a table; what stays
unused for long, or exceeds the limit, is forgotten, oldest first. A forgotten
or foreign id simply gets a fresh pin when it reads.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NewType

from gateway.errors import PreconditionError
from gateway.settings import TransactionSettings
from gateway.transactions.state import Event, State, after

TransactionId = NewType("TransactionId", str)


@dataclass(slots=True)
class _Transaction:
    last_used: float
    state: State = State.ACTIVE
    read_versions: dict[Hashable, int] = field(default_factory=dict)


class TransactionManager:
    """Thread-safe: one lock guards everything; nothing slow happens under it."""

    def __init__(self, settings: TransactionSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        secret = settings.secret.get_secret_value().encode() if settings.secret else secrets.token_bytes(32)
        self._key = hashlib.sha256(secret).digest()
        self._lock = threading.Lock()
        self._open: OrderedDict[TransactionId, _Transaction] = OrderedDict()

    def begin(self) -> TransactionId:
        body = f"{time.time_ns() // 1_000_000:x}-{secrets.token_hex(8)}"
        return TransactionId(f"{body}-{self._sign(body)}")

    def is_issued(self, transaction: str) -> bool:
        """Whether this gateway issued the id, ever."""
        body, dash, signature = transaction.rpartition("-")
        return bool(dash) and hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(body).encode())

    def read_version(self, transaction: str | None, table: Hashable, newest: Callable[[], int]) -> int:
        """The version this transaction reads of a table: the one it met first. Without an id, the newest."""
        if not transaction or not self.is_issued(transaction):
            return newest()
        identity = TransactionId(transaction)
        pinned = self._pinned(identity, table)
        if pinned is not None:
            return pinned
        version = newest()  # looks at the log: not under the lock
        with self._lock:
            return self._touch(identity).read_versions.setdefault(table, version)

    def check_writable(self, transaction: str, *, once: bool) -> None:
        """Refuse a statement whose transaction has ended; with `once`, one that has written already has, too."""
        state = self.state(transaction)
        if state is None:
            raise PreconditionError(f"transaction {transaction[:60]} is not known; run the statement again")
        if state is State.ABORTED or (once and state is State.COMMITTED):
            raise PreconditionError(f"transaction {transaction} is not active (state: {state.value})")

    def state(self, transaction: str) -> State | None:
        """None for an id that this gateway did not issue."""
        if not self.is_issued(transaction):
            return None
        with self._lock:
            known = self._open.get(TransactionId(transaction))
            return State.ACTIVE if known is None else known.state

    def wrote(self, transaction: str | None, table: Hashable, version: int | None) -> None:
        """A statement was written; the transaction goes on reading the table as of its own last write."""
        if transaction and self.is_issued(transaction):
            with self._lock:
                known = self._touch(TransactionId(transaction))
                known.state = after(known.state, Event.WROTE)
                if version is not None:
                    known.read_versions[table] = version

    def failed(self, transaction: str | None) -> None:
        """A statement of this transaction failed, and wrote nothing."""
        if transaction and self.is_issued(transaction):
            with self._lock:
                known = self._touch(TransactionId(transaction))
                known.state = after(known.state, Event.FAILED)

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._open)

    def _pinned(self, identity: TransactionId, table: Hashable) -> int | None:
        with self._lock:
            if identity not in self._open:
                return None
            return self._touch(identity).read_versions.get(table)

    def _touch(self, identity: TransactionId) -> _Transaction:
        now = self._clock()
        state = self._open.setdefault(identity, _Transaction(now))
        state.last_used = now
        self._open.move_to_end(identity)
        self._forget()
        return state

    def _forget(self) -> None:
        horizon = self._clock() - self._settings.idle_seconds
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.last_used >= horizon and len(self._open) <= self._settings.limit:
                return
            self._open.popitem(last=False)

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:16]
