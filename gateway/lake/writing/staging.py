"""Where a statement's rows wait for their commit.

Small uploads stay in memory and go to Spark as an Arrow table. Larger ones are
spooled to Parquet under the staging folder while they arrive, so memory stays
bounded and Spark reads files. Whatever happens, `release` removes them; what a
killed process left behind is removed by the next one that starts: each process
stages in a folder of its own and holds a lock on it for as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from gateway.errors import RequestError, UnavailableError
from gateway.lake.tables.internal_names import POSITION
from gateway.settings import StagingSettings

log = structlog.get_logger(__name__)

_OWNED = "gateway-"
_LOCK = "in-use"
_FILE = "rows.parquet"
# A file that is read once, and whole: dictionaries and statistics made writing it four times as slow.
_READ_ONCE = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}


class StagingFolder:
    """This process's place under the staging folder, made when it is first needed. Thread-safe."""

    def __init__(self, settings: StagingSettings) -> None:
        self.settings = settings
        self._root = Path(settings.folder).resolve()
        self._guard = threading.Lock()
        self._own: Path | None = None
        self._held: int | None = None

    def new_folder(self) -> Path:
        with self._guard, _disk_errors():
            if self._own is None:
                # Under another name until it is locked: a process that starts meanwhile would take it for a leftover.
                own = self._root / f"{_OWNED}{uuid.uuid4()}"
                unlocked = own.with_name(f".{own.name}")
                unlocked.mkdir(parents=True)
                self._held = os.open(unlocked / _LOCK, os.O_CREAT | os.O_RDWR)
                fcntl.flock(self._held, fcntl.LOCK_EX)
                self._own = unlocked.rename(own)
            folder = self._own / str(uuid.uuid4())
            folder.mkdir()
            return folder

    def remove_leftovers(self) -> None:
        """Remove the folders of processes that are gone: whoever is alive holds its lock."""
        for folder in self._root.glob(f"{_OWNED}*"):
            with contextlib.suppress(OSError):
                held = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                    log.info("staging_leftover_removed", name=folder.name)
                finally:
                    os.close(held)

    def close(self) -> None:
        with self._guard:
            if self._own is not None:
                shutil.rmtree(self._own, ignore_errors=True)
            if self._held is not None:
                os.close(self._held)
            self._own = self._held = None


class StagedRows:
    """The rows of one statement, numbered in the order they came. For one thread."""

    def __init__(self, staging: StagingFolder, schema: pa.Schema) -> None:
        self._staging = staging
        self._settings = staging.settings
        self.schema = schema.append(pa.field(POSITION, pa.int64()))
        self.rows = 0
        self.bytes = 0
        self._tables: list[pa.Table] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._folder: Path | None = None

    @property
    def is_spooled(self) -> bool:
        return self._folder is not None

    @property
    def folder(self) -> str:
        assert self._folder is not None
        return str(self._folder)

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:  # a client may send empty batches anywhere; nothing behind this has to know of them
            return
        positions = pa.arange(self.rows, self.rows + rows.num_rows)
        self._tables.append(rows.append_column(pa.field(POSITION, pa.int64()), positions))
        size = rows.nbytes
        self.rows += rows.num_rows
        self.bytes += size
        self._buffered_rows += rows.num_rows
        self._buffered_bytes += size
        if self.bytes > self._settings.max_bytes:
            raise RequestError(f"the upload is larger than {self._settings.max_bytes} bytes (staging.max_bytes)")
        if self._buffered_rows > self._settings.memory_rows or self._buffered_bytes > self._settings.memory_bytes:
            self._spool()

    def replaced_by(self, table: pa.Table) -> StagedRows:
        """Other rows in memory with the same columns; the original stays as it is."""
        other = StagedRows(self._staging, table.schema.remove(table.schema.get_field_index(POSITION)))
        other._tables, other.rows, other.bytes = [table], table.num_rows, table.nbytes
        return other

    def table(self) -> pa.Table:
        """All rows, for an upload that was not spooled."""
        assert not self.is_spooled
        return pa.concat_tables(self._tables) if self._tables else self.schema.empty_table()

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows once more, as many at a time as memory may hold; only after `finish`."""
        if self._folder is None:
            yield self.table().select(list(columns))
            return
        with _disk_errors(), pq.ParquetFile(self._folder / _FILE) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, list(columns))

    def finish(self) -> None:
        """No more rows come; what was spooled can be read."""
        if self._writer is not None:
            self._spool()
            with _disk_errors():
                self._writer.close()
            self._writer = None

    def release(self) -> None:
        self._tables.clear()
        if self._writer is not None:
            with contextlib.suppress(Exception):  # closing a file that is about to be removed
                self._writer.close()
            self._writer = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _spool(self) -> None:
        with _disk_errors():
            if self._folder is None:
                self._folder = self._staging.new_folder()
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._folder / _FILE, self.schema, **_READ_ONCE)
            for table in _in_pieces(self._tables):
                self._writer.write_table(table)
        self._tables.clear()
        self._buffered_rows = self._buffered_bytes = 0


def _in_pieces(tables: list[pa.Table]) -> list[pa.Table]:
    """Uploads come 2,048 rows at a time; as row groups of that size they would be slow to write and to read."""
    return [pa.concat_tables(tables).combine_chunks()] if tables else []


@contextlib.contextmanager
def _disk_errors() -> Any:
    try:
        yield
    except OSError as error:
        # Arrow puts the path into the text, so the system's own words for the number are taken.
        reason = "disk error" if error.errno is None else os.strerror(error.errno)
        raise UnavailableError(f"the upload cannot be staged: {reason}") from error
