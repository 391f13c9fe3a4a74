"""How many bytes a row takes once it is decoded, as far as the files themselves tell.

Engines cut batches by rows, so whoever bounds memory has to know how wide rows
are before reading them. Compressed sizes do not say that, and neither do a
footer's uncompressed ones where a dictionary stands for many long values: what
600 rows of a megabyte each repeat takes a megabyte there. So the longest entry
of a dictionary is looked up, and what was seen in earlier reads counts too.
Only the size of batches depends on all this, never a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from gateway.lake.reading.files import open_data_file
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot

log = structlog.get_logger(__name__)

_EXPANSION = 4  # how much larger rows are in memory than in files, about, where a file cannot be asked
_MOST_FILES = 64  # asked for one read, the largest ones: the files of a table are mostly alike
# What one read may spend on asking: a look at a column chunk's footer counts as one, and one into its dictionary,
# which takes a millisecond, as fifty.
_MOST_EFFORT = 20_000
_DICTIONARY_EFFORT = 50
_MOST_KNOWN = 100_000
_DICTIONARY_ROWS = 1_024  # read to get hold of a dictionary
_DICTIONARY_TRIES = 8


@dataclass(frozen=True, slots=True)
class _Key:
    """A column by its name in files, and whether a reader repeats what its dictionaries hold once."""

    name: str
    is_expanded: bool


class Widths:
    """Thread-safe: its memory of files is only ever added to, or dropped as a whole."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, _Key], int] = {}
        self._seen: dict[tuple[str, frozenset[str]], int] = {}

    def row_bytes(
        self, snapshot: LogSnapshot, columns: Sequence[Column], files: Sequence[int], *, expands_texts: bool
    ) -> int:
        """What the columns without a fixed width take in the widest rows; 0 where there are none.

        The direct reader does not repeat a dictionary's text for plain text columns, Spark does (`expands_texts`).
        """
        wanted = [column for column in boundless(columns) if column.name not in snapshot.partition_columns]
        if not wanted:
            return 0
        keys = [_Key(column.physical_name, expands_texts or not pa.types.is_string(column.type)) for column in wanted]
        widest = dict.fromkeys(keys, 0)
        effort = 0
        for path in _largest(snapshot, files):
            known = {key: self._known.get((snapshot.uri, path, key)) for key in keys}
            missing = [key for key, width in known.items() if width is None]
            measured: dict[_Key, int] = {}
            if missing and effort <= _MOST_EFFORT:
                measured, spent = _measure(snapshot, path, missing)
                effort += spent
                _make_room(self._known)
                self._known.update({(snapshot.uri, path, key): width for key, width in measured.items()})
            guess = _EXPANSION * snapshot.stored_row_bytes
            for key, width in known.items():
                widest[key] = max(widest[key], measured.get(key, guess) if width is None else width)
        return max(sum(widest.values()), self._seen.get(_seen_key(snapshot, wanted), 0))

    def saw(self, snapshot: LogSnapshot, columns: Sequence[Column], row_bytes: int) -> None:
        """Rows were this wide in a batch that was larger than wanted: later batches will have fewer of them."""
        key = _seen_key(snapshot, boundless(columns))
        if row_bytes > self._seen.get(key, 0):
            _make_room(self._seen)
            self._seen[key] = row_bytes


def boundless(columns: Sequence[Column]) -> list[Column]:
    """The columns whose values may be of any length."""
    return [column for column in columns if _is_boundless(column.type)]


def _is_boundless(kind: pa.DataType) -> bool:
    if kind.num_fields:
        return pa.types.is_list(kind) or pa.types.is_map(kind) or any(_is_boundless(field.type) for field in kind)
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _seen_key(snapshot: LogSnapshot, columns: Sequence[Column]) -> tuple[str, frozenset[str]]:
    return snapshot.uri, frozenset(column.name for column in columns)


def _make_room(memory: dict[Any, Any]) -> None:
    if len(memory) > _MOST_KNOWN:
        memory.clear()


def _largest(snapshot: LogSnapshot, files: Sequence[int]) -> list[str]:
    if len(files) > _MOST_FILES:
        sizes = snapshot.files.column("size_bytes").take(pa.array(files, pa.int64()))
        order = pc.sort_indices(sizes, sort_keys=[("", "descending")])[:_MOST_FILES].to_pylist()
        files = [files[place] for place in order]
    paths: list[str] = snapshot.files.column("path").take(pa.array(files, pa.int64())).to_pylist()
    return paths


def _measure(snapshot: LogSnapshot, path: str, keys: Sequence[_Key]) -> tuple[dict[_Key, int], int]:
    """Bytes per row of these columns in a file, and what it took to find out; nothing where it cannot be read."""
    try:
        with open_data_file(snapshot, path) as file:
            footer = pq.read_metadata(file)
            leaves = _leaves(footer, {key.name for key in keys})
            widths = {key: _width(file, footer, leaves[key.name], is_expanded=key.is_expanded) for key in keys}
    except Exception as error:  # whoever reads the file meets this again, and says so
        log.info("file_not_measured", table=snapshot.table, error=type(error).__name__)
        return {}, 1
    chunks = sum((_DICTIONARY_EFFORT if key.is_expanded else 1) * len(leaves[key.name]) for key in keys)
    return widths, footer.num_row_groups * chunks


def _leaves(footer: pq.FileMetaData, names: set[str]) -> dict[str, list[int]]:
    """For each column the places of what is stored of it. A name may itself have dots in it, as paths do."""
    found: dict[str, list[int]] = {name: [] for name in names}
    for index in range(footer.num_columns):
        steps = footer.schema.column(index).path.split(".")
        for name in itertools.accumulate(steps, lambda path, step: f"{path}.{step}"):
            if name in found:
                found[name].append(index)
    return found


def _width(file: Any, footer: pq.FileMetaData, leaves: Sequence[int], *, is_expanded: bool) -> int:
    """Bytes per row in the row group with the widest rows."""
    widest = 0
    for group in range(footer.num_row_groups):
        part = footer.row_group(group)
        if part.num_rows:
            size = sum(_chunk_bytes(file, part.column(leaf), group, is_expanded=is_expanded) for leaf in leaves)
            widest = max(widest, size // part.num_rows)
    return widest


def _chunk_bytes(file: Any, chunk: pq.ColumnChunkMetaData, group: int, *, is_expanded: bool) -> int:
    encoded, values = int(chunk.total_uncompressed_size), int(chunk.num_values)
    if not is_expanded:
        return encoded
    return max(encoded, values * (_longest(file, chunk, group) if _has_texts(chunk) else 8))


def _has_texts(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY")


def _longest(file: Any, chunk: pq.ColumnChunkMetaData, group: int) -> int:
    """The length of the longest entry in a chunk's dictionary."""
    path = chunk.path_in_schema
    reader = pq.ParquetFile(file, read_dictionary=[path], pre_buffer=False)
    for batch, _ in zip(
        reader.iter_batches(_DICTIONARY_ROWS, row_groups=[group], columns=[path]),
        range(_DICTIONARY_TRIES),
        strict=False,
    ):
        lengths = pc.binary_length(_dictionary(batch.column(0)))
        if len(lengths):
            return int(pc.max(lengths).as_py() or 0)
    return int(chunk.total_uncompressed_size)  # nothing but nulls so far: no entry is longer than all of them


def _dictionary(array: pa.Array) -> pa.Array:
    """The dictionary of the one leaf that was read, however deep it is."""
    while not pa.types.is_dictionary(array.type):
        array = array.field(0) if pa.types.is_struct(array.type) else array.values
    return array.dictionary
