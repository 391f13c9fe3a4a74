"""Which of the two readers serves a scan, and why.

The direct reader is the default. Spark reads what the direct one refuses or
would get wrong, and what is too large for one process. The reason is kept, for
the log line and the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.errors import UnsupportedError
from gateway.lake.reading.files import open_data_file
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.settings import ScanSettings

# Known to be refused by the direct reader, which opens such tables all the same; named for the metric.
_REFUSED_FEATURES = frozenset({"typeWidening", "typeWidening-preview"})
# INT96 holds any time, but the direct reader goes through 64-bit nanoseconds and silently wraps what does
# not fit. Statistics are cut to milliseconds, so the safe span stays a second inside the true one.
_SAFE_FROM = datetime(1677, 9, 22, tzinfo=UTC)
_SAFE_TO = datetime(2262, 4, 11, tzinfo=UTC)
_MAX_FOOTERS = 64  # opened for one decision; beyond that Spark is the quicker answer
_MOST_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Route:
    engine: str
    reason: str


class Routes:
    """Chooses routes. Thread-safe: its memory of footers is added to, or dropped as a whole."""

    def __init__(self, settings: ScanSettings) -> None:
        self._settings = settings
        self._checked: dict[str, bool] = {}

    def choose(self, snapshot: LogSnapshot, columns: Iterable[Column]) -> Route:
        times = _instants(snapshot, columns)
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

    def is_direct_right(self, snapshot: LogSnapshot, columns: Iterable[Column], files: Sequence[int]) -> bool:
        """Whether the direct reader takes the table and gets these columns right in these files.

        For what the gateway reads for itself, whichever engine is configured for scans.
        """
        times = _instants(snapshot, columns)
        if _REFUSED_FEATURES & snapshot.reader_features or not snapshot.is_directly_readable:
            return False
        return self._instants_are_safe(snapshot, times, files)

    def _instants_are_safe(
        self, snapshot: LogSnapshot, columns: list[Column], files: Sequence[int] | None = None
    ) -> bool:
        if not columns:
            return True
        unproven = unproven_files(snapshot, columns)
        places = range(len(unproven)) if files is None else files
        wanted = pa.array([place for place in places if unproven[place]], pa.int64())
        paths: list[str] = snapshot.files.column("path").take(wanted).to_pylist()
        known = {path: self._checked.get(self._key(snapshot, path)) for path in paths}
        unknown = [path for path, is_safe in known.items() if is_safe is None]
        if len(unknown) > _MAX_FOOTERS:
            return False
        return all(is_safe is not False for is_safe in known.values()) and all(
            self._look_at(snapshot, path) for path in unknown
        )

    def _look_at(self, snapshot: LogSnapshot, path: str) -> bool:
        """Whether a file has no INT96, by its footer; remembered, but others may clear that at any moment."""
        is_safe = not _has_int96(lambda: _footer(snapshot, path))
        if len(self._checked) > _MOST_REMEMBERED:
            self._checked.clear()
        self._checked[self._key(snapshot, path)] = is_safe
        return is_safe

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


def _instants(snapshot: LogSnapshot, columns: Iterable[Column]) -> list[Column]:
    return [c for c in columns if _holds_instant(c.type) and c.name not in snapshot.partition_columns]


def _holds_instant(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return any(_holds_instant(kind.field(index).type) for index in range(kind.num_fields))


def _footer(snapshot: LogSnapshot, path: str) -> pq.FileMetaData:
    with open_data_file(snapshot, path) as file:
        return pq.read_metadata(file)


def _has_int96(footer: Callable[[], pq.FileMetaData]) -> bool:
    try:
        schema = footer().schema
    except Exception:  # a footer that cannot be read proves nothing
        return True
    return any(schema.column(index).physical_type == "INT96" for index in range(len(schema.names)))
