"""Which of the two readers serves a scan, and why.

The direct reader is the default. Spark reads what the direct one refuses or
would get wrong, and what is too large for one process. The reason is kept, for
the log line and the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.errors import UnsupportedError
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.tables.storage import Folder
from gateway.settings import ScanSettings

# Known to be refused by the direct reader, which opens such tables all the same; named for the metric.
_REFUSED_FEATURES = frozenset({"typeWidening", "typeWidening-preview"})
# INT96 holds any time, but the direct reader goes through 64-bit nanoseconds and silently wraps what does
# not fit. Statistics are cut to milliseconds, so the safe span stays a second inside the true one.
_SAFE_FROM = datetime(1677, 9, 22, tzinfo=UTC)
_SAFE_TO = datetime(2262, 4, 11, tzinfo=UTC)
_MAX_FOOTERS = 64  # opened for one decision; beyond that Spark is the quicker answer


@dataclass(frozen=True, slots=True)
class Route:
    engine: str
    reason: str


class Routes:
    """Chooses routes. Thread-safe: its memory of footers is only ever added to."""

    def __init__(self, settings: ScanSettings) -> None:
        self._settings = settings
        self._checked: dict[str, bool] = {}

    def choose(self, snapshot: LogSnapshot, columns: Iterable[Column]) -> Route:
        times = [c for c in columns if _holds_instant(c.type) and c.name not in snapshot.partition_columns]
        if self._settings.engine == "spark":
            return Route("spark", "configured")
        if self._settings.engine == "direct":
            if not self._instants_are_safe(snapshot, times):
                raise UnsupportedError(f"table '{snapshot.table}' has times that only Spark can read right here")
            return Route("direct", "configured")
        if refused := sorted(_REFUSED_FEATURES & snapshot.reader_features):
            return Route("spark", f"feature {refused[0]}")
        if not snapshot.is_directly_readable:
            return Route("spark", "feature")
        if snapshot.size.bytes > self._settings.direct_max_bytes:
            return Route("spark", "size")
        if not self._instants_are_safe(snapshot, times):
            return Route("spark", "int96")
        return Route("direct", "default")

    def _instants_are_safe(self, snapshot: LogSnapshot, columns: list[Column]) -> bool:
        if not columns:
            return True
        unproven = unproven_files(snapshot, columns)
        paths: list[str] = snapshot.files.column("path").filter(pa.array(unproven)).to_pylist()
        unknown = [path for path in paths if self._key(snapshot, path) not in self._checked]
        if len(unknown) > _MAX_FOOTERS:
            return False
        for path in unknown:
            self._remember(snapshot, path)
        return all(self._checked[self._key(snapshot, path)] for path in paths)

    def _remember(self, snapshot: LogSnapshot, path: str) -> None:
        if len(self._checked) > 100_000:
            self._checked.clear()
        self._checked[self._key(snapshot, path)] = not _has_int96(lambda: _footer(snapshot, path))

    @staticmethod
    def _key(snapshot: LogSnapshot, path: str) -> str:
        return f"{snapshot.uri}\0{path}"


def unproven_files(snapshot: LogSnapshot, columns: list[Column]) -> list[bool]:
    """For each file, whether the log leaves open that a time lies outside the safe span."""
    proven = pa.array([True] * snapshot.files.num_rows)
    for column in columns:
        proven = pc.and_(proven, _column_proven(snapshot, column))
    return [not value for value in proven.to_pylist()]


def _column_proven(snapshot: LogSnapshot, column: Column) -> pa.Array:
    nothing = pa.array([False] * snapshot.files.num_rows)
    if not pa.types.is_timestamp(column.type):
        return nothing  # nested: the log has no statistics that could prove it
    lows, highs = snapshot.file_values(column, "min"), snapshot.file_values(column, "max")
    nulls = snapshot.file_values(column, "null_count")
    if lows is None or highs is None:
        return nothing
    first, last = (pa.scalar(moment, pa.timestamp("us", tz="UTC")) for moment in (_SAFE_FROM, _SAFE_TO))
    inside = pc.and_(pc.greater_equal(lows, first), pc.less_equal(highs, last))
    empty = nothing if nulls is None else pc.equal(nulls, snapshot.files.column("num_records"))
    combined = pc.or_(pc.fill_null(inside, False), pc.fill_null(empty, False))
    return combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined


def _holds_instant(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return any(_holds_instant(kind.field(index).type) for index in range(kind.num_fields))


def _footer(snapshot: LogSnapshot, path: str) -> pq.FileMetaData:
    if "://" in path or path.startswith("/"):
        folder, name = Folder.open(path.rsplit("/", 1)[0]), path.rsplit("/", 1)[1]
    else:
        folder, name = Folder.open(snapshot.uri), path
    # Paths in the log are URL-encoded.
    with folder.open_file(unquote(name)) as file:
        return pq.read_metadata(file)


def _has_int96(footer: Callable[[], pq.FileMetaData]) -> bool:
    try:
        schema = footer().schema
    except Exception:  # a footer that cannot be read proves nothing
        return True
    return any(schema.column(index).physical_type == "INT96" for index in range(len(schema.names)))
