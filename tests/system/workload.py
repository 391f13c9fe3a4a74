"""Clients at work on a gateway that dies and comes back, and the proof that it lost nothing.

Each client does what users do, again and again, and writes into a ledger what
it was told: done, refused, or nothing (its connection broke). Afterwards the
tables are read without the gateway and compared with the ledger: what was done
is there once, what was refused is not, and of the rest all or nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import msgpack
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow import flight

from tests.airport import AirportClient, ProtocolViolation, Transaction

SCHEMA = "w"
COUNTERS = 3
ACCOUNTS = 6
BALANCE = 1_000
KEYS = 40
_RETRY_SECONDS = 0.2
_UNDOING = threading.Semaphore(2)  # an undo is slow and alone on its table: more of them, and all clients queue there
_UNKNOWN = "not known whether"
_UPLOADED = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass
class Ledger:
    """What clients were told. Thread-safe: one lock guards everything."""

    appended: dict[int, Outcome] = field(default_factory=dict)
    removed: dict[int, Outcome] = field(default_factory=dict)  # by DELETE or by undo
    keyed: dict[int, Outcome] = field(default_factory=dict)  # by the value, which is unlike any other
    added: Counter[tuple[int, Outcome]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, outcome: Outcome, write: Callable[[], None] = lambda: None) -> None:
        with self._lock:
            self.counts[f"{what} {outcome.value}"] += 1
            write()

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    @property
    def done(self) -> int:
        """How many statements were answered with success."""
        with self._lock:
            return sum(count for what, count in self.counts.items() if what.endswith(Outcome.DONE.value))

    def complain(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)


def make_tables(session: object, warehouse: Path) -> None:
    """The tables that clients work on; keys are such that only Spark can write them down."""
    from gateway.lake.sql.quoting import table_at

    def create(name: str, rows: list[tuple[int, int]], properties: str = "") -> None:
        place = table_at(str(warehouse / SCHEMA / name))
        session.sql(  # type: ignore[attr-defined]
            f"CREATE TABLE {place} (_rowid BIGINT, k BIGINT, v BIGINT) USING delta"
            f" TBLPROPERTIES ('delta.enableDeletionVectors' = 'true'{properties})"
        )
        if rows:
            values = ", ".join(f"({number}, {key}, {value})" for number, (key, value) in enumerate(rows))
            session.sql(f"INSERT INTO {place} VALUES {values}")  # type: ignore[attr-defined]

    create("log", [])
    create("undone", [])  # of its own: an undo has its table to itself, and all others would wait for it
    create("counters", [(key, 0) for key in range(COUNTERS)])
    create("accounts", [(key, BALANCE) for key in range(ACCOUNTS)])
    create("keyed", [], """, 'deltaport.primaryKey' = '["k"]'""")


class Worker(threading.Thread):
    """One client. Connects anew whenever its connection broke."""

    def __init__(self, number: int, locate: Callable[[], str], ledger: Ledger, seed: int) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._locate = locate
        self._ledger = ledger
        self._random = random.Random(seed * 1_000 + number)  # noqa: S311 - a workload, not a secret
        self._next = number * 1_000_000
        self._mine: list[int] = []  # keys in the log that are surely there and not yet removed
        self._client: AirportClient | None = None
        self._asked_to_stop = threading.Event()

    def stop(self) -> None:
        self._asked_to_stop.set()

    def run(self) -> None:
        kinds = [self._append, self._append, self._remove, self._increment, self._transfer, self._insert_key]
        kinds += [self._undo, self._read_twice]
        while not self._asked_to_stop.is_set():
            try:
                self._random.choice(kinds)(self._attached())
            except (pa.ArrowException, OSError, ProtocolViolation):
                self._disconnect()  # a read broke; what writes meet is judged where they are sent
                self._asked_to_stop.wait(_RETRY_SECONDS)
            except Exception as error:  # a defect of this driver or of the gateway: never passed over
                self._ledger.complain(f"{type(error).__name__}: {error}")
                self._disconnect()
        self._disconnect()

    def _append(self, client: AirportClient) -> None:
        key = self._unused()
        outcome = self._send(lambda: client.insert(SCHEMA, "log", _rows(key, key)))
        self._ledger.note("append", outcome, lambda: self._ledger.appended.update({key: outcome}))
        if outcome is Outcome.DONE:
            self._mine.append(key)

    def _remove(self, client: AirportClient) -> None:
        if not self._mine:
            return
        key = self._mine.pop()
        found = client.scan(SCHEMA, "log", ["rowid"], filters=[client.table(SCHEMA, "log").ref("k").eq(key)]).rows()
        if len(found) != 1:
            self._ledger.complain(f"key {key} was appended once and is there {len(found)} times")
            return
        outcome = self._send(lambda: client.delete(SCHEMA, "log", [found[0]["rowid"]]))
        self._ledger.note("delete", outcome, lambda: self._ledger.removed.update({key: outcome}))

    def _increment(self, client: AirportClient) -> None:
        transaction = client.begin()
        row = self._random.choice(self._read(client, "counters", transaction))
        change = _change(row["rowid"], row["v"] + 1)
        outcome = self._send(lambda: client.update(SCHEMA, "counters", change, sets=["v"], transaction=transaction))
        self._ledger.note("increment", outcome, lambda: self._ledger.added.update([(row["k"], outcome)]))

    def _transfer(self, client: AirportClient) -> None:
        transaction = client.begin()
        source, target = self._random.sample(self._read(client, "accounts", transaction), 2)
        change = pa.record_batch(
            [
                pa.array([source["v"] - 1, target["v"] + 1], pa.int64()),
                pa.array([source["rowid"], target["rowid"]], pa.int64()),
            ],
            names=["v", "rowid"],
        )
        outcome = self._send(lambda: client.update(SCHEMA, "accounts", change, sets=["v"], transaction=transaction))
        self._ledger.note("transfer", outcome)

    def _insert_key(self, client: AirportClient) -> None:
        value, key = self._unused(), self._random.randrange(KEYS)
        outcome = self._send(lambda: client.insert(SCHEMA, "keyed", _rows(key, value)))
        self._ledger.note("keyed", outcome, lambda: self._ledger.keyed.update({value: outcome}))

    def _undo(self, client: AirportClient) -> None:
        if not _UNDOING.acquire(blocking=False):
            self._append(client)
            return
        try:
            self._append_and_undo(client)
        finally:
            _UNDOING.release()

    def _append_and_undo(self, client: AirportClient) -> None:
        key, transaction = self._unused(), client.begin()
        outcome = self._send(lambda: client.insert(SCHEMA, "undone", _rows(key, key), transaction=transaction))
        self._ledger.note("append", outcome, lambda: self._ledger.appended.update({key: outcome}))
        if outcome is Outcome.DONE and transaction.id is not None:
            body = msgpack.packb({"transaction_id": transaction.id})
            undone = self._send(lambda: client.action("rollback_transaction", body))
            # A transaction that a restarted gateway does not know any more is refused: the row stays.
            self._ledger.note("undo", undone, lambda: self._ledger.removed.update({key: undone}))

    def _read_twice(self, client: AirportClient) -> None:
        transaction = client.begin()
        first = self._read(client, "accounts", transaction)
        time.sleep(self._random.uniform(0, 0.5))
        if self._client is client and self._read(client, "accounts", transaction) != first:
            self._ledger.complain("two reads of one transaction saw different rows")
        if sum(row["v"] for row in first) != ACCOUNTS * BALANCE:
            self._ledger.complain("a read saw money appear or vanish")
        self._ledger.count("read")

    def _read(self, client: AirportClient, table: str, transaction: Transaction) -> list[dict[str, int]]:
        rows = client.scan(SCHEMA, table, ["k", "v", "rowid"], transaction=transaction).rows()
        return sorted(rows, key=lambda row: row["k"])

    def _send(self, statement: Callable[[], object]) -> Outcome:
        try:
            statement()
        except flight.FlightError as error:
            if error.extra_info:  # the gateway's own words
                self._asked_to_stop.wait(_RETRY_SECONDS)
                return Outcome.UNKNOWN if _UNKNOWN in str(error) else Outcome.REFUSED
            self._disconnect()
            return Outcome.UNKNOWN
        except (pa.ArrowException, OSError, ProtocolViolation):
            self._disconnect()
            return Outcome.UNKNOWN
        return Outcome.DONE

    def _unused(self) -> int:
        self._next += 1
        return self._next

    def _attached(self) -> AirportClient:
        if self._client is None:
            self._client = AirportClient(self._locate(), "lake")
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _rows(key: int, value: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([key], pa.int64()), pa.array([value], pa.int64())], schema=_UPLOADED)


def _change(row_id: int, value: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([value], pa.int64()), pa.array([row_id], pa.int64())], names=["v", "rowid"])


def judge(ledger: Ledger, warehouse: Path) -> list[str]:
    """What is wrong, in sentences; the tables are read without the gateway."""
    names = ("log", "undone", "counters", "accounts", "keyed")
    log, undone, counters, accounts, keyed = stored = [_stored(warehouse, name) for name in names]
    wrong = [*ledger.wrong]
    for name, rows in zip(names, stored, strict=True):
        ids = [row["_rowid"] for row in rows]
        if None in ids or len(set(ids)) < len(ids):
            wrong.append(f"{name}: row ids are missing or doubled")
    wrong += _judge_log(ledger, Counter(row["k"] for row in [*log, *undone]))
    for row in counters:
        done, unknown = (ledger.added[row["k"], outcome] for outcome in (Outcome.DONE, Outcome.UNKNOWN))
        if not done <= row["v"] <= done + unknown:
            wrong.append(f"counter {row['k']} is {row['v']}; {done} were added for sure and {unknown} perhaps")
    if sum(row["v"] for row in accounts) != ACCOUNTS * BALANCE:
        wrong.append("the accounts do not add up")
    if any(count > 1 for count in Counter(row["k"] for row in keyed).values()):
        wrong.append("a primary key is there twice")
    values = {row["v"] for row in keyed}
    for value, outcome in ledger.keyed.items():
        if (value in values) != (outcome is Outcome.DONE) and outcome is not Outcome.UNKNOWN:
            wrong.append(f"keyed: {value} was {outcome.value}, and the table says otherwise")
    return wrong


def _judge_log(ledger: Ledger, there: Counter[int]) -> list[str]:
    wrong = []
    for key, outcome in ledger.appended.items():
        removed = ledger.removed.get(key, Outcome.REFUSED)
        if there[key] > 1:
            wrong.append(f"key {key} is there {there[key]} times")
        elif outcome is Outcome.DONE and removed is Outcome.REFUSED and not there[key]:
            wrong.append(f"key {key} was appended and is lost")
        elif (outcome is Outcome.REFUSED or removed is Outcome.DONE) and there[key]:
            wrong.append(f"key {key} was {outcome.value}, its removal {removed.value}, and it is there")
    if strangers := set(there) - set(ledger.appended):
        wrong.append(f"keys that nobody appended are there: {sorted(strangers)[:3]}")
    return wrong


def _stored(warehouse: Path, name: str) -> list[dict[str, int]]:
    table = DeltaTable(str(warehouse / SCHEMA / name))
    found = QueryBuilder().register("t", table).execute("SELECT _rowid, k, v FROM t")
    rows: list[dict[str, int]] = pa.RecordBatchReader.from_stream(found).read_all().to_pylist()
    return rows
