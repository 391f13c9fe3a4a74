"""The tables the measurements read, made once and kept between runs.

One large table in many files, its rows in the order of the key, so that a key
lives in one file; and a warehouse of many small tables. Each is made under
another name and moved into place when it is whole: a run that was cut short
leaves nothing that a later run would trust.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from gateway.lake.sql.quoting import table_at

FORMAT = 1  # raise it when the tables change: older ones are then left alone and new ones made
FILES = 80
LOADED_FILES = 3
PLAIN, VECTORS = "plain", "vectors"
MANY_TABLES = 1_000
MANY_SCHEMAS = 10
SCHEMA, TABLE = "bench", "events"
COLUMNS = ("id", "customer", "amount", "price", "status", "note", "at")
CUSTOMERS = 100_000


@dataclass(frozen=True)
class Data:
    """Where the tables are; `rows` is the size of the large one."""

    rows: int
    large: Path
    many: Path
    loaded: Path

    @property
    def table(self) -> Path:
        return self.large / SCHEMA / TABLE

    def files(self) -> list[Path]:
        """The large table's data files. It has one version, so every file there is one of them."""
        return sorted(self.table.rglob("*.parquet"))


def locate(folder: Path, rows: int) -> Data:
    names = (f"large-{FORMAT}-{rows}", f"many-{FORMAT}-{MANY_TABLES}", f"loaded-{FORMAT}-{rows}")
    return Data(rows, *(folder / name for name in names))


def make_large(data: Data, session: Any) -> None:
    """The large table, by Spark and with the properties of the gateway's own tables."""
    _make(data.large, lambda folder: _write_large(session, str(folder / SCHEMA / TABLE), data.rows))


def make_loaded(data: Data, session: Any) -> None:
    """The same rows as one bulk load leaves them, in few files; and again with a deletion vector on each file."""

    def write(folder: Path) -> None:
        for name in (PLAIN, VECTORS):
            _write_large(session, str(folder / SCHEMA / name), data.rows, LOADED_FILES)
        step = data.rows // LOADED_FILES
        deleted = ", ".join(str((place * step + step // 2) // 2 * 2) for place in range(LOADED_FILES))  # even ones
        session.sql(f"DELETE FROM {table_at(str(folder / SCHEMA / VECTORS))} WHERE id IN ({deleted})")

    _make(data.loaded, write)


def make_many(data: Data) -> None:
    _make(data.many, _write_many)


def _make(target: Path, write: Callable[[Path], None]) -> None:
    if target.exists():
        return
    staging = target.with_name(f".{target.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write(staging)
    staging.rename(target)


def _write_large(session: Any, path: str, rows: int, files: int = FILES) -> None:
    session.sql(
        f"""
        CREATE TABLE {table_at(path)} (
            _rowid BIGINT, id BIGINT NOT NULL, customer BIGINT, amount DECIMAL(12, 2), price DOUBLE,
            status STRING, note STRING, at TIMESTAMP)
        USING delta
        TBLPROPERTIES (
            'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name',
            'delta.checkpointInterval' = '100')"""
    )
    frame = session.sql(
        f"""
        SELECT id AS _rowid, id, pmod(xxhash64(id), {CUSTOMERS}) AS customer,
               cast(cast(pmod(xxhash64(id, 1), 5000000) AS DECIMAL(20, 2)) / 100 AS DECIMAL(12, 2)) AS amount,
               pmod(xxhash64(id, 2), 1000000007) / 977.0D AS price,
               element_at(array('new', 'paid', 'shipped', 'returned'), cast(pmod(id * 31, 4) AS INT) + 1) AS status,
               CASE WHEN pmod(id, 10) < 7 THEN concat('note ', pmod(xxhash64(id, 3), 100000)) END AS note,
               timestamp_micros(1672531200000000 + id * 6310007) AS at
        FROM range(0, {rows}, 1, {files})"""
    )
    writer = frame.write.format("delta").mode("append")
    writer.option("txnAppId", "deltaport.rowid").option("txnVersion", str(rows - 1)).save(path)


def _write_many(folder: Path) -> None:
    for number in range(MANY_TABLES):
        rows = pa.table(
            {
                "_rowid": pa.array(range(10), pa.int64()),
                "id": pa.array(range(10), pa.int64()),
                "name": [f"name {row}" for row in range(10)],
                f"value_{number % 7}": pa.array([row / 2 for row in range(10)], pa.float64()),
            }
        )
        schema = f"schema_{number % MANY_SCHEMAS:02}"
        write_deltalake(folder / schema / f"table_{number:04}", rows)
