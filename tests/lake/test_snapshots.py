"""Snapshots: the newest version at once, older ones as they were, and logs that are not in order."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.errors import GatewayError, InternalError, NotFoundError, UnsupportedError
from gateway.lake.spark.engine import Spark
from gateway.lake.tables.snapshots import Snapshots
from gateway.lake.tables.storage import Folder
from tests.builders import Lake
from tests.lake.reading import edit_commit, log_file, open_table, read, without_checksums


def append(path: Path, *values: int, mode: Any = "append") -> None:
    write_deltalake(path, pa.table({"k": pa.array(values, pa.int64())}), mode=mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with a version per value: 0, then 0 and 1, then 0 to 2."""
    table = tmp_path / "t"
    for value in range(3):
        append(table, value)
    return table


def test_others_commits_are_seen_at_once(path: Path) -> None:
    table = open_table(path)
    assert read(table.current()).column("k") == [0, 1, 2]
    append(path, 3)
    append(path, 4)
    assert table.current().version == 4
    assert read(table.current()).column("k") == [0, 1, 2, 3, 4]


def test_a_snapshot_stays_as_it_is_while_others_commit(path: Path) -> None:
    table = open_table(path)
    held = table.current()
    append(path, 3)
    assert table.current().version == 3
    assert (held.version, held.size.rows) == (2, 3)
    assert read(held).column("k") == [0, 1, 2]
    assert read(table.at(2)).column("k") == [0, 1, 2]


def test_every_version_gives_its_own_rows(path: Path) -> None:
    table = open_table(path)
    for version in (1, 0, 2, 1):
        assert read(table.at(version)).column("k") == list(range(version + 1))


def test_more_versions_than_are_kept_can_be_read(tmp_path: Path) -> None:
    for value in range(12):
        append(tmp_path / "t", value)
    table = open_table(tmp_path / "t")
    for version in [*range(12), *range(12)]:
        assert table.at(version).size.rows == version + 1


@pytest.mark.parametrize("version", [3, 2**62])
def test_a_version_that_does_not_exist_yet_says_which_do(path: Path, version: int) -> None:
    with pytest.raises(NotFoundError, match=r"no version \d+; it has 0 to 2"):
        open_table(path).at(version)


def test_an_unchanged_table_is_not_loaded_again(path: Path) -> None:
    table = open_table(path)
    assert table.current().log is table.current().log
    assert table.at(1).log is table.at(1).log


def test_versions_dropped_by_log_clean_up_say_which_exist(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    append(path, 3)
    without_checksums(path)
    for version in range(2):
        log_file(path, version).unlink()
    table = open_table(path)
    assert read(table.current()).column("k") == [0, 1, 2, 3]
    assert read(table.at(2)).column("k") == [0, 1, 2]
    with pytest.raises(NotFoundError, match="no version 1; it has 2 to 3"):
        table.at(1)


def test_log_clean_up_under_a_held_table_changes_nothing_for_it(path: Path) -> None:
    table = open_table(path)
    old = table.at(0)
    DeltaTable(path).create_checkpoint()
    for version in range(2):
        log_file(path, version).unlink()
    append(path, 3)
    assert read(table.current()).column("k") == [0, 1, 2, 3]
    assert read(old).column("k") == [0]


def test_a_dropped_table_is_not_found_and_found_again_when_made_anew(path: Path) -> None:
    table = open_table(path)
    table.current()
    shutil.rmtree(path)
    for look in (table.current, lambda: table.at(2), lambda: table.at(0), lambda: table.at(99)):
        with pytest.raises(NotFoundError, match=r"^table 's\.t' not found$"):
            look()
    append(path, 7)
    assert read(table.current()).column("k") == [7]


@pytest.mark.parametrize("versions", [1, 3, 5], ids=["fewer", "as many", "more"])
def test_a_table_made_anew_under_the_same_path_never_shows_old_rows(path: Path, versions: int) -> None:
    table = open_table(path)
    before = [table.at(version) for version in range(3)]
    shutil.rmtree(path)
    for value in range(versions):
        append(path, 100 + value)
    for version in range(versions):
        now = table.at(version)
        assert now.identity not in {old.identity for old in before}
        assert read(now).column("k") == [100 + value for value in range(version + 1)]
    assert table.current().version == versions - 1
    assert table.current().identity != before[0].identity


def test_a_table_overwritten_with_another_schema_keeps_both_in_its_history(lake: Lake) -> None:
    lake.create("t", "k INT")
    lake.fill("t", "VALUES (1)")
    table = open_table(lake.path("t"))
    first = table.current()
    other = lake.spark.sql("SELECT 'x' AS other")
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(lake.path("t")))
    assert table.current().shape.names == ["other", "rowid"]
    assert read(table.current()).column("other") == ["x"]
    assert table.at(first.version).shape.names == ["k", "rowid"]
    assert read(table.at(first.version)).column("k") == [1]


def truncated(path: Path) -> None:
    edit_commit(path, 2, lambda text: text[: len(text) // 2])


def garbage(path: Path) -> None:
    without_checksums(path)
    log_file(path, 2).write_bytes(b"\x00\xff\xfe not json")


def without_a_commit(path: Path) -> None:
    log_file(path, 1).unlink()


def without_its_checkpoint(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    append(path, 3)
    for checkpoint in (path / "_delta_log").glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    log_file(path, 0).unlink()


def with_a_broken_checkpoint(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    for checkpoint in (path / "_delta_log").glob("*.checkpoint.parquet"):
        checkpoint.write_bytes(checkpoint.read_bytes()[:64])


def with_an_unreadable_schema(path: Path) -> None:
    edit_commit(path, 0, lambda text: text.replace('\\"fields\\"', '\\"feels\\"'))


DEFECTS = [
    truncated,
    garbage,
    without_a_commit,
    without_its_checkpoint,
    with_a_broken_checkpoint,
    with_an_unreadable_schema,
]


@pytest.mark.parametrize("damage", DEFECTS, ids=lambda damage: damage.__name__)
def test_a_damaged_log_is_a_short_error_without_paths(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    with pytest.raises(GatewayError) as caught:
        open_table(path).current()
    assert isinstance(caught.value, InternalError)
    assert_is_short(caught.value, path)


def assert_is_short(error: GatewayError, path: Path) -> None:
    assert "'s.t'" in error.message
    assert len(error.message) < 120
    assert str(path.parent) not in error.message
    assert "\n" not in error.message


def test_damage_to_the_newest_commit_is_told_and_heals_when_repaired(path: Path) -> None:
    table = open_table(path)
    table.current()
    append(path, 3)
    commit = log_file(path, 3).read_bytes()
    log_file(path, 3).write_bytes(commit[:50])
    with pytest.raises(InternalError):
        table.current()
    log_file(path, 3).write_bytes(commit)
    assert read(table.current()).column("k") == [0, 1, 2, 3]


def test_damage_to_an_old_commit_leaves_newer_versions_readable(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    garbage_commit = log_file(path, 1)
    garbage_commit.write_text("{")
    table = open_table(path)
    assert read(table.current()).column("k") == [0, 1, 2]
    with pytest.raises(InternalError) as caught:
        table.at(1)
    assert_is_short(caught.value, path)


def with_protocol(protocol: dict[str, Any]) -> Callable[[str], str]:
    def change(text: str) -> str:
        actions = [json.loads(line) for line in text.splitlines()]
        return "\n".join(json.dumps({"protocol": protocol} if "protocol" in action else action) for action in actions)

    return change


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["teleport"], "writerFeatures": ["teleport"]},
        {"minReaderVersion": 99, "minWriterVersion": 99},
    ],
    ids=["feature", "version"],
)
def test_an_unknown_reader_feature_is_unsupported(path: Path, protocol: dict[str, Any]) -> None:
    edit_commit(path, 0, with_protocol(protocol))
    with pytest.raises(UnsupportedError) as caught:
        open_table(path).current()
    assert_is_short(caught.value, path)


def test_a_place_called_feature_does_not_make_damage_a_missing_feature(tmp_path: Path) -> None:
    path = tmp_path / "feature" / "t"
    path.parent.mkdir()
    for value in range(3):
        append(path, value)
    without_a_commit(path)
    with pytest.raises(InternalError):
        open_table(path).current()


@pytest.mark.parametrize("kind", ["interval year", "void", "geometry", "char(3)"])
def test_a_column_type_that_clients_cannot_be_shown_is_a_short_error(path: Path, kind: str) -> None:
    edit_commit(path, 0, lambda text: text.replace('\\"long\\"', f'\\"{kind}\\"'))
    with pytest.raises(GatewayError) as caught:
        open_table(path).current()
    assert len(caught.value.message) < 120
    assert str(path.parent) not in caught.value.message


def test_a_folder_with_an_empty_log_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    with pytest.raises(NotFoundError):
        open_table(tmp_path / "t").current()


def test_v2_checkpoints_are_read(lake: Lake, lake_spark: Spark) -> None:
    properties = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"}
    lake.create("t", "k BIGINT", properties=properties)
    for value in range(4):
        lake.fill("t", f"VALUES ({value})")
    log = lake.path("t") / "_delta_log"
    checkpoints = [name for name in log.iterdir() if ".checkpoint." in name.name and not name.name.startswith(".")]
    assert checkpoints, "the table was meant to have v2 checkpoints"
    table = open_table(lake.path("t"), lake_spark)
    assert read(table.current()).column("k") == [0, 1, 2, 3]
    without_checksums(lake.path("t"))
    for version in range(2):
        log_file(lake.path("t"), version).unlink()
    assert read(open_table(lake.path("t")).current()).column("k") == [0, 1, 2, 3]
    with pytest.raises(NotFoundError, match="it has 2 to 4"):
        open_table(lake.path("t")).at(0)


def test_concurrent_looks_while_spark_commits_see_whole_versions_only(lake: Lake) -> None:
    lake.numbers("t", 10)
    snapshots = Snapshots("t", Folder.open(str(lake.path("t"))), "_rowid")
    first = snapshots.current().version
    done, barrier = threading.Event(), threading.Barrier(5)

    def look() -> int:
        barrier.wait()
        seen = first
        while not done.is_set():
            current = snapshots.current()
            assert current.version >= seen, "a look went back in time"
            seen = current.version
            pinned = snapshots.at(max(first, seen - 1))
            for snapshot in (current, pinned):
                assert snapshot.size.rows == 10 + (snapshot.version - first)
        return seen

    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(look) for _ in range(4)]
        barrier.wait()
        try:
            for value in range(5):
                lake.fill("t", f"VALUES ({value}, {value}, 'new')")
        finally:
            done.set()
        assert max(each.result() for each in looks) <= first + 5
    assert snapshots.current().version == first + 5


def test_concurrent_looks_while_the_table_is_made_anew_never_mix_two_tables(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = open_table(path)
    done, barrier = threading.Event(), threading.Barrier(4)

    def look() -> None:
        barrier.wait()
        while not done.is_set():
            try:
                snapshot = table.at(1)
            except GatewayError:
                continue  # between two lives
            lives = {round(value, -1) for value in snapshot.log.files.column("num_records").to_pylist()}
            assert len(lives) <= 1, "files of two tables in one snapshot"

    with ThreadPoolExecutor(3) as pool:
        looks = [pool.submit(look) for _ in range(3)]
        barrier.wait()
        try:
            for life in range(1, 9):
                for _ in range(2):
                    append(path, *range(life * 10))
                shutil.rmtree(path)
            append(path, *range(5))
            append(path, *range(5))
        finally:
            done.set()
        for each in looks:
            each.result()
    assert read(table.current()).table.num_rows == 10
