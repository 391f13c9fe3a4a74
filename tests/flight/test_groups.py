"""Statements that share a commit, over the wire and with a real Spark: own counts, own errors, own undo."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.changes import Footprint, Undone, WriteContext
from gateway.errors import ConflictError
from gateway.lake.writing import preparation
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import (
    batch,
    before_the_next_merge,
    during_the_next_merge,
    numbers,
    refused,
    rows_of,
    version_of,
)
from tests.nasty import DISGUISES, EVERYTHING, Disguise

Work = Callable[[AirportClient], Any]
KEYS = {"deltaport__primaryKey": '["k"]'}


class Together:
    """Statements of several clients that all wait while a first one is written, and so share the next commit."""

    def __init__(
        self, gateway: Gateway, lake: Lake, monkeypatch: pytest.MonkeyPatch, disguise: Disguise | None = None
    ) -> None:
        self._gateway = gateway
        self._disguise = disguise
        self._lake = lake
        self._monkeypatch = monkeypatch
        self.merges: list[str] = []

    def run(self, *works: Work) -> list[Future[Any]]:
        """What became of each; the statement they waited for inserted a row with the key -1."""
        with self._clients(len(works) + 1) as (first, *clients), ThreadPoolExecutor(len(works)) as threads:
            futures: list[Future[Any]] = []

            def queue_up() -> None:
                for number, (work, client) in enumerate(zip(works, clients, strict=True)):
                    futures.append(threads.submit(work, client))
                    self._wait_for_queue(number + 1, futures)

            with before_the_next_merge(self._monkeypatch, queue_up) as self.merges:
                first.insert(self._lake.schema, "n", batch(k=[-1], v=["first"]))
                for future in futures:
                    future.exception(120)
        return futures

    @contextmanager
    def _clients(self, count: int) -> Iterator[list[AirportClient]]:
        clients = [AirportClient(self._gateway.location, CATALOG, disguise=self._disguise) for _ in range(count)]
        for client in clients:
            client.table(self._lake.schema, "n")
        yield clients
        for client in clients:
            client.close()

    def _wait_for_queue(self, length: int, futures: Sequence[Future[Any]]) -> None:
        queue = table_of(self._gateway, self._lake)._write_room.writer._queue
        deadline = time.monotonic() + 60
        while len(queue._queue) + sum(future.done() for future in futures) < length:
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def together(gateway: Gateway, lake: Lake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Together:
    return Together(gateway, lake, monkeypatch, getattr(request, "param", None))


disguised_together = pytest.mark.parametrize(
    "together",
    [None, DISGUISES["empty batches"], EVERYTHING],
    ids=["plain", "empty batches", "everything"],
    indirect=True,
)


def table_of(gateway: Gateway, lake: Lake) -> Any:
    return gateway.service.lake.catalogs.get(CATALOG).table(lake.schema, "n")


def insert(lake: Lake, key: int, **more: Any) -> Work:
    return lambda client: client.insert(lake.schema, "n", batch(k=[key], v=["new"]), **more).total_changed


def update(lake: Lake, *row_ids: int, **more: Any) -> Work:
    rows = batch(v=["changed"] * len(row_ids), rowid=list(row_ids))
    return lambda client: client.update(lake.schema, "n", rows, sets=["v"], **more).total_changed


def delete(lake: Lake, *row_ids: int, **more: Any) -> Work:
    return lambda client: client.delete(lake.schema, "n", list(row_ids), **more).total_changed


def notes_of(lake: Lake) -> list[list[dict[str, Any]]]:
    """What the gateway noted of the statements of each commit, newest first."""
    history = DeltaTable(str(lake.path("n"))).history()
    return [json.loads(info["userMetadata"])["deltaport"]["statements"] for info in history if "userMetadata" in info]


@disguised_together
def test_statements_that_wait_become_one_commit_with_their_own_counts(
    together: Together, client: AirportClient, lake: Lake
) -> None:
    numbers(lake, rows=6)
    works = [insert(lake, 10), update(lake, 0, 1, 99), delete(lake, 2, 98, 2), insert(lake, 11), update(lake, 77)]
    assert [future.result() for future in together.run(*works)] == [1, 2, 1, 1, 0]
    assert version_of(lake) == 2
    assert rows_of(client, lake) == [
        (-1, "first", 6),
        (0, "changed", 0),
        (1, "changed", 1),
        (3, "v3", 3),
        (4, "v4", 4),
        (5, "v5", 5),
        (10, "new", 7),
        (11, "new", 8),
    ]
    shared = [(note["operation"], note["rows"], note["ids"]) for note in notes_of(lake)[0]]
    assert shared == [("insert", 1, "7"), ("update", 2, "0:1"), ("delete", 1, "2"), ("insert", 1, "8")]


@disguised_together
def test_a_bad_member_is_refused_and_the_others_are_written(
    together: Together, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT small CHECK (k < 100)", "n")
    keys = [10, 11, 500, 12, 13]
    futures = together.run(*(insert(lake, key) for key in keys))
    assert [key for key, future in zip(keys, futures, strict=True) if future.exception() is not None] == [500]
    assert "small" in str(futures[2].exception())
    assert [row[0] for row in rows_of(client, lake)] == [-1, 0, 1, 2, 3, 10, 11, 12, 13]
    assert len(notes_of(lake)) == 2  # of the statement that went before, and of the others, together


def test_however_many_break_a_constraint_they_are_found_at_once(
    together: Together, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT small CHECK (k < 100 AND v <> 'changed')", "n")
    works = [insert(lake, 500), insert(lake, 10), update(lake, 0), insert(lake, 501), update(lake, 1), delete(lake, 2)]
    futures = together.run(*works)
    assert [future.exception() is None for future in futures] == [False, True, False, False, False, True]
    assert all("CHECK constraint failed: small" in str(futures[place].exception()) for place in (0, 2, 3, 4))
    assert [row[0] for row in rows_of(client, lake)] == [-1, 0, 1, 3, 10]
    # Of the statement before them, of all of them, and of those that were left.
    assert len(together.merges) == 3


def test_a_statement_that_cannot_be_prepared_fails_alone(
    together: Together, client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    original = preparation._check_schema

    def check(head: Any, pending: Any) -> None:
        if 10 in pending.rows.table().column("k").to_pylist():
            raise ZeroDivisionError
        original(head, pending)

    monkeypatch.setattr(preparation, "_check_schema", check)
    futures = together.run(insert(lake, 10), insert(lake, 11))
    assert "the statement could not be prepared; nothing was written" in str(futures[0].exception())
    assert futures[1].result() == 1
    assert [row[0] for row in rows_of(client, lake)] == [-1, 0, 1, 2, 3, 11]


def test_of_two_statements_with_one_key_the_first_is_written(
    together: Together, client: AirportClient, lake: Lake
) -> None:
    numbers(lake, **KEYS)
    futures = together.run(insert(lake, 10), insert(lake, 10), delete(lake, 1), insert(lake, 1), insert(lake, 2))
    assert [future.exception() is None for future in futures] == [True, False, True, True, False]
    assert "Duplicate key" in str(futures[1].exception())
    assert [row[0] for row in rows_of(client, lake)] == [-1, 0, 1, 2, 3, 10]


def test_of_two_transactions_that_change_one_row_the_first_wins(
    together: Together, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    transactions = [client.begin() for _ in range(3)]
    for transaction in transactions:
        client.scan(lake.schema, "n", transaction=transaction)
    one, other, apart = transactions
    futures = together.run(
        update(lake, 0, transaction=one), delete(lake, 0, 1, transaction=other), update(lake, 2, transaction=apart)
    )
    assert [future.exception() is None for future in futures] == [True, False, True]
    assert "try again" in str(futures[1].exception())
    assert [row[1] for row in rows_of(client, lake)] == ["first", "changed", "v1", "changed", "v3"]


def test_many_clients_add_to_one_row_and_nothing_is_lost(gateway: Gateway, client: AirportClient, lake: Lake) -> None:
    """Each either adds one or is refused as a conflict."""
    numbers(lake, rows=1)
    start = threading.Barrier(6)

    def increment(_: int) -> bool:
        with AirportClient(gateway.location, CATALOG) as own:
            start.wait(60)
            transaction = own.begin()
            value = own.scan(lake.schema, "n", ["k", "rowid"], transaction=transaction).rows()[0]["k"]
            try:
                own.update(lake.schema, "n", batch(k=[value + 1], rowid=[0]), sets=["k"], transaction=transaction)
            except flight.FlightError as error:
                assert "conflict" in str(error)
                return False
            return True

    with ThreadPoolExecutor(6) as threads:
        landed = sum(threads.map(increment, range(6)))
    assert landed >= 1
    assert [row[0] for row in rows_of(client, lake)] == [landed]


# Undo.


def undo(gateway: Gateway, lake: Lake, transaction: Any) -> Undone:
    context, anywhere = WriteContext(Call()), Footprint()
    undone: Undone = table_of(gateway, lake).undo(transaction.id or "never used", context, anywhere)
    return undone


def test_undo_takes_back_its_own_rows_out_of_a_shared_commit(
    together: Together, gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake, rows=6)
    mine = client.begin()
    works = [update(lake, 0, 1, transaction=mine), update(lake, 2), insert(lake, 10), delete(lake, 5)]
    for future in together.run(*works):
        future.result()
    before = rows_of(client, lake)
    undone = undo(gateway, lake, mine)
    assert undone == Undone(rows=2, version=version_of(lake))
    expected = {0: (0, "v0", 0), 1: (1, "v1", 1)}
    assert rows_of(client, lake) == [expected.get(row[2], row) for row in before]  # type: ignore[call-overload]
    assert undo(gateway, lake, mine) == undone, "a second time only says so again"
    assert version_of(lake) == undone.version


def test_undo_of_several_statements_goes_back_to_before_the_first(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    original = rows_of(client, lake)
    mine = client.begin()
    client.scan(lake.schema, "n", transaction=mine)
    assert insert(lake, 10, transaction=mine)(client) == 1
    assert update(lake, 0, 4, transaction=mine)(client) == 2
    assert delete(lake, 0, 1, transaction=mine)(client) == 2
    assert insert(lake, 11)(client) == 1, "somebody else's"
    undone = undo(gateway, lake, mine)
    assert undone.rows == 3
    assert rows_of(client, lake) == [*original, (11, "new", 5)]
    assert insert(lake, 12)(client) == 1
    assert rows_of(client, lake)[-1] == (12, "new", 6), "ids are never given again"


def test_undo_is_refused_when_others_changed_a_row_since(gateway: Gateway, client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    mine = client.begin()
    assert update(lake, 0, 1, transaction=mine)(client) == 2
    assert delete(lake, 1)(client) == 1
    version = version_of(lake)
    with pytest.raises(ConflictError, match="changed by others since"):
        undo(gateway, lake, mine)
    assert version_of(lake) == version


def test_a_row_that_an_undo_put_back_is_a_conflict_for_who_read_it_before(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    mine, theirs = client.begin(), client.begin()
    assert update(lake, 0, transaction=mine)(client) == 1
    client.scan(lake.schema, "n", transaction=theirs)
    assert undo(gateway, lake, mine).rows == 1
    assert "conflict" in refused(lambda: update(lake, 0, transaction=theirs)(client))
    assert rows_of(client, lake)[0] == (0, "v0", 0)


def test_undo_of_what_wrote_nothing_does_nothing(gateway: Gateway, client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    assert undo(gateway, lake, client.begin()) == Undone(rows=0, version=None)
    assert version_of(lake) == 0


# Foreign writers.


def foreign_append(lake: Lake) -> None:
    lake.sql("INSERT INTO {t} VALUES (NULL, 90, 'foreign')", "n")


def foreign_update(lake: Lake, key: int) -> None:
    lake.sql(f"UPDATE {{t}} SET v = 'foreign' WHERE k = {key}", "n")


def foreign_delete(lake: Lake, key: int) -> None:
    lake.sql(f"DELETE FROM {{t}} WHERE k = {key}", "n")


def optimize(lake: Lake) -> None:
    lake.sql("OPTIMIZE {t}", "n")


def add_column(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} ADD COLUMN extra INT", "n")


FOREIGN: dict[str, Callable[[Lake], None]] = {
    "append": foreign_append,
    "update of the row": lambda lake: foreign_update(lake, 1),
    "update of another row": lambda lake: foreign_update(lake, 3),
    "delete of the row": lambda lake: foreign_delete(lake, 1),
    "delete of another row": lambda lake: foreign_delete(lake, 3),
    "optimize": optimize,
    "new column": add_column,
    "dropped column": lambda lake: lake.sql("ALTER TABLE {t} DROP COLUMN v", "n"),
}
LANDS, CONFLICTS, REFUSED = "lands", "conflict", "attach again"
MATRIX = {
    ("insert", "append"): LANDS,
    ("insert", "update of the row"): LANDS,
    ("insert", "update of another row"): LANDS,
    ("insert", "delete of the row"): LANDS,
    ("insert", "delete of another row"): LANDS,
    ("insert", "optimize"): LANDS,
    ("insert", "new column"): LANDS,
    ("insert", "dropped column"): REFUSED,
    ("update", "append"): LANDS,
    ("update", "update of the row"): CONFLICTS,
    ("update", "update of another row"): LANDS,
    ("update", "delete of the row"): CONFLICTS,
    ("update", "delete of another row"): LANDS,
    ("update", "optimize"): LANDS,
    ("update", "new column"): LANDS,
    ("update", "dropped column"): REFUSED,
    ("delete", "append"): LANDS,
    ("delete", "update of the row"): CONFLICTS,
    ("delete", "update of another row"): LANDS,
    ("delete", "delete of the row"): CONFLICTS,
    ("delete", "delete of another row"): LANDS,
    ("delete", "optimize"): LANDS,
    ("delete", "new column"): LANDS,
    ("delete", "dropped column"): CONFLICTS,
}


MOMENTS = {"before its snapshot": before_the_next_merge, "during its jobs": during_the_next_merge}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("statement", "foreign"), MATRIX)
def test_a_foreign_commit_between_our_check_and_our_commit(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch, statement: str, foreign: str, moment: str
) -> None:
    """Our statement against each kind of foreign commit, which lands after the committer looked at the table."""
    numbers(lake)
    lake.sql("INSERT INTO {t} VALUES (NULL, 80, 'second file')", "n")
    if foreign == "dropped column":
        lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", "n")
    transaction = client.begin()
    client.scan(lake.schema, "n", transaction=transaction)
    works = {"insert": insert(lake, 10, transaction=transaction)}
    works["update"] = update(lake, 1, transaction=transaction)
    works["delete"] = delete(lake, 1, transaction=transaction)
    with MOMENTS[moment](monkeypatch, lambda: FOREIGN[foreign](lake)):
        expected = MATRIX[statement, foreign]
        if expected is LANDS:
            assert works[statement](client) == 1
        else:
            assert expected in refused(lambda: works[statement](client))
    stored = {row["k"]: row.asDict().get("v") for row in lake.sql("SELECT * FROM {t}", "n").collect()}
    if statement == "insert":
        assert (10 in stored) == (expected is LANDS)
    elif statement == "update":
        assert (stored.get(1) == "changed") == (expected is LANDS)
    elif foreign != "delete of the row":
        assert (1 not in stored) == (expected is LANDS)


def test_new_rows_without_a_value_for_a_new_key_are_refused(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)

    def add_key() -> None:
        add_column(lake)
        lake.sql("""ALTER TABLE {t} SET TBLPROPERTIES ('deltaport.unique' = '[["extra"]]')""", "n")

    with before_the_next_merge(monkeypatch, add_key):
        assert "column 'extra' is new and needs a value" in refused(lambda: insert(lake, 10)(client))
    assert lake.sql("SELECT count(*) FROM {t}", "n").collect()[0][0] == 4


@pytest.mark.parametrize("statement", ["update", "delete"])
def test_a_change_is_tried_until_others_leave_it_the_time(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    numbers(lake)
    work = {"update": update(lake, 0), "delete": delete(lake, 0)}[statement]
    with before_the_next_merge(monkeypatch, lambda: foreign_append(lake), times=4) as merges:
        assert work(client) == 1
    assert len(merges) == 5
    ours = [row for row in rows_of(client, lake) if row[1] != "foreign"]
    assert ours[:-3] == ([(0, "changed", 0)] if statement == "update" else [])
    assert len(rows_of(client, lake)) == len(ours) + 4


def test_new_rows_land_however_often_others_append_before_their_snapshot(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    with before_the_next_merge(monkeypatch, lambda: foreign_append(lake), times=math.inf) as merges:
        assert insert(lake, 10)(client) == 1
    assert [row for row in rows_of(client, lake) if row[1] == "new"] == [(10, "new", 4)]
    assert len(rows_of(client, lake)) == 4 + 1 + len(merges)


def test_new_rows_land_however_often_others_append_during_their_jobs(
    start_gateway: Callable[..., Gateway], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    hurried = start_gateway(lake.warehouse, write={"retry_seconds": 5})
    with (
        AirportClient(hurried.location, CATALOG) as client,
        during_the_next_merge(monkeypatch, lambda: foreign_append(lake), times=math.inf) as merges,
    ):
        assert insert(lake, 10)(client) == 1
        assert [row for row in rows_of(client, lake) if row[1] == "new"] == [(10, "new", 4)]
        assert len(rows_of(client, lake)) == 4 + 1 + len(merges)


def test_new_rows_do_not_wait_for_changes_that_others_hold_up(
    start_gateway: Callable[..., Gateway], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    hurried = start_gateway(lake.warehouse, write={"retry_seconds": 1})
    with AirportClient(hurried.location, CATALOG) as client:
        client.table(lake.schema, "n")
    together = Together(hurried, lake, monkeypatch)
    with during_the_next_merge(monkeypatch, lambda: foreign_append(lake), times=math.inf) as merges:
        inserted, updated = together.run(insert(lake, 10), update(lake, 0))
    assert inserted.result() == 1
    assert "others committed to it during each of 4 tries" in str(updated.exception())
    assert "rows can only be changed while nobody else commits" in str(updated.exception())
    # The first INSERT loses twice, then both statements together twice, then the UPDATE alone.
    assert len(merges) == 2 + 2 + 2
    found = lake.sql("SELECT k, v FROM {t} WHERE v <> 'foreign' ORDER BY k", "n").collect()
    assert [tuple(row) for row in found] == [(-1, "first"), (0, "v0"), (1, "v1"), (2, "v2"), (3, "v3"), (10, "new")]


def test_appended_rows_have_ids_of_their_own_and_can_be_undone(
    gateway: Gateway, client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    mine = client.begin()
    with during_the_next_merge(monkeypatch, lambda: foreign_append(lake), times=math.inf):
        assert insert(lake, 10, transaction=mine)(client) == 1
    assert DeltaTable(str(lake.path("n"))).history(1)[0]["operation"] == "WRITE"
    assert insert(lake, 11)(client) == 1
    ours = [row for row in rows_of(client, lake) if row[1] == "new"]
    assert [row[0] for row in ours] == [10, 11]
    assert len({row[2] for row in ours}) == 2
    assert undo(gateway, lake, mine).rows == 1
    assert [row[0] for row in rows_of(client, lake) if row[1] == "new"] == [11]
