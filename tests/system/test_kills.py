"""Whatever dies, a statement has zero or one effect: real processes, really killed.

One gateway process after the other works on one warehouse. Statements are
written down before they are sent; when the dust has settled, each must be in the
table as a whole or not at all, and as a whole if it was acknowledged.
"""

from __future__ import annotations

import itertools
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from tests.airport import AirportClient
from tests.system.process import CATALOG, SHORT_LIVED, Server, wait_until

pytestmark = pytest.mark.spark  # every test starts gateways of its own

SCHEMA = "demo"
TABLE = "n"
ROWS = 3_000
UPDATED, INSERTED, DELETED = 3, 5, 2  # rows of one statement
LARGE = 200  # rows: an upload that is spooled
NUMBERS = pa.schema([("_rowid", pa.int64()), pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
WENT_WRONG = (flight.FlightError, pa.ArrowException, OSError)
ROOT = Path(__file__).parents[2]


@dataclass
class Sent:
    """A statement, how many rows carry its trace when it was applied, and what the client heard of it."""

    trace: Callable[[pa.Table], int]
    whole: int
    answer: str = "none"


@dataclass
class World:
    """A warehouse, its gateway of now, and every statement that was ever sent."""

    folder: Path
    server: Server | None = None
    sent: list[Sent] = field(default_factory=list)
    starts: Iterator[int] = field(default_factory=itertools.count)
    tags: Iterator[int] = field(default_factory=itertools.count)
    to_update: Iterator[int] = field(default_factory=lambda: iter(range(0, ROWS // 2, UPDATED)))
    to_delete: Iterator[int] = field(default_factory=lambda: iter(range(ROWS // 2, ROWS, DELETED)))

    @property
    def table(self) -> Path:
        return self.folder / "warehouse" / SCHEMA / TABLE

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    def make(self) -> None:
        keys = range(ROWS)
        write_deltalake(self.table, pa.table([list(keys), list(keys), ["old"] * ROWS], schema=NUMBERS))

    def running(self) -> Server:
        """The gateway; a new process where the last one was killed."""
        if self.server is None or self.server.exit_code is not None:
            self.server = Server(
                self.folder / "warehouse",
                self.folder / f"gateway-{next(self.starts)}",
                spark=SHORT_LIVED,
                staging={"folder": str(self.staging), "memory_rows": 50},
            )
            self.server.__enter__()
            self.server.wait_for_spark()
        return self.server

    def staged(self) -> list[Path]:
        return list(self.staging.rglob("*.parquet"))

    def version(self) -> int:
        return DeltaTable(self.table).version()

    def data_files(self) -> int:
        return sum(path.parent.name != "_delta_log" for path in self.table.rglob("*.*"))

    # Statements; each leaves a trace that no other leaves.

    def insert(self, client: AirportClient) -> None:
        tag = f"insert {next(self.tags)}"
        rows = numbers(range(10_000, 10_000 + INSERTED), tag)
        self._send(Sent(marked(tag), INSERTED), lambda: client.insert(SCHEMA, TABLE, rows).total_changed)

    def update(self, client: AirportClient) -> None:
        tag, first = f"update {next(self.tags)}", next(self.to_update)
        rows = pa.record_batch({"v": [tag] * UPDATED, "rowid": pa.array(range(first, first + UPDATED), pa.int64())})
        self._send(Sent(marked(tag), UPDATED), lambda: client.update(SCHEMA, TABLE, rows, sets=["v"]).total_changed)

    def delete(self, client: AirportClient) -> None:
        first = next(self.to_delete)
        ids = list(range(first, first + DELETED))
        self._send(Sent(missing(ids), DELETED), lambda: client.delete(SCHEMA, TABLE, ids).total_changed)

    def _send(self, statement: Sent, work: Callable[[], int]) -> None:
        self.sent.append(statement)
        try:
            assert work() == statement.whole
        except WENT_WRONG as error:
            statement.answer = str(error).partition(" gRPC client debug context")[0]
            raise
        statement.answer = "acknowledged"


def numbers(keys: range, text: str) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "v": pa.array([text] * len(keys))})


def marked(tag: str) -> Callable[[pa.Table], int]:
    return lambda rows: pc.sum(pc.equal(rows["v"], tag)).as_py()


def missing(ids: list[int]) -> Callable[[pa.Table], int]:
    return lambda rows: len(ids) - pc.sum(pc.is_in(rows["_rowid"], pa.array(ids, pa.int64()))).as_py()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("kills"))
    made.make()
    yield made
    if made.server is not None:
        made.server.stop()


@contextmanager
def busy_writers(world: World, location: str) -> Iterator[None]:
    """An INSERT, an UPDATE and a DELETE after the other at the same time, until something breaks them off."""
    stop = threading.Event()

    def write(statement: Callable[[AirportClient], None]) -> None:
        with AirportClient(location, CATALOG) as client:
            while not stop.is_set():
                try:
                    statement(client)
                except WENT_WRONG:
                    return

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, statement) for statement in (world.insert, world.update, world.delete)]
        try:
            yield
        finally:
            stop.set()
    for writer in writers:
        writer.result()


def assert_each_has_zero_or_one_effect(world: World) -> None:
    """As deltalake reads the table; and the gateway reads the same."""
    rows = DeltaTable(world.table).to_pyarrow_table()
    for statement in world.sent:
        effect = statement.trace(rows)
        assert effect in (0, statement.whole), statement.answer
        if statement.answer == "acknowledged":
            assert effect == statement.whole
        if "nothing was" in statement.answer:
            assert effect == 0
    assert pc.count_distinct(rows["_rowid"]).as_py() == rows.num_rows
    with world.running().attach() as client:
        read = client.scan(SCHEMA, TABLE, ["k", "v", "rowid"]).rows()
    assert sorted((row["rowid"], row["k"], row["v"]) for row in read) == sorted(
        (row["_rowid"], row["k"], row["v"]) for row in rows.to_pylist()
    )


def assert_every_statement_works(world: World) -> None:
    with world.running().attach() as client:
        for statement in (world.insert, world.update, world.delete):
            statement(client)
        assert [sent.answer for sent in world.sent[-3:]] == ["acknowledged"] * 3
    assert_each_has_zero_or_one_effect(world)


# ALTER TABLE: one table whose files are rewritten, and one whose columns are renamed, at the same time

ALTERED_ROWS = 200_000
TYPES = {pa.int32(): pa.int64(), pa.int64(): pa.int32()}  # what a column is, and what it is changed to
NAMES = {"here": "there", "there": "here"}


@dataclass
class Altering:
    """Two ALTERs that are at work when something dies; what each was, and what its client heard."""

    type_before: pa.DataType
    name_before: str
    heard: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def in_the_middle(self, world: World, location: str) -> Iterator[None]:
        """Within the block both are at work, and the new files of the one are being written."""
        typed = world.table.parent / "typed"
        files = len(list(typed.rglob("*.parquet")))
        with ThreadPoolExecutor(2) as pool:
            works = [pool.submit(work, location) for work in (self.rename, self.change_type)]
            wait_until(lambda: len(list(typed.rglob("*.parquet"))) > files)
            yield
        for work in works:
            work.result()

    def change_type(self, location: str) -> None:
        with AirportClient(location, CATALOG) as client, self._hearing("type"):
            client.ddl.change_column_type(SCHEMA, "typed", pa.field("a", TYPES[self.type_before]))
            self.heard["type"] = "acknowledged"

    def rename(self, location: str) -> None:
        """One rename after the other; the last of them is the one in question."""
        with AirportClient(location, CATALOG) as client:
            while "name" not in self.heard:
                with self._hearing("name"):
                    client.ddl.rename_column(SCHEMA, "named", self.name_before, NAMES[self.name_before])
                    self.name_before = NAMES[self.name_before]

    @contextmanager
    def _hearing(self, what: str) -> Iterator[None]:
        try:
            yield
        except WENT_WRONG as error:
            self.heard[what] = str(error).partition(" gRPC client debug context")[0]

    def assert_old_or_new(self, client: AirportClient) -> None:
        (number,) = columns_of(client, "typed")
        assert number.type in (self.type_before, TYPES[self.type_before])
        (name,) = (column.name for column in columns_of(client, "named"))
        assert name in (self.name_before, NAMES[self.name_before])
        if self.heard["type"] == "acknowledged":
            assert number.type == TYPES[self.type_before]
        if "nothing was" in self.heard["type"]:
            assert number.type == self.type_before
        if "nothing was" in self.heard["name"]:
            assert name == self.name_before

    def again(self, client: AirportClient) -> None:
        """The same ALTERs: they do what is still to do, and only that."""
        client.ddl.change_column_type(SCHEMA, "typed", pa.field("a", TYPES[self.type_before]))
        if columns_of(client, "named")[0].name == self.name_before:
            client.ddl.rename_column(SCHEMA, "named", self.name_before, NAMES[self.name_before])
        assert [column.type for column in columns_of(client, "typed")] == [TYPES[self.type_before]]
        assert [column.name for column in columns_of(client, "named")] == [NAMES[self.name_before]]


def columns_of(client: AirportClient, table: str) -> list[pa.Field]:
    return [column for column in client.table(SCHEMA, table).schema if not (column.metadata or {}).get(b"is_rowid")]


def values_of(client: AirportClient, table: str) -> pa.ChunkedArray:
    scanned = client.scan(SCHEMA, table).table
    return scanned.sort_by(scanned.column_names[0]).column(0).cast(pa.int64())


def alters(world: World) -> Altering:
    with world.running().attach() as client:
        if not (world.table.parent / "typed").exists():
            make_altered(client)
        (number,), (named,) = columns_of(client, "typed"), columns_of(client, "named")
        return Altering(number.type, named.name)


def make_altered(client: AirportClient) -> None:
    client.ddl.create_table(SCHEMA, "typed", pa.schema([("a", pa.int32())]))
    client.insert(SCHEMA, "typed", pa.record_batch({"a": pa.array(range(ALTERED_ROWS), pa.int32())}))
    client.ddl.create_table(SCHEMA, "named", pa.schema([("here", pa.int64())]), checks=["here > -1"])
    client.insert(SCHEMA, "named", pa.record_batch({"here": pa.array([1, 2, 3], pa.int64())}))


def assert_takes_rows_and_changes(client: AirportClient, table: str) -> None:
    before, column = values_of(client, table), columns_of(client, table)[0]
    new = pa.record_batch({column.name: pa.array([1 << 30], column.type)})
    assert client.insert(SCHEMA, table, new).total_changed == 1
    rows = client.scan(SCHEMA, table, [column.name, "rowid"]).table
    ids = rows.filter(pc.equal(rows[column.name], 1 << 30)).column("rowid")
    assert client.delete(SCHEMA, table, ids.to_pylist()).total_changed == 1
    assert values_of(client, table).equals(before)


def assert_altered_or_not(world: World, altering: Altering) -> None:
    """Each table is the old or the new one, whole, and takes the same ALTER again, and rows."""
    with world.running().attach() as client:
        altering.assert_old_or_new(client)
        assert values_of(client, "typed").to_pylist() == list(range(ALTERED_ROWS))
        assert values_of(client, "named").to_pylist() == [1, 2, 3]
        altering.again(client)
        assert_takes_rows_and_changes(client, "typed")
        broken = pa.record_batch({NAMES[altering.name_before]: pa.array([-1], pa.int64())})
        with pytest.raises(flight.FlightError, match="CHECK constraint failed: check_1"):  # it has followed the name
            client.insert(SCHEMA, "named", broken)
    own = world.folder / "warehouse" / "_deltaport"
    assert [path for area in ("journal", "building") for path in (own / area).glob("*")] == []


UPLOAD = f"""
import sys
import pyarrow as pa
from tests.airport import AirportClient

def rows():
    yield pa.record_batch([pa.array(range({LARGE})), pa.array(["half"] * {LARGE})], names=["k", "v"])
    print("sent", flush=True)
    sys.stdin.read()

with AirportClient(sys.argv[1], "{CATALOG}") as client:
    client.insert("{SCHEMA}", "{TABLE}", rows())
"""


@contextmanager
def upload_in_the_middle(world: World, location: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client process that has sent some batches, which are spooled, and will send no more."""
    arguments = [sys.executable, "-c", UPLOAD, location]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as uploader:
        try:
            assert uploader.stdout is not None
            assert uploader.stdout.readline() == b"sent\n"
            wait_until(lambda: world.staged() != [])
            yield uploader
        finally:
            uploader.kill()


def assert_nothing_of_the_upload(world: World) -> None:
    assert marked("half")(DeltaTable(world.table).to_pyarrow_table()) == 0


def test_a_killed_client_commits_nothing_and_leaves_nothing_staged(world: World) -> None:
    version = world.version()
    with upload_in_the_middle(world, world.running().location) as uploader:
        uploader.kill()
        wait_until(lambda: world.staged() == [])
    assert world.version() == version
    assert_every_statement_works(world)


def test_a_full_disk_is_told_and_nothing_stays_staged(world: World) -> None:
    server, version = world.running(), world.version()
    text = [secrets.token_hex(4_000) for _ in range(1_000)]
    rows = pa.record_batch({"k": pa.array(range(1_000), pa.int64()), "v": text})
    limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    with server.attach() as client:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(flight.FlightError, match="the upload cannot be staged: File too large"):
                client.insert(SCHEMA, TABLE, rows)
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        assert world.staged() == []
        assert world.version() == version
        assert client.insert(SCHEMA, TABLE, rows).total_changed == 1_000
    assert world.staged() == []
    assert_each_has_zero_or_one_effect(world)


TOLD_WITHOUT_SPARK = {
    "Spark stopped during the statement; nothing was written, try again",
    "Spark stopped and is starting again",
    "Spark is starting again",
    f"table '{SCHEMA}.{TABLE}': it is not known whether the statement was written",
    f"table '{SCHEMA}.{TABLE}': Spark may still be writing an earlier statement; try again",
}


def test_a_spark_killed_during_merges_and_alters_comes_back_by_itself(world: World) -> None:
    server, altering = world.running(), alters(world)
    jvm = server.jvm_pid()
    assert jvm is not None
    with busy_writers(world, server.location):
        files = world.data_files()
        wait_until(lambda: world.data_files() > files)  # a MERGE has begun to write, and others follow
        with altering.in_the_middle(world, server.location):
            os.kill(jvm, signal.SIGKILL)
        with server.attach() as client:  # reads go on
            assert client.scan(SCHEMA, TABLE, ["k"]).num_rows > 0
        wait_until(lambda: server.spark_state() != "ready")
    broken_off = {sent.answer.partition(". Detail: ")[0] for sent in world.sent if sent.answer != "acknowledged"}
    assert broken_off
    assert broken_off <= TOLD_WITHOUT_SPARK, broken_off - TOLD_WITHOUT_SPARK
    server.wait_for_spark()
    assert server.jvm_pid() not in (None, jvm)
    assert_every_statement_works(world)
    assert_altered_or_not(world, altering)


def test_a_gateway_killed_while_it_stages_merges_and_alters_leaves_whole_statements(world: World) -> None:
    server, altering = world.running(), alters(world)
    with upload_in_the_middle(world, server.location), busy_writers(world, server.location):
        files = world.data_files()
        wait_until(lambda: world.data_files() > files)
        with altering.in_the_middle(world, server.location):
            server.kill()
    assert world.staged() != []  # nobody was left to remove it
    assert world.running() is not server
    assert world.staged() == []
    assert_nothing_of_the_upload(world)
    assert_each_has_zero_or_one_effect(world)
    assert_every_statement_works(world)
    assert_altered_or_not(world, altering)


def test_a_gateway_killed_between_commit_and_reply_leaves_whole_statements(world: World) -> None:
    server = world.running()
    with busy_writers(world, server.location):
        version = world.version()
        wait_until((world.table / "_delta_log" / f"{version + 3:020}.json").exists)
        server.kill()
    assert_each_has_zero_or_one_effect(world)
    assert_every_statement_works(world)
