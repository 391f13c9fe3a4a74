"""What grows with files, commits and own writes grows no faster than they do: steps are counted, not timed."""

from __future__ import annotations

import gc
import itertools
import json
import math
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.callers import Caller
from gateway.catalog.calls import Call
from gateway.catalog.changes import OwnWrite, WriteContext
from gateway.lake.reading.slices import FileRange, bytes_read, cut
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.conflicts import Conflicts
from gateway.wire.tickets import Slice
from tests.lake.reading import added, log_file, open_table, write_long_log

FILES = 10_000


class Counted(int):
    """A number that counts how often any such number is compared."""

    comparisons = 0

    def __lt__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)

    def __le__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) <= int(other)

    def __ge__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return int(self) >= int(other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


@pytest.fixture(autouse=True)
def _start_counting() -> None:
    Counted.comparisons = 0


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "t"
    write_long_log(path, FILES)
    return path


# Cutting scans

BOUNDS = st.integers(-20, 20)


def naive(file: FileRange, part: Slice) -> int:
    if file.low is None or file.high is None:
        return file.bytes
    assert isinstance(file.low, int)
    assert isinstance(file.high, int)
    starts_before = part.low is None or (isinstance(part.low, int) and file.high >= part.low)
    ends_after = part.high is None or (isinstance(part.high, int) and file.low < part.high)
    return file.bytes if starts_before and ends_after else 0


@given(
    ranges=st.lists(st.none() | st.tuples(BOUNDS, BOUNDS), max_size=12),
    boundaries=st.sets(BOUNDS, min_size=1, max_size=6),
)
def test_what_slices_read_is_each_file_once_per_slice_that_may_have_a_row_in_it(
    ranges: list[tuple[int, int] | None], boundaries: set[int]
) -> None:
    files = [FileRange(*((None, None) if pair is None else (min(pair), max(pair))), 7) for pair in ranges]
    edges = [None, *sorted(boundaries), None]
    slices = [Slice("k", low, high) for low, high in itertools.pairwise(edges)]
    assert bytes_read(files, sorted(boundaries)) == sum(naive(file, part) for file in files for part in slices)


def test_cutting_takes_a_few_steps_per_file() -> None:
    files = [FileRange(Counted(n * 100), Counted(n * 100 + 99), 1) for n in range(4_000)]
    bytes_read(files, [Counted(n * 100) for n in range(1, 4_000)])
    assert Counted.comparisons < 4_000 * 2 * (math.log2(4_000) + 2)


def test_a_table_of_many_files_is_cut_into_as_many_pieces_as_asked_for(long_log: Path) -> None:
    snapshot = open_table(long_log).current().log
    assert (snapshot.size.rows, snapshot.size.files) == (100 * FILES, FILES)
    parts = cut(snapshot, range(FILES), None, 5_000, FILES)
    assert len(parts) == FILES
    assert parts[1] == Slice("_rowid", 100, 200)


# Sets of row ids, and the check of own writes


@given(
    ids=st.sets(st.integers(0, 60)),
    asked=st.lists(st.integers(-5, 65), unique=True).map(sorted),
)
def test_ids_are_split_into_those_inside_a_set_and_the_others(ids: set[int], asked: list[int]) -> None:
    inside, outside = IdSet.of(ids).split(asked)
    assert list(inside) == [row_id for row_id in asked if row_id in ids]
    assert list(outside) == [row_id for row_id in asked if row_id not in ids]


@dataclass(frozen=True)
class Head:
    version: int
    table_id: str = "t"


def conflicts_after(tmp_path: Path, commits: list[IdSet]) -> tuple[Conflicts, Any]:
    """A table whose commits, from version 1 on, were all the gateway's own."""
    known = Conflicts("t", None, Folder.open(str(tmp_path)))  # type: ignore[arg-type]
    for version, touched in enumerate(commits, 1):
        known.remember(Head(version), version, touched)  # type: ignore[arg-type]
    return known, Head(len(commits))


def test_checking_many_rows_against_many_own_writes_takes_steps_for_each_and_not_for_each_pair(
    tmp_path: Path,
) -> None:
    writes, rows = 500, 5_000
    commits = [IdSet.span(100_000 + 10 * n, 3) for n in range(writes)]
    known, head = conflicts_after(tmp_path, commits)
    own = tuple(OwnWrite(version, touched) for version, touched in enumerate(commits, 1))
    row_ids = [Counted(n) for n in range(rows)]
    row_ids += [Counted(touched.ranges[0][0]) for touched in commits]  # written by the transaction itself
    known.check(head, WriteContext(Call(caller=Caller("me")), read_version=0, own=own), row_ids)
    assert Counted.comparisons < 40 * (rows + writes)


def test_a_row_that_another_changed_after_the_own_write_is_still_found(tmp_path: Path) -> None:
    class AskedError(Exception):
        """The rows are looked up, at these versions."""

    class Versions:
        def at(self, version: int) -> Any:
            raise AskedError(version)

    commits = [IdSet.of([1, 2]), IdSet.of([3]), IdSet.of([2])]
    known, head = conflicts_after(tmp_path, commits)
    known._snapshots = Versions()  # type: ignore[assignment]
    own = (OwnWrite(1, IdSet.of([1, 2])), OwnWrite(2, {3}))
    known.check(head, WriteContext(Call(caller=Caller("me")), read_version=0, own=own), [1, 3])
    with pytest.raises(AskedError, match="1"):
        known.check(head, WriteContext(Call(caller=Caller("me")), read_version=0, own=own), [1, 2, 3])
    known.check(
        head, WriteContext(Call(caller=Caller("me")), read_version=0, own=(*own, OwnWrite(3, IdSet.of([2])))), [1, 2, 3]
    )
    with pytest.raises(AskedError, match="0"):
        known.check(head, WriteContext(Call(caller=Caller("me")), read_version=0), [1])


# Snapshots


def test_of_a_table_of_many_files_few_snapshots_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_long_log(path, FILES)
    table = open_table(path)
    seen = [weakref.ref(table.current().log)]
    for version in range(1, 8):
        log_file(path, version).write_text(json.dumps(added(FILES + version)) + "\n")
        newest = table.current().log
        assert (newest.version, newest.size.files) == (version, FILES + version)
        seen.append(weakref.ref(newest))
        del newest
    gc.collect()
    alive = [snapshot().version for snapshot in seen if snapshot() is not None]  # type: ignore[union-attr]
    assert alive == [5, 6, 7]
    assert table.at(2).size.files == FILES + 2  # what was let go is loaded again
