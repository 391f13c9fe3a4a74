"""Where tables are found: folders, mapped tables, and what is in the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.catalog.names import TableName
from gateway.errors import RequestError, UnavailableError
from gateway.lake.tables.storage import Folder
from gateway.lake.tables.warehouse import Warehouse


class Opened:
    """What the warehouse was asked to open."""

    def __init__(self, name: TableName, folder: Folder) -> None:
        self.name = name
        self.uri = folder.uri


def warehouse(root: Path | None, **mapped: Path) -> Warehouse:
    tables = {name.replace("__", "."): str(path) for name, path in mapped.items()}
    return Warehouse(None if root is None else Folder.open(str(root)), tables, Opened)  # type: ignore[arg-type]


def make_log(root: Path, *names: str) -> Path:
    table = root.joinpath(*names)
    (table / "_delta_log").mkdir(parents=True)
    return table


def test_folders_with_a_log_are_tables_and_folders_of_folders_are_schemas(tmp_path: Path) -> None:
    make_log(tmp_path, "sales", "orders")
    make_log(tmp_path, "sales", "Été 2024")
    (tmp_path / "sales" / "plain_files").mkdir()
    (tmp_path / "empty").mkdir()
    found = warehouse(tmp_path)
    assert sorted(found.schemas()) == ["empty", "sales"]
    assert sorted(found.tables()) == [("sales", "orders"), ("sales", "Été 2024")]


@pytest.mark.parametrize("name", [".hidden", "_temporary", " padded", "line\nbreak", "back\\slash"])
def test_schema_folders_whose_names_are_no_names_are_not_looked_into(tmp_path: Path, name: str) -> None:
    make_log(tmp_path, name, "t")
    assert list(warehouse(tmp_path).schemas()) == []
    assert list(warehouse(tmp_path).tables()) == []


def test_a_name_that_is_not_utf8_does_not_hide_the_others(tmp_path: Path) -> None:
    make_log(tmp_path, "s", "t")
    os.makedirs(os.fsencode(tmp_path) + b"/s/\xff\xfe/_delta_log")  # noqa: PTH103 - Path cannot say it
    os.makedirs(os.fsencode(tmp_path) + b"/\xff")  # noqa: PTH103
    found = warehouse(tmp_path)
    assert list(found.schemas()) == ["s"]
    assert list(found.tables()) == [("s", "t")]


def test_files_and_dead_links_where_folders_are_expected_are_left_out(tmp_path: Path) -> None:
    make_log(tmp_path, "s", "t")
    (tmp_path / "file").write_text("")
    (tmp_path / "s" / "file").write_text("")
    (tmp_path / "s" / "log_is_a_file").mkdir()
    (tmp_path / "s" / "log_is_a_file" / "_delta_log").write_text("")
    (tmp_path / "s" / "dangling").symlink_to("nowhere")
    (tmp_path / "s" / "loop").symlink_to("loop")
    (tmp_path / "loop").symlink_to("loop")
    found = warehouse(tmp_path)
    assert list(found.schemas()) == ["s"]
    assert list(found.tables()) == [("s", "t")]


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    elsewhere = make_log(tmp_path / "elsewhere", "t")
    root = tmp_path / "root"
    (root / "s").mkdir(parents=True)
    (root / "s" / "linked").symlink_to(elsewhere)
    (root / "schema_link").symlink_to(tmp_path / "elsewhere")
    assert sorted(warehouse(root).tables()) == [("s", "linked"), ("schema_link", "t")]


def test_a_mapped_table_wins_over_a_folder_of_the_same_name(tmp_path: Path) -> None:
    make_log(tmp_path, "s", "t")
    mapped = make_log(tmp_path / "other", "place")
    found = warehouse(tmp_path, S__T=mapped)
    assert [names for names in found.tables() if names[1].lower() == "t"] == [("S", "T")]
    assert found.has_table("s", "t") == ("S", "T")
    assert found.open(TableName("lake", "s", "t")).uri == str(mapped)  # type: ignore[attr-defined]


def test_a_mapped_table_needs_no_warehouse(tmp_path: Path) -> None:
    found = warehouse(None, s__t=make_log(tmp_path, "t"))
    assert list(found.schemas()) == ["s"]
    assert list(found.tables()) == [("s", "t")]
    assert found.has_table("s", "other") is None


def test_schemas_that_differ_only_in_case_are_listed_once(tmp_path: Path) -> None:
    make_log(tmp_path, "Sales", "a")
    make_log(tmp_path, "sales", "b")
    assert len(list(warehouse(tmp_path).schemas())) == 1


def test_a_table_is_found_by_one_look_at_its_own_place(tmp_path: Path) -> None:
    make_log(tmp_path, "s", "t")
    found = warehouse(tmp_path)
    assert found.has_table("s", "t") == ("s", "t")
    assert found.has_table("s", "u") is None
    assert found.has_table("nowhere", "t") is None


def test_a_root_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    found = warehouse(tmp_path / "later")
    assert list(found.schemas()) == []
    make_log(tmp_path, "later", "s", "t")
    assert list(found.tables()) == [("s", "t")]


def test_a_root_that_is_a_file_is_an_error_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError) as caught:
        list(warehouse(tmp_path / "file").schemas())
    assert str(tmp_path) not in caught.value.message


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_folders_that_may_not_be_read_do_not_hide_the_others(tmp_path: Path) -> None:
    make_log(tmp_path, "open", "t")
    closed = [make_log(tmp_path, "open", "closed"), make_log(tmp_path, "closed", "t").parent]
    for folder in closed:
        folder.chmod(0)
    try:
        assert list(warehouse(tmp_path).tables()) == [("open", "t")]
    finally:
        for folder in closed:
            folder.chmod(0o700)


@pytest.mark.parametrize("name", ["no_dot", "s.", ".t", "s.a/b"])
def test_a_mapped_name_must_be_schema_dot_table(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError):
        Warehouse(None, {name: str(tmp_path)}, Opened)  # type: ignore[arg-type]


def test_an_unknown_kind_of_location_is_refused_without_repeating_it() -> None:
    with pytest.raises(RequestError) as caught:
        Folder.open("nonsense://user:secret@host/path")
    assert "secret" not in caught.value.message


def test_file_uris_and_paths_name_the_same_folder(tmp_path: Path) -> None:
    make_log(tmp_path, "with space", "t")
    assert Folder.open(f"file://{tmp_path}/with%20space").folders() == ["t"]
    assert Folder.open(str(tmp_path / "with space")).folders() == ["t"]


# What is on the disk when a call returns


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, by name."""
    names: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return names


STEPS: dict[str, tuple[Callable[[Folder], object], list[str]]] = {
    "folders made": (lambda root: root.child("new").child("deep").create(), ["new", "root"]),
    "folder that is there": (lambda root: root.child("one").create(), []),
    "file": (lambda root: root.child("one").write_file("f", b"x"), ["f", "one"]),
    "file renamed": (lambda root: root.child("one").rename_file("old", "new"), ["one"]),
    "file removed": (lambda root: root.child("one").remove_file("old"), ["one"]),
    "folder moved": (lambda root: root.child("one").child("in").move_to(root.child("two").child("in")), ["two", "one"]),
    "folder removed": (lambda root: root.child("two").remove_empty(), ["root"]),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_change_is_on_the_disk_when_it_is_made(step: str, tmp_path: Path, synced: list[str]) -> None:
    change, expected = STEPS[step]
    for fsync in (True, False):
        root = tmp_path / str(fsync) / "root"
        (root / "one" / "in").mkdir(parents=True)
        (root / "two").mkdir()
        (root / "one" / "old").write_text("")
        change(Folder.open(str(root), fsync=fsync))
        assert synced == (expected if fsync else [])
        synced.clear()


def test_a_disk_that_cannot_sync_is_an_error_and_one_without_sync_of_folders_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {True: errno.EINVAL, False: 0}

    def fail(descriptor: int) -> None:
        if code := codes[Path(f"/proc/self/fd/{descriptor}").is_dir()]:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    folder = Folder.open(str(tmp_path), fsync=True)
    folder.write_file("f", b"x")
    for is_folder in (True, False):
        codes.update({is_folder: errno.EIO, not is_folder: 0})
        with pytest.raises(UnavailableError, match="cannot be written"):
            folder.write_file("f", b"x")
