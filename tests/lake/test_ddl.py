"""A warehouse under CREATE, DROP and RENAME: each is whole or not at all, whenever the process ends. No Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.catalog.editing import Editor
from gateway.catalog.registry import Catalog
from gateway.errors import GatewayError, NotFoundError, PreconditionError, RequestError, UnavailableError
from gateway.lake.ddl.editable_warehouse import EditableWarehouse
from gateway.lake.delta_table import DeltaTable as ServedTable
from gateway.lake.delta_table import TableTools
from gateway.lake.reading.reader import Readers
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.staging import StagingFolder
from gateway.settings import DdlSettings, ScanSettings, StagingSettings, WriteSettings
from gateway.wire.ddl_messages import OnConflict, TableDefinition
from tests.airport.arrow_types import duckdb_type
from tests.doubles import run_in_turn
from tests.lake.reading import NO_SPARK
from tests.lake.typed_values import KINDS, NESTED

ONE = TableDefinition(pa.schema([("a", pa.int64())]))
TWO = TableDefinition(pa.schema([("a", pa.int64()), ("b", pa.string())]))


class Room:
    """A catalog over a warehouse as a process that just started has it."""

    def __init__(self, root: Path, mapped: dict[str, str] | None = None, keep_days: float = 7) -> None:
        self.holding = object()  # the right to write; another one stands for having taken it again
        staging = StagingFolder(StagingSettings(folder=str(root.parent / ".staging")))
        readers = Readers(ScanSettings(), NO_SPARK)
        tools = TableTools(readers, NO_SPARK, staging, WriteSettings(), "_rowid", statistics=True)
        self.root = root
        self.warehouse = EditableWarehouse(
            Folder.open(str(root), fsync=True),
            mapped or {},
            lambda name, folder: ServedTable(name, folder, tools),
            "_rowid",
            DdlSettings(dropped_keep_days=keep_days),
            check_writer=lambda: self.holding,
        )
        self.catalog = Catalog("lake", self.warehouse, 1, run_in_turn)
        self.editor = Editor(self.catalog)

    def make(self, table: str, definition: TableDefinition = ONE, schema: str = "s") -> None:
        self.editor.create_table(schema, table, definition, OnConflict.ERROR)

    def tables(self) -> dict[str, int]:
        """Each table and how many columns it has, the row id not counted."""
        self.catalog.refresh()
        found = self.catalog.listing()
        assert not found.broken
        return {str(table.name): len(table.describe().shape) - 1 for table in found.tables.values()}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Room]:
    return lambda root=None, **options: Room(root or tmp_path / "warehouse", **options)


@pytest.fixture
def room(start: Callable[..., Room]) -> Room:
    made = start()
    made.editor.create_schema("s")
    return made


def leftovers(root: Path) -> list[Path]:
    """Files and folders that only a change in the middle may have."""
    own = root / "_deltaport"
    return [path for area in ("building", "journal") for path in (own / area).glob("*")]


# What a table is made of


def test_a_new_table_is_one_that_delta_knows_with_row_ids_first(room: Room) -> None:
    wanted = TableDefinition(
        pa.schema([("id", pa.int32()), ("at", pa.timestamp("us")), ("st", pa.struct([("x", pa.int8())]))]),
        frozenset([1]), ("id > 0",), ("ID",), (("at",),), ("UNIQUE(at, id)",),
    )  # fmt: skip
    room.make("t", wanted)
    table = DeltaTable(str(room.root / "s" / "t"))
    names = [field.name for field in table.schema().fields]
    properties = table.metadata().configuration
    assert names == ["_rowid", "id", "at", "st"]
    assert [field.nullable for field in table.schema().fields] == [True, False, False, True]
    assert properties["delta.columnMapping.mode"] == "name"
    assert properties["delta.enableDeletionVectors"] == "true"
    assert properties["delta.checkpointInterval"] == "100"
    assert properties["delta.constraints.check_1"] == "coalesce((`id` > 0), true)"
    assert properties["deltaport.primaryKey"] == '["id"]'
    assert properties["deltaport.unique"] == '[["at"], ["at", "id"]]'
    assert "timestampNtz" in (table.protocol().reader_features or [])
    told = room.catalog.table("s", "t").describe().shape
    assert told.names == ["id", "at", "st", "rowid"]
    assert b"id > 0" in told.metadata[b"check_constraints"]


def test_a_column_of_every_type_is_told_as_the_type_it_was_made_with(room: Room) -> None:
    columns = pa.schema([kind.field(f"c{position}") for position, kind in enumerate((*KINDS, *NESTED))])
    room.make("everything", TableDefinition(columns))
    told = room.catalog.table("s", "everything").describe().shape
    for sent in columns:
        field = told.field(sent.name)
        assert duckdb_type(field.type) == duckdb_type(sent.type)
        name = b"ARROW:extension:name"
        assert (field.metadata or {}).get(name) == (sent.metadata or {}).get(name)


def test_each_change_is_known_at_once_and_moves_the_version(room: Room) -> None:
    versions = [room.catalog.version]

    def moved() -> bool:
        versions.append(room.catalog.version)
        return versions[-1] > versions[-2]

    room.make("t")
    assert moved()
    table = room.editor.rename_table(room.catalog.table("s", "t"), "u")
    assert moved()
    assert room.catalog.table("s", "U") is table
    room.editor.drop_table("s", "u", ignore_not_found=False)
    assert moved()
    with pytest.raises(NotFoundError):
        room.catalog.table("s", "u")
    room.editor.drop_schema("S", ignore_not_found=False)
    assert moved()
    assert "s" not in room.catalog.listing().schemas


def test_whoever_still_holds_a_dropped_or_renamed_table_is_told_so(room: Room) -> None:
    room.make("t")
    old = room.catalog.table("s", "t")
    room.editor.rename_table(old, "u")
    room.make("t", TWO)
    with pytest.raises(NotFoundError, match="attach again"):
        old.current()


def test_a_refresh_that_was_overtaken_by_a_change_does_not_undo_it(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.make("t")
    listed = room.warehouse.tables

    def tables() -> list[tuple[str, str]]:
        found = list(listed())
        monkeypatch.undo()
        room.editor.drop_table("s", "t", ignore_not_found=False)
        room.make("u")
        return found

    monkeypatch.setattr(room.warehouse, "tables", tables)
    assert room.tables() == {"s.u": 1}


# Bad input changes nothing

LONG = "x" * 256
BAD_NAMES = ["", ".", "..", "_hidden", ".hidden", "a/b", "a\\b", "a\nb", LONG, " padded", "a%41"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_cannot_be_a_place_is_refused(room: Room, name: str) -> None:
    before = sorted(room.root.rglob("*"))
    with pytest.raises(RequestError):
        room.editor.create_schema(name)
    with pytest.raises(RequestError):
        room.make(name)
    assert sorted(room.root.rglob("*")) == before


@pytest.mark.parametrize("name", ["ta ble", "quo'te", 'quo"te', "back`tick", "do.t", "🎉", "Ünï", "a;b--"])
def test_other_names_are_plain_names(room: Room, start: Callable[..., Room], name: str) -> None:
    room.make(name)
    assert start().tables() == {f"s.{name}": 1}


@pytest.mark.parametrize("name", ["main", "MAIN"])
def test_a_schema_that_the_client_cannot_see_is_refused_with_the_reason(room: Room, name: str) -> None:
    with pytest.raises(RequestError, match="cannot see"):
        room.editor.create_schema(name)


@pytest.mark.parametrize(
    ("definition", "named"),
    [
        (TableDefinition(pa.schema([])), "at least one column"),
        (TableDefinition(pa.schema([("a", pa.int8()), ("A", pa.int8())])), "two columns called 'A'"),
        (TableDefinition(pa.schema([("_rowid", pa.int64())])), "_rowid"),
        (TableDefinition(pa.schema([("RowId", pa.int64())])), "RowId"),
        (TableDefinition(pa.schema([("", pa.int64())])), "empty"),
        (TableDefinition(pa.schema([("a\nb", pa.int64())])), "control"),
        (TableDefinition(pa.schema([(LONG, pa.int64())])), "longer"),
        (TableDefinition(pa.schema([("u", pa.dense_union([pa.field("x", pa.int8())]))])), "'u'.*UNION"),
        (TableDefinition(ONE.columns, checks=("a > ",)), "cannot be read"),
        (TableDefinition(ONE.columns, checks=("nosuch > 0",)), "nosuch"),
        (TableDefinition(ONE.columns, checks=("a > 0; DROP TABLE s.t",)), "one expression"),
        (TableDefinition(ONE.columns, checks=("a IN (SELECT 1)",)), "sub-queries"),
        (TableDefinition(ONE.columns, checks=("my_function(a) > 0",)), "my_function"),
        (TableDefinition(ONE.columns, primary_key=("nosuch",)), "nosuch"),
        (TableDefinition(ONE.columns, unique=(("a", "A"),)), "twice"),
        (TableDefinition(ONE.columns, constraints=("FOREIGN KEY (a) REFERENCES b (c)",)), "FOREIGN KEY"),
        (TableDefinition(pa.schema([("l", pa.list_(pa.int8()))]), primary_key=("l",)), "nested"),
    ],
)
def test_a_definition_that_cannot_be_is_refused_and_leaves_nothing(
    room: Room, definition: TableDefinition, named: str
) -> None:
    with pytest.raises(RequestError, match=named):
        room.make("t", definition)
    assert room.tables() == {}
    assert leftovers(room.root) == []


def test_a_table_that_exists_is_refused_ignored_or_replaced_as_asked(room: Room) -> None:
    room.make("t")
    with pytest.raises(PreconditionError, match="already exists"):
        room.make("T", TWO)
    found, is_new = room.editor.create_table("s", "T", TWO, OnConflict.IGNORE)
    assert (str(found.name), is_new) == ("s.t", False)
    assert room.tables() == {"s.t": 1}
    room.editor.create_table("s", "t", TWO, OnConflict.REPLACE)
    assert room.tables() == {"s.t": 2}
    assert [(each.schema, each.table) for each in room.warehouse.dropped()] == [("s", "t")]


def test_a_rename_onto_another_table_is_refused(room: Room) -> None:
    room.make("t")
    room.make("u", TWO)
    with pytest.raises(PreconditionError, match="already exists"):
        room.editor.rename_table(room.catalog.table("s", "t"), "U")
    assert room.tables() == {"s.t": 1, "s.u": 2}
    room.editor.rename_table(room.catalog.table("s", "t"), "T")
    assert room.tables() == {"s.T": 1, "s.u": 2}


def test_a_schema_with_anything_in_it_stays(room: Room) -> None:
    room.make("t")
    with pytest.raises(PreconditionError, match="not empty"):
        room.editor.drop_schema("s", ignore_not_found=False)
    room.editor.drop_table("s", "t", ignore_not_found=False)
    (room.root / "s" / "somebody's file").touch()
    with pytest.raises(PreconditionError, match="other files"):
        room.editor.drop_schema("s", ignore_not_found=False)
    assert (room.root / "s" / "somebody's file").exists()


def test_what_is_not_there_is_said_or_ignored_as_asked(room: Room) -> None:
    for drop in (room.editor.drop_schema, lambda name, **how: room.editor.drop_table("s", name, **how)):
        drop("nosuch", ignore_not_found=True)
        with pytest.raises(NotFoundError, match="nosuch"):
            drop("nosuch", ignore_not_found=False)
    with pytest.raises(NotFoundError, match="nosuch"):
        room.make("t", schema="nosuch")


# Nothing outside the root is removed


def test_a_mapped_table_is_only_forgotten(start: Callable[..., Room], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_deltalake(str(elsewhere), pa.table({"a": [1]}))
    mapped = {"s.far": str(elsewhere)}
    room = start(mapped=mapped)
    room.editor.create_schema("s")
    with pytest.raises(PreconditionError, match="mapped"):
        room.editor.rename_table(room.catalog.table("s", "far"), "near")
    with pytest.raises(PreconditionError, match="mapped"):
        room.editor.create_table("s", "far", ONE, OnConflict.REPLACE)
    room.editor.drop_table("s", "far", ignore_not_found=False)
    assert room.tables() == {}
    assert DeltaTable(str(elsewhere)).to_pyarrow_table().num_rows == 1
    assert start(mapped=mapped).tables() == {"s.far": 1}


def test_a_table_behind_a_link_is_dropped_and_purged_as_the_link_alone(room: Room, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_deltalake(str(elsewhere), pa.table({"a": [1]}))
    room.make("t")
    (room.root / "s" / "linked").symlink_to(elsewhere)
    (room.root / "s" / "t" / "inner").symlink_to(elsewhere)
    for table in ("linked", "t"):
        room.editor.drop_table("s", table, ignore_not_found=False)
    room.warehouse._dropped().purge(timedelta(0), datetime.now(UTC) + timedelta(seconds=2))
    assert list((room.root / "_dropped").iterdir()) == []
    assert DeltaTable(str(elsewhere)).to_pyarrow_table().num_rows == 1


# Dropped tables


def test_a_dropped_table_comes_back_until_it_is_purged(start: Callable[..., Room]) -> None:
    room = start()
    room.editor.create_schema("s")
    room.make("t")
    room.editor.drop_table("s", "t", ignore_not_found=False)
    room.make("t", TWO)
    with pytest.raises(PreconditionError, match="exists"):
        room.warehouse.undrop("s", "t")
    room.editor.drop_table("s", "t", ignore_not_found=False)
    room.editor.drop_schema("s", ignore_not_found=False)
    room.warehouse._dropped().purge(timedelta(days=7), datetime.now(UTC))
    assert len(room.warehouse.dropped()) == 2
    for drop in sorted((room.root / "_dropped").iterdir()):  # drops of one second have no order of their own
        columns = 1 if len(DeltaTable(str(drop / "s" / "t")).schema().fields) == 2 else 2
        drop.rename(drop.with_name(f"2026010{columns}T000000Z-x"))
    assert room.warehouse.undrop("S", "T").table == "t"
    assert room.tables() == {"s.t": 2}
    with pytest.raises(NotFoundError, match="nosuch"):
        room.warehouse.undrop("s", "nosuch")
    (room.root / "_dropped" / "not a drop").mkdir()
    start(keep_days=0.00001).warehouse.maintain()
    assert [path.name for path in (room.root / "_dropped").iterdir()] == ["not a drop"]


# A crash at any step


class Crash(BaseException):
    """The process ends here: nothing of it runs any more."""


STEPS = ("create", "write_file", "rename_file", "remove_file", "move_to", "remove_empty", "remove_tree")


@pytest.fixture
def crash_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the process end before its nth change of the file system, and all later ones."""

    def arm(steps: int) -> None:
        left = [steps]
        for name in STEPS:
            original = getattr(Folder, name)

            def step(*arguments: object, original: Callable[..., object] = original) -> object:
                if left[0] == 0:
                    raise Crash
                left[0] -= 1
                return original(*arguments)

            monkeypatch.setattr(Folder, name, step)

    return arm


def _fill(room: Room, *, complete: bool) -> None:
    table, _ = room.editor.create_table("s", "new", ONE, OnConflict.ERROR)
    room.editor.begin_creation(table)
    if complete:
        name = str(room.root / "s" / "new" / "_delta_log" / f"{1:020}.json")
        Path(name).write_text('{"commitInfo":{"timestamp":0,"operation":"WRITE","operationParameters":{}}}\n')
    room.editor.end_creation(table, complete=complete)


CHANGES: dict[str, tuple[Callable[[Room], object], list[dict[str, int]]]] = {
    "create schema": (lambda room: room.editor.create_schema("n"), [{"s.t": 1}]),
    "drop schema": (lambda room: room.editor.drop_schema("e", ignore_not_found=False), [{"s.t": 1}]),
    "create": (lambda room: room.make("new"), [{"s.t": 1}, {"s.t": 1, "s.new": 1}]),
    "replace": (
        lambda room: room.editor.create_table("s", "t", TWO, OnConflict.REPLACE),
        [{"s.t": 1}, {"s.t": 2}],
    ),
    "drop": (lambda room: room.editor.drop_table("s", "t", ignore_not_found=False), [{"s.t": 1}, {}]),
    "rename": (lambda room: room.editor.rename_table(room.catalog.table("s", "t"), "u"), [{"s.t": 1}, {"s.u": 1}]),
    "create as": (lambda room: _fill(room, complete=True), [{"s.t": 1}, {"s.t": 1, "s.new": 1}]),
    "failed create as": (lambda room: _fill(room, complete=False), [{"s.t": 1}, {"s.t": 1, "s.new": 1}]),
}


@pytest.mark.parametrize("next_writer", ["starts", "waited"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one(
    change: str,
    next_writer: str,
    tmp_path: Path,
    start: Callable[..., Room],
    crash_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    act, allowed = CHANGES[change]
    for steps in range(100):
        root = tmp_path / str(steps)
        room, waiting = start(root), start(root)
        room.editor.create_schema("s")
        room.editor.create_schema("e")
        room.make("t")
        waiting.warehouse.maintain()  # it was the writer once, and finished what there was to finish then
        crash_after(steps)
        try:
            act(room)
            ended = True
        except Crash:
            ended = False
        monkeypatch.undo()
        again = start(root) if next_writer == "starts" else waiting
        again.holding = object()
        again.warehouse.maintain()
        assert again.tables() in allowed
        assert leftovers(root) == []
        for schema in again.catalog.listing().schemas.values():  # each is one that works
            again.make("another", schema=schema)
        again.warehouse.maintain()
        if ended:
            break
    assert steps > 0, "a change that takes no step tests nothing"


def test_a_note_that_outlived_its_change_moves_no_table(
    start: Callable[..., Room], room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    room.make("t")
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "remove_file", lambda _folder, _name: None)
        room.editor.create_table("s", "t", TWO, OnConflict.REPLACE)
    assert len(leftovers(room.root)) == 1
    shutil.rmtree(room.root / "_dropped")  # purged meanwhile, or brought back
    again = start()
    again.warehouse.maintain()
    assert again.tables() == {"s.t": 2}
    assert leftovers(room.root) == []


def test_a_change_under_way_is_not_taken_for_a_crash(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.make("t")
    move, maintained = Folder.move_to, []

    def move_and_tend(folder: Folder, place: Folder) -> None:
        move(folder, place)
        room.holding = object()
        maintained.append(room.warehouse.maintain())

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "move_to", move_and_tend)
        room.editor.create_table("s", "t", TWO, OnConflict.REPLACE)
    assert maintained == [False, False]
    assert room.tables() == {"s.t": 2}
    assert leftovers(room.root) == []


def test_rows_that_are_on_their_way_are_not_taken_for_a_crash(room: Room) -> None:
    """Its JVM died and the right to write was taken anew in the middle of CREATE TABLE AS."""
    table, _ = room.editor.create_table("s", "new", ONE, OnConflict.ERROR)
    room.editor.begin_creation(table)
    room.holding = object()
    assert room.warehouse.maintain() is False
    assert room.tables() == {"s.new": 1}
    room.editor.end_creation(table, complete=True)
    assert room.tables() == {"s.new": 1}
    assert leftovers(room.root) == []


def test_rows_that_were_on_their_way_when_the_process_ended_take_their_new_table_along(
    start: Callable[..., Room], room: Room
) -> None:
    table, _ = room.editor.create_table("s", "new", ONE, OnConflict.ERROR)
    room.editor.begin_creation(table)
    again = start()
    again.warehouse.maintain()
    assert again.tables() == {}


_CHURN = """
import sys, itertools
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from gateway.settings import LogSettings
from gateway.telemetry.logging import configure_logging
configure_logging(LogSettings(level="error"))
from tests.lake.test_ddl import Room, ONE, TWO, OnConflict
room = Room(Path(sys.argv[1]))
room.editor.create_schema("s")
print("ready", flush=True)
for number in itertools.count():
    room.editor.create_schema("e")
    room.editor.drop_schema("e", ignore_not_found=False)
    for name in ("a", "b"):
        room.editor.drop_table("s", name, ignore_not_found=True)
    room.make("a")
    room.editor.create_table("s", "a", TWO, OnConflict.REPLACE)
    room.editor.rename_table(room.catalog.table("s", "a"), "b")
"""


def test_a_killed_process_leaves_whole_tables_only(tmp_path: Path, start: Callable[..., Room]) -> None:
    root = tmp_path / "warehouse"
    here = Path(__file__).parents[2]
    for round_number in range(3):
        churn = [sys.executable, "-c", _CHURN, str(root), str(here)]
        with subprocess.Popen(churn, stdout=subprocess.PIPE, cwd=here, text=True) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n"
                time.sleep(0.05 + round_number * 0.111)  # any moment will do
            finally:
                process.kill()
        again = start(root)
        again.warehouse.maintain()
        assert again.tables() in ({}, {"s.a": 1}, {"s.a": 2}, {"s.b": 2})
        assert leftovers(root) == []
        again.editor.create_schema("e")
        again.editor.drop_schema("e", ignore_not_found=False)


def test_a_process_that_is_not_the_writer_changes_and_finishes_nothing(room: Room) -> None:
    room.make("t")

    def refuse() -> None:
        raise UnavailableError("another gateway writes this warehouse")

    building = room.root / "_deltaport" / "building" / "of the writer"
    building.mkdir(parents=True)
    other = EditableWarehouse(
        Folder.open(str(room.root)), {}, room.warehouse._open_table, "_rowid", DdlSettings(), check_writer=refuse
    )
    editor = Editor(Catalog("lake", other, 1, run_in_turn))
    for act in (
        other.maintain,
        lambda: editor.create_schema("n"),
        lambda: editor.drop_schema("s", ignore_not_found=True),
        lambda: editor.create_table("s", "n", ONE, OnConflict.ERROR),
        lambda: editor.drop_table("s", "t", ignore_not_found=False),
    ):
        with pytest.raises((UnavailableError, PreconditionError)):
            act()
    assert building.exists()
    assert room.tables() == {"s.t": 1}


def test_errors_carry_no_paths(room: Room) -> None:
    room.make("t")
    for act in (
        lambda: room.make("t"),
        lambda: room.make("a/b"),
        lambda: room.editor.drop_schema("s", ignore_not_found=False),
        lambda: room.warehouse.undrop("s", "x"),
    ):
        with pytest.raises(GatewayError) as failure:
            act()
        assert str(room.root) not in failure.value.message
