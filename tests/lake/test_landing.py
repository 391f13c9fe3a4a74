"""What becomes of a commit whose answer is lost, late or an error: alike for every kind of commit, on a real Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.access.callers import Caller
from gateway.catalog.calls import Call
from gateway.catalog.changes import Footprint, WriteContext, WriteOptions
from gateway.errors import (
    ConflictError,
    GatewayError,
    InternalError,
    OutcomeUnknownError,
    UnavailableError,
)
from gateway.lake.adopting.automatic import Numbering
from gateway.lake.commits import landing
from gateway.lake.commits.landing import NOTE, Landing
from gateway.lake.delta_table import DeltaTable
from gateway.lake.spark.engine import Spark
from gateway.lake.writing import merge
from gateway.wire.ddl_messages import ChangeColumnType
from tests.builders import Lake
from tests.doubles import InTransaction
from tests.flight.writing import NUMBERS, numbers
from tests.lake.reading import open_table, read

ME = Call(caller=Caller("me"))
Make = Callable[[], Any]
Fault = Callable[[Make], Any]


@dataclass(frozen=True)
class Kind:
    """A commit on the table `n`: how it is made, whether it was, and what the table is not known to be without it."""

    run: Callable[[DeltaTable], object]
    is_done: Callable[[DeltaTable], bool]
    unknown: str


def insert(table: DeltaTable, key: int, transaction: str | None = None) -> int:
    kind = pa.string() if KINDS["alter"].is_done(table) else pa.int64()
    rows = pa.record_batch({"k": pa.array([key]).cast(kind), "v": pa.array(["new"])})
    able: Any = table.changes()
    context = WriteContext(ME, None if transaction is None else InTransaction(transaction))
    statement = able.insert(rows.schema, WriteOptions(), context)
    statement.add(rows)
    return int(statement.commit())


def keys(table: DeltaTable) -> list[Any]:
    return sorted(int(key) for key in read(table.current(), ["k"]).table["k"].to_pylist())


def ids(table: DeltaTable) -> list[Any]:
    return read(table.current(), ["rowid"]).table["rowid"].to_pylist()  # type: ignore[no-any-return]


KINDS = {
    "merge": Kind(
        lambda table: insert(table, 20), lambda table: keys(table).count(20) == 1, "the statement was written"
    ),
    "undo": Kind(
        lambda table: table.undo("mine", WriteContext(ME), Footprint()).rows,
        lambda table: 10 not in keys(table),
        "the statement was written",
    ),
    "adoption": Kind(
        lambda table: table.adoption().run().rows, lambda table: None not in ids(table), "its rows were numbered"
    ),
    "alter": Kind(
        lambda table: table.alter(ChangeColumnType(pa.field("k", pa.string()), "CAST(k AS VARCHAR)"), ME) and 1,
        lambda table: table.current().shape.field("k").type != pa.int64(),
        "it was altered",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def table(lake: Lake, lake_spark: Spark, monkeypatch: pytest.MonkeyPatch) -> DeltaTable:
    """For each kind there is something to do, in one commit."""
    monkeypatch.setattr(landing, "_END_SECONDS", 0.01)
    numbers(lake)
    opened = open_table(lake.path("n"), lake_spark)
    insert(opened, 10, "mine")
    write_deltalake(str(lake.path("n")), pa.table([[None], [90], ["foreign"]], schema=NUMBERS), mode="append")
    assert not any(kind.is_done(opened) for kind in KINDS.values())
    return opened


class Faults:
    """Spoils commits, one after the other, at the place where each of them is made; later ones are as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: Fault) -> None:
        self._faults = faults
        self._late: list[Make] = []
        self.tries = 0
        original = Landing.commit

        def commit(own: Landing, kind: Any, head: Any, note: Any, profile: Any, make: Callable[[Any], Any]) -> Any:
            def make_late() -> None:
                with own.spark.session(profile) as session:
                    session.conf.set(NOTE, note.encode())
                    try:
                        make(session)
                    finally:
                        session.conf.unset(NOTE)

            def spoiled(session: Any) -> Any:
                self.tries += 1
                if self.tries > len(self._faults):
                    return make(session)
                self._late.append(make_late)
                return self._faults[self.tries - 1](lambda: make(session))

            return original(own, kind, head, note, profile, spoiled)

        monkeypatch.setattr(Landing, "commit", commit)

    def finish(self) -> None:
        """The JVM, which nobody hears any more, ends the last commit that it was given."""
        self._late[-1]()


def before(error: Exception) -> Fault:
    def fault(_make: Make) -> Any:
        raise error

    return fault


def after(error: Exception) -> Fault:
    def fault(make: Make) -> Any:
        make()
        raise error

    return fault


def as_ever(make: Make) -> Any:
    return make()


SILENCE = ConnectionResetError("the JVM does not answer")
CONFLICT = RuntimeError("io.delta.exceptions.ConcurrentAppendException")


@pytest.mark.parametrize("error", [SILENCE, CONFLICT, RuntimeError("after the commit")], ids=str)
def test_a_commit_that_landed_is_a_success_whatever_the_error(
    table: DeltaTable, kind: Kind, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, after(error))
    assert kind.run(table) == 1
    assert (faults.tries, table.current().version) == (1, version + 1)
    assert kind.is_done(table)


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is taken for the JVM, because it can be ended and the one that all tests share cannot."""
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(Spark, "jvm", process)
    yield process
    process.kill()
    process.wait()


def test_a_commit_that_the_jvm_took_to_its_grave_did_not_land(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch, jvm: subprocess.Popen[bytes]
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, before(SILENCE))
    jvm.kill()
    with pytest.raises(UnavailableError, match=r"^Spark stopped during the statement; .*, try again$"):
        kind.run(table)
    assert (faults.tries, table.current().version) == (1, version)
    assert kind.run(table) == 1
    assert kind.is_done(table)


def test_an_error_of_spark_leaves_the_table_as_it_was(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, before(RuntimeError("/a/path: java.lang.Error")))
    with pytest.raises(InternalError, match=r"^table 's.n': Spark could not [a-z ]+; [a-z ]+$"):
        kind.run(table)
    assert (faults.tries, table.current().version) == (1, version)
    assert kind.run(table) == 1
    assert kind.is_done(table)


def refusal_of_each(table: DeltaTable) -> set[str]:
    refusals = []
    for each in KINDS.values():
        with pytest.raises(UnavailableError) as refusal:
            each.run(table)
        refusals.append(refusal.value.message)
    return set(refusals)


NOT_YET = {"table 's.n': Spark may still be writing an earlier statement; try again"}


def test_after_an_unknown_outcome_nothing_is_written_until_that_commit_lands(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, before(SILENCE))
    with pytest.raises(OutcomeUnknownError, match=f"^table 's.n': it is not known whether {kind.unknown}$"):
        kind.run(table)
    assert refusal_of_each(table) == NOT_YET
    with pytest.raises(UnavailableError, match="may still be writing"), table.exclusive():
        pass
    assert (faults.tries, table.current().version) == (1, version)
    faults.finish()
    assert kind.is_done(table)
    for each in (KINDS["merge"], KINDS["adoption"], KINDS["alter"]):
        if each is not kind:
            assert each.run(table) == 1
            assert each.is_done(table)
    assert kind.is_done(table)
    assert table.current().version == version + (4 if kind is KINDS["undo"] else 3)


def test_after_an_unknown_outcome_nothing_is_written_until_its_jvm_has_ended(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch, jvm: subprocess.Popen[bytes]
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, before(SILENCE))
    with pytest.raises(OutcomeUnknownError, match=kind.unknown):
        kind.run(table)
    assert refusal_of_each(table) == NOT_YET
    assert faults.tries == 1
    jvm.kill()
    jvm.wait()
    assert not kind.is_done(table)
    assert kind.run(table) == 1
    assert kind.is_done(table)
    assert table.current().version == version + 1


def test_a_commit_that_others_overtook_is_tried_again(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, *[before(CONFLICT)] * 3)
    table._landing.retry_seconds = 0  # however long each took, it is tried four times
    assert kind.run(table) == 1
    assert (faults.tries, table.current().version) == (4, version + 1)
    assert kind.is_done(table)


def test_a_commit_that_others_overtake_for_ever_is_a_conflict(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, faults = table.current().version, Faults(monkeypatch, *[before(CONFLICT)] * 9)
    table._landing.retry_seconds = 0
    with pytest.raises(
        ConflictError, match=r"during each of 4 tries in \d+ s, and .* while nobody else commits; try again"
    ):
        kind.run(table)
    assert (faults.tries, table.current().version) == (4, version)


def test_an_error_over_columns_that_others_changed_is_tried_again(
    table: DeltaTable, kind: Kind, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(_make: Make) -> Any:
        with ThreadPoolExecutor(1) as other:  # Spark keeps the session of a thread
            other.submit(lake.sql, "ALTER TABLE {t} ADD COLUMN extra INT", "n").result()
        raise RuntimeError("no such column")

    faults = Faults(monkeypatch, overtaken)
    if kind is KINDS["undo"]:
        with pytest.raises(GatewayError, match="its columns were altered since the transaction wrote"):
            kind.run(table)
    else:
        assert kind.run(table) == 1
        assert faults.tries == 2


class Refusing:
    """The guard of a process that must not write any more."""

    is_held = False
    reason = "another gateway writes"

    def check(self) -> object:
        raise UnavailableError(self.reason)

    def refuse_early(self) -> None:
        """It held the lock when the statement began."""


def test_a_process_that_lost_the_lock_commits_nothing(table: DeltaTable, kind: Kind) -> None:
    version = table.current().version
    table._landing.guard = Refusing()
    with pytest.raises(UnavailableError, match="another gateway writes"):
        kind.run(table)
    assert table.current().version == version


@pytest.fixture
def miscounted(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the next statement reaches Spark twice."""
    original = merge.rows_in_memory

    def other_rows(session: Any, rows: pa.Table, types: Any) -> Any:
        monkeypatch.setattr(merge, "rows_in_memory", original)
        return original(session, pa.concat_tables([rows, rows]), types)

    monkeypatch.setattr(merge, "rows_in_memory", other_rows)


@pytest.mark.usefixtures("miscounted")
def test_a_commit_that_was_taken_back_is_known_to_be_though_the_answer_was_lost(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_it = keys(table)
    Faults(monkeypatch, as_ever, after(SILENCE))
    with pytest.raises(InternalError, match="that was taken back"):
        insert(table, 20)
    assert keys(table) == before_it
    assert insert(table, 20) == 1


@pytest.mark.usefixtures("miscounted")
def test_a_commit_that_may_still_be_taken_back_lets_nothing_else_be_written(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_it = keys(table)
    faults = Faults(monkeypatch, as_ever, before(SILENCE))
    with pytest.raises(OutcomeUnknownError, match=r"version 3 holds other rows than the statement had; look at it"):
        insert(table, 20)
    assert refusal_of_each(table) == NOT_YET
    faults.finish()
    assert keys(table) == before_it
    assert insert(table, 20) == 1


def test_a_statement_whose_rows_may_not_be_numbered_yet_was_surely_not_written() -> None:
    def adopt() -> Any:
        raise OutcomeUnknownError("table 's.n': it is not known whether its rows were numbered")

    with pytest.raises(UnavailableError, match="were numbered; the statement was not written, run it again"):
        Numbering("s.n", adopt).number(0)


def test_while_the_log_cannot_be_read_the_outcome_is_unknown_and_later_commits_are_made(
    table: DeltaTable, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, unread = landing.find_commit, iter([OSError("the disk does not answer")] * 2)

    def find_commit(*arguments: Any) -> int | None:
        if (error := next(unread, None)) is not None:
            raise error
        return original(*arguments)

    monkeypatch.setattr(landing, "find_commit", find_commit)
    with pytest.raises(OutcomeUnknownError, match=kind.unknown):
        kind.run(table)
    assert kind.is_done(table)
    assert insert(table, 30) == 1
