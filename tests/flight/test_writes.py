"""Writes over the wire with the DuckDB client's frames, as Delta MERGEs of a real Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG
from tests.flight.writing import (
    batch,
    before_the_next_merge,
    numbers,
    refused,
    rows_of,
    running_gateway,
    sql_error,
    staged_files,
    version_of,
)
from tests.nasty import also_disguised

Start = Callable[..., Gateway]
SPOOLED_FROM = 3  # rows, in the gateway that spools


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("staging")


@pytest.fixture(scope="module")
def spooling_gateway(warehouse: Path, lake_spark: Spark, staging: Path) -> Iterator[Gateway]:
    """Another gateway over the same warehouse, for which three rows are many."""
    with running_gateway(warehouse, lake_spark, staging, memory_rows=SPOOLED_FROM - 1) as running:
        yield running


@pytest.fixture
def spooling(spooling_gateway: Gateway) -> Iterator[AirportClient]:
    with AirportClient(spooling_gateway.location, CATALOG) as attached:
        yield attached


def insert(client: AirportClient, lake: Lake, **columns: list[Any]) -> int:
    return client.insert(lake.schema, "n", batch(**columns)).total_changed


# What statements do.


@also_disguised
def test_insert_gives_ids_above_every_other(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 3)
    assert insert(client, lake, k=[10, 11], v=["a", None]) == 2
    assert rows_of(client, lake)[3:] == [(10, "a", 3), (11, None, 4)]


@also_disguised
def test_update_and_delete_change_the_rows_they_name(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    assert client.update(lake.schema, "n", batch(v=["x", "y"], rowid=[1, 2]), sets=["v"]).total_changed == 2
    assert client.delete(lake.schema, "n", [0, 99]).total_changed == 1
    assert rows_of(client, lake) == [(1, "x", 1), (2, "y", 2), (3, "v3", 3)]


@also_disguised
def test_a_table_without_row_ids_takes_new_rows_only(client: AirportClient, lake: Lake) -> None:
    lake.create("plain", "k BIGINT, v STRING")
    assert client.insert(lake.schema, "plain", batch(k=[1], v=["a"])).total_changed == 1
    with pytest.raises(flight.FlightError, match="table does not support UPDATE operations"):
        client.update(lake.schema, "plain", batch(v=["x"], rowid=[1]), sets=["v"])
    assert client.scan(lake.schema, "plain").num_rows == 1


@also_disguised
def test_several_batches_are_one_commit(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    changed = client.insert(lake.schema, "n", [batch(k=[10, 11], v=["a", "b"]), batch(k=[12], v=["c"])], returning=True)
    assert changed.total_changed == 3
    assert changed.returned.select(["k", "v"]).to_pylist() == [
        {"k": 10, "v": "a"}, {"k": 11, "v": "b"}, {"k": 12, "v": "c"},
    ]  # fmt: skip
    assert version_of(lake) == 1
    assert rows_of(client, lake)[4:] == [(10, "a", 4), (11, "b", 5), (12, "c", 6)]


@also_disguised
@pytest.mark.parametrize("returning", [False, True])
def test_exchanges_without_rows_change_nothing(client: AirportClient, lake: Lake, returning: bool) -> None:
    numbers(lake)
    for changed in (
        client.insert(lake.schema, "n", [], returning=returning),
        client.update(lake.schema, "n", [], sets=["v"], returning=returning),
        client.delete_where(lake.schema, "n", lambda rows: rows.slice(0, 0), returning=returning),
    ):
        assert changed.total_changed == 0
        assert changed.returned is None or changed.returned.num_rows == 0
    assert version_of(lake) == 0


def test_of_duplicate_row_ids_the_last_value_wins_and_each_row_counts_once(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    twice = [batch(v=["a", "b", "c"], rowid=[1, 2, 1]), batch(v=["d"], rowid=[2])]
    assert client.update(lake.schema, "n", twice[:1], sets=["v"], returning=True).returned.to_pylist() == [
        {"v": "b", "rowid": 2}, {"v": "c", "rowid": 1},
    ]  # fmt: skip
    assert client.update(lake.schema, "n", twice, sets=["v"]).total_changed == 2
    assert rows_of(client, lake) == [(0, "v0", 0), (1, "c", 1), (2, "d", 2), (3, "v3", 3)]
    found = client.look_up_for_change(lake.schema, "n")
    sent = pa.schema([("rowid", pa.int64())])
    ids = [pa.record_batch([pa.array(each, pa.int64())], schema=sent) for each in ([3, 3, 0], [3])]
    deleted = client.exchange(
        "delete", found, sent, ids, transaction_id=client.transaction_id(), returning=True
    )  # fmt: skip
    assert deleted.total_changed == 2
    assert sorted(deleted.returned.column("k").to_pylist()) == [0, 3]
    assert [row[0] for row in rows_of(client, lake)] == [1, 2]


@also_disguised
def test_unknown_row_ids_are_skipped_and_not_returned(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    ids: list[object] = [-5, 1, 77]
    updated = client.update(lake.schema, "n", batch(v=["x", "y", "z"], rowid=ids), sets=["v"], returning=True)
    assert updated.total_changed == 1
    assert updated.returned.to_pylist() == [{"v": "y", "rowid": 1}]
    before = version_of(lake)
    deleted = client.delete(lake.schema, "n", [-5, 77], returning=True)
    assert (deleted.total_changed, deleted.returned.num_rows) == (0, 0)
    assert version_of(lake) == before


def test_returning_gives_new_rows_whole_updates_by_position_and_deleted_rows_as_they_were(
    client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    inserted = client.insert(lake.schema, "n", batch(k=[7], v=["r"]), returning=True)
    assert inserted.returned.to_pylist() == [{"k": 7, "v": "r", "rowid": None}]
    updated = client.update(lake.schema, "n", batch(v=["x"], k=[20], rowid=[2]), sets=["v", "k"], returning=True)
    assert updated.reply_schema.names == ["v", "k", "rowid"]
    assert updated.returned.to_pylist() == [{"v": "x", "k": 20, "rowid": 2}]
    deleted = client.delete(lake.schema, "n", [2], returning=True)
    assert deleted.returned.to_pylist() == [{"k": 20, "v": "x", "rowid": 2}]


@also_disguised
def test_statements_run_while_their_own_scan_is_open(client: AirportClient, lake: Lake) -> None:
    lake.numbers("n", 5000, files=3)
    found = client.table(lake.schema, "n")

    def upper(rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = pc.utf8_upper(rows.column("v").cast(pa.string()))
        changed = pa.record_batch([texts, rows.column("rowid")], ["v", "rowid"])
        return changed.filter(pc.less(rows.column("k"), 3000))

    updated = client.update_where(
        lake.schema, "n", upper, sets=["v"], reads=["k", "v"], filters=[found.ref("k").lt(3000)]
    )
    assert updated.total_changed == 3000
    deleted = client.delete_where(
        lake.schema,
        "n",
        lambda rows: rows.filter(pc.greater_equal(rows.column("k"), 10)),
        reads=["k"],
        filters=[found.ref("k").ge(10)],
    )
    assert deleted.total_changed == 4990
    assert rows_of(client, lake) == [(key, f"V{key}", key) for key in range(10)]


# Row ids.


def test_row_ids_stay_with_their_rows_and_are_never_given_again(
    gateway: Gateway, client: AirportClient, lake: Lake, start_gateway: Start
) -> None:
    numbers(lake, rows=3)
    insert(client, lake, k=[10], v=["a"])
    client.delete(lake.schema, "n", [3])  # the highest: only the log knows that it was given
    insert(client, lake, k=[11], v=["b"])
    client.update(lake.schema, "n", batch(v=["changed"], rowid=[4]), sets=["v"])
    lake.sql("OPTIMIZE {t}", "n")
    client.delete(lake.schema, "n", [4])
    assert rows_of(client, lake) == [(0, "v0", 0), (1, "v1", 1), (2, "v2", 2)]
    lake.spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        lake.spark._jsparkSession, str(lake.path("n"))
    ).checkpoint()
    newest = version_of(lake)
    for old in range(newest):  # as log clean-up does after a checkpoint
        (lake.path("n") / "_delta_log" / f"{old:020}.json").unlink()
    with AirportClient(start_gateway(lake.warehouse).location, CATALOG) as restarted:
        assert insert(restarted, lake, k=[12], v=["c"]) == 1
        assert rows_of(restarted, lake)[-1] == (12, "c", 5)
    # A log that was cut so lately leaves open, for a minute, what any other transaction wrote.
    shutil.rmtree(lake.path("n"))


def test_row_ids_that_a_foreign_writer_took_are_given_anew(
    client: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    taken = "INSERT INTO {t} VALUES (4, 100, 'theirs'), (5, 101, 'theirs')"
    with before_the_next_merge(monkeypatch, lambda: lake.sql(taken, "n")) as merges:
        assert insert(client, lake, k=[10, 11], v=["a", "b"]) == 2
    assert len(merges) == 2
    assert rows_of(client, lake)[4:] == [(10, "a", 6), (11, "b", 7), (100, "theirs", 4), (101, "theirs", 5)]


def test_a_mark_that_another_gateway_raised_meanwhile_loses_no_row(
    client: AirportClient, spooling: AirportClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Delta takes a `txn` version that is not above the last one for a repetition: it does nothing and says nothing.
    numbers(lake)

    def insert_and_delete() -> None:
        insert(spooling, lake, k=[20, 21], v=["other", "other"])
        spooling.delete(lake.schema, "n", [4, 5])

    merges: list[str] = []
    with before_the_next_merge(monkeypatch, lambda: merges or merges.append("x") or insert_and_delete()):
        assert insert(client, lake, k=[10], v=["mine"]) == 1
    assert rows_of(client, lake)[4:] == [(10, "mine", 6)]


def test_a_table_whose_row_ids_are_used_up_says_so(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    lake.sql(f"INSERT INTO {{t}} VALUES ({2**63 - 1}, 9, 'last')", "n")
    assert "has no row ids left" in refused(lambda: insert(client, lake, k=[10], v=["a"]))


def test_concurrent_inserts_all_land_once_with_ids_of_their_own(gateway: Gateway, lake: Lake) -> None:
    numbers(lake)
    together = threading.Barrier(8)

    def write(number: int) -> int:
        with AirportClient(gateway.location, CATALOG) as own:
            own.table(lake.schema, "n")
            together.wait(60)
            return insert(own, lake, k=[100 + number, 200 + number], v=["a", "b"])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(write, range(8))) == [2] * 8
    with AirportClient(gateway.location, CATALOG) as client:
        rows = rows_of(client, lake)
    assert [row[0] for row in rows[4:]] == [100 + n for n in range(8)] + [200 + n for n in range(8)]
    assert sorted(row[2] for row in rows) == list(range(20))


# Transactions.


def test_a_row_changed_since_the_transaction_read_it_is_a_conflict(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    transaction, second, third = client.begin(), client.begin(), client.begin()
    for each in (transaction, second, third):
        client.scan(lake.schema, "n", transaction=each)
    with AirportClient(gateway.location, CATALOG) as other:
        other.update(lake.schema, "n", batch(v=["theirs"], rowid=[1]), sets=["v"])
    kind, text = sql_error(
        lambda: client.update(
            lake.schema, "n", batch(v=["mine", "mine"], rowid=[0, 1]), sets=["v"], transaction=transaction
        )
    )
    assert kind == "InvalidInputException"
    assert text == f"conflict: rows of table '{lake.schema}.n' changed between version 0 and 1; try again"
    assert "conflict" in refused(lambda: client.delete(lake.schema, "n", [1], transaction=second))
    # Other rows of the same table are no conflict, though the table moved on.
    assert client.delete(lake.schema, "n", [2], transaction=third).total_changed == 1
    assert rows_of(client, lake) == [(0, "v0", 0), (1, "theirs", 1), (3, "v3", 3)]


def test_a_row_deleted_since_the_transaction_read_it_is_a_conflict(
    gateway: Gateway, client: AirportClient, lake: Lake
) -> None:
    numbers(lake)
    transaction = client.begin()
    client.scan(lake.schema, "n", transaction=transaction)
    with AirportClient(gateway.location, CATALOG) as other:
        other.delete(lake.schema, "n", [1])
    change = batch(v=["mine"], rowid=[1])
    text = refused(lambda: client.update(lake.schema, "n", change, sets=["v"], transaction=transaction))
    assert text.startswith("conflict: ")


@also_disguised
def test_a_transaction_reads_its_own_write_and_goes_on(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    transaction = client.begin()
    assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 4
    lake.sql("INSERT INTO {t} VALUES (4, 9, 'theirs')", "n")
    assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 4
    client.insert(lake.schema, "n", batch(k=[10], v=["mine"]), transaction=transaction)
    assert client.scan(lake.schema, "n", transaction=transaction).num_rows == 6
    for text in ("once", "twice"):
        own = batch(v=[text], rowid=[5])
        assert client.update(lake.schema, "n", own, sets=["v"], transaction=transaction).total_changed == 1
    assert rows_of(client, lake)[-1] == (10, "twice", 5)


@pytest.mark.parametrize("rows", [1, SPOOLED_FROM])
def test_a_row_changed_between_the_check_and_the_merge_is_a_conflict(
    spooling: AirportClient, lake: Lake, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    change = batch(v=["mine"] * rows, rowid=list(range(rows)))
    with before_the_next_merge(monkeypatch, lambda: lake.sql("UPDATE {t} SET v = 'theirs' WHERE k = 0", "n")) as merges:
        text = refused(lambda: spooling.update(lake.schema, "n", change, sets=["v"]))
    assert text.startswith("conflict: ")
    assert len(merges) == 1
    assert rows_of(spooling, lake) == [(0, "theirs", 0), (1, "v1", 1), (2, "v2", 2), (3, "v3", 3)]


# Uploads that do not fit memory.


def test_a_spooled_upload_does_what_one_in_memory_does(
    client: AirportClient, spooling: AirportClient, lake: Lake, staging: Path
) -> None:
    results = []
    for name, each in (("n", client), ("m", spooling)):
        numbers(lake, name)
        counts = [
            each.insert(
                lake.schema, name, [batch(k=list(range(10, 15)), v=["new", None] * 2 + ["é"]), batch(k=[15], v=["x"])]
            ),
            each.update(
                lake.schema,
                name,
                [batch(v=["a", "b", "c", "d"], rowid=[0, 1, 0, 99]), batch(v=["e", "f"], rowid=[1, 4])],
                sets=["v"],
            ),
            each.update(
                lake.schema,
                name,
                [batch(v=["g", "h", "i", "j"], rowid=[0, 1, 0, 99]), batch(v=["k"], rowid=[3])],
                sets=["v"],
                returning=True,
            ),
            each.delete(lake.schema, name, [2, 2, 5, 77, 6], returning=True),
            each.delete(lake.schema, name, [2, 77, 78]),
        ]
        replies = [
            (c.total_changed, None if c.returned is None else sorted(c.returned.to_pylist(), key=repr)) for c in counts
        ]
        results.append((replies, rows_of(each, lake, name), version_of(lake, name)))
    assert results[0] == results[1]
    assert [count for count, _ in results[0][0]] == [6, 3, 3, 3, 0]
    assert staged_files(staging) == []


def test_a_spooled_change_of_a_row_that_others_changed_is_a_conflict(
    gateway: Gateway, spooling: AirportClient, lake: Lake, staging: Path
) -> None:
    numbers(lake)
    transaction = spooling.begin()
    spooling.scan(lake.schema, "n", transaction=transaction)
    with AirportClient(gateway.location, CATALOG) as other:
        other.update(lake.schema, "n", batch(v=["theirs"], rowid=[3]), sets=["v"])
    change = batch(v=["x"] * 4, rowid=[0, 1, 2, 3])
    text = refused(lambda: spooling.update(lake.schema, "n", change, sets=["v"], transaction=transaction))
    assert text.startswith("conflict: ")
    assert version_of(lake) == 1
    assert staged_files(staging) == []


def test_one_row_may_be_fifty_megabytes(spooling: AirportClient, lake: Lake) -> None:
    numbers(lake)
    large = "é" * (25 << 20)
    assert insert(spooling, lake, k=[10], v=[large]) == 1
    found = spooling.scan(lake.schema, "n", ["v"], [spooling.table(lake.schema, "n").ref("k").eq(10)])
    assert [row["v"] for row in found.rows()] == [large]


def test_thousands_of_small_batches_are_one_statement(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    assert client.insert(lake.schema, "n", (batch(k=[k], v=["x"]) for k in range(100, 5100))).total_changed == 5000
    assert version_of(lake) == 1
    assert sorted(row[2] for row in rows_of(client, lake)) == list(range(5004))


# Bad input and faults: nothing is written, and the next statement works.


def exchange(
    client: AirportClient, lake: Lake, operation: str, rows: pa.RecordBatch, *, returning: bool = False
) -> object:
    """An exchange with exactly these columns, whatever a DuckDB client would send."""
    found = client.look_up_for_change(lake.schema, "n")
    return client.exchange(
        operation, found, rows.schema, [rows], transaction_id=client.transaction_id(), returning=returning
    )


def record(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


BROKEN_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff" + bytes(7))]
)
K, V, ID = pa.array([50]), pa.array(["x"]), pa.array([1])
BAD = [
    ("insert", record(k=K), "column mismatch: table has 2 columns, input has 1"),
    ("insert", record(k=K, v=V, w=V), "column mismatch: table has 2 columns, input has 3"),
    ("insert", record(k=K, w=V), "column 'w' is not a column of the table"),
    ("insert", record(k=K, K=K), "column 'k' is given twice"),
    ("insert", record(k=pa.array(["50"]), v=V), "column 'k': a value does not fit INT64"),
    ("insert", record(k=K, v=pa.array([1])), "column 'v': a value does not fit STRING"),
    ("insert", record(k=pa.array([0.5]), v=V), "column 'k': a value does not fit INT64"),
    ("insert", record(k=pa.array([2**63], pa.uint64()), v=V), "column 'k': a value does not fit INT64"),
    ("insert", record(k=K, v=BROKEN_TEXT), "the uploaded batch is not valid Arrow data: column 'v'"),
    ("insert", record(k=pa.array([None], pa.int64()), v=V), "NOT NULL constraint failed: column 'k'"),
    ("update", record(v=V), "UPDATE requires rowid column in input schema"),
    ("update", record(rowid=ID), "UPDATE sets no column"),
    ("update", record(v=V, rowid=V), "rowid column must be Int64, Int32, or Uint64"),
    ("update", record(v=V, rowid=pa.array([2**63], pa.uint64())), "rowid is out of range"),
    ("update", record(w=V, rowid=ID), "column 'w' is not a column of the table"),
    ("update", record(k=pa.array([None], pa.int64()), rowid=ID), "NOT NULL constraint failed: column 'k'"),
    ("delete", record(k=K), "DELETE requires rowid column in input schema"),
    ("delete", record(rowid=pa.array([None], pa.int64())),
     "rowid must not be null: a row without an id cannot be named; `deltaport adopt` gives it one"),
    ("truncate", record(rowid=ID), "the exchange needs the header airport-operation: insert, update or delete"),
]  # fmt: skip


def test_bad_input_is_refused_by_name_and_changes_nothing(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    for operation, rows, words in BAD:
        assert refused(lambda: exchange(client, lake, operation, rows)) == words  # noqa: B023 - called at once
    assert version_of(lake) == 0
    reordered = record(v=V.cast(pa.large_string()), K=K.cast(pa.int16()))
    assert exchange(client, lake, "insert", reordered).total_changed == 1
    assert rows_of(client, lake)[-1] == (50, "x", 4)


def test_a_refused_batch_of_a_long_upload_keeps_the_errors_class(client: AirportClient, lake: Lake) -> None:
    numbers(lake)
    bad = [batch(k=[None], v=["x"]), *(batch(k=[n], v=["y"]) for n in range(200))]
    for returning in (False, True):
        assert sql_error(lambda: client.insert(lake.schema, "n", bad, returning=returning)) == (  # noqa: B023
            "ConstraintException",
            "NOT NULL constraint failed: column 'k'",
        )
    assert version_of(lake) == 0


def test_a_source_that_fails_after_some_batches_is_committed_so_far(client: AirportClient, lake: Lake) -> None:
    # The client ends such an upload exactly like a finished one; the gateway cannot tell them apart.
    numbers(lake)

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(k=[10], v=["sent"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.insert(lake.schema, "n", failing())
    assert rows_of(client, lake)[4:] == [(10, "sent", 4)]


DYING = """
import os, sys
import pyarrow as pa
from tests.airport import AirportClient

def rows():
    yield pa.record_batch([pa.array(range(100, 110)), pa.array(["x"] * 10)], names=["k", "v"])
    print("sent", flush=True)
    sys.stdin.read(1)
    os._exit(9)

with AirportClient(sys.argv[1], "lake") as client:
    client.insert(sys.argv[2], "n", rows())
"""


def test_an_upload_whose_client_was_killed_commits_nothing_and_leaves_nothing_behind(
    spooling_gateway: Gateway, spooling: AirportClient, lake: Lake, staging: Path
) -> None:
    numbers(lake)
    gate = spooling_gateway.service.gate
    arguments = [sys.executable, "-c", DYING, spooling_gateway.location, lake.schema]
    root = Path(__file__).parents[2]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as dying:
        assert dying.stdout.readline() == b"sent\n"
        wait_until(lambda: staged_files(staging) != [])
        dying.communicate(b"x")
    assert gate.wait_empty(60)
    assert staged_files(staging) == []
    assert version_of(lake) == 0
    assert insert(spooling, lake, k=[10], v=["next"]) == 1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.01)


def test_an_upload_given_up_in_the_middle_commits_nothing(
    spooling_gateway: Gateway, spooling: AirportClient, lake: Lake, staging: Path
) -> None:
    numbers(lake)
    found = spooling.look_up_for_change(lake.schema, "n")
    headers = [(b"airport-operation", b"insert"), (b"return-chunks", b"0"), (b"airport-catalog", b"lake")]
    with flight.connect(spooling_gateway.location) as other:
        sender, answers = other.do_exchange(found.descriptor, flight.FlightCallOptions(headers=headers))
        rows = batch(k=list(range(100, 110)), v=["x"] * 10)
        sender.begin(rows.schema)
        assert answers.schema is not None
        sender.write_batch(rows)
        wait_until(lambda: staged_files(staging) != [])
        answers.cancel()
        with pytest.raises((pa.ArrowException, flight.FlightError, OSError)):
            sender.close()
    assert spooling_gateway.service.gate.wait_empty(60)
    assert staged_files(staging) == []
    assert version_of(lake) == 0


def test_a_full_staging_disk_is_reported_without_paths_and_the_next_statement_works(
    spooling: AirportClient, lake: Lake, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(lake)
    rows = batch(k=list(range(100, 105)), v=["x"] * 5)
    with monkeypatch.context() as patch:
        patch.setattr("gateway.lake.writing.staging._FILE", "no-such-folder/rows.parquet")
        kind, text = sql_error(lambda: spooling.insert(lake.schema, "n", rows))
    assert (kind, text) == ("InvalidInputException", "the upload cannot be staged: No such file or directory")
    assert version_of(lake) == 0
    assert staged_files(staging) == []
    assert spooling.insert(lake.schema, "n", rows).total_changed == 5


def test_arrow_has_nothing_to_warn_of(client: AirportClient, lake: Lake, capfd: pytest.CaptureFixture[str]) -> None:
    # Flight's buffers are not aligned as Arrow's joins and groupings like them.
    numbers(lake, deltaport__primaryKey='["k", "v"]')
    capfd.readouterr()
    client.update(lake.schema, "n", batch(k=[7, 8, 9], v=["x", "y", "z"], rowid=[1, 2, 1]), sets=["k", "v"])
    assert capfd.readouterr().err == ""
