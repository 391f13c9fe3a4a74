"""Reads of one table, past catalog and wire: what the `lake` room itself promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable as DeltaLog

from gateway.catalog.capabilities import ScanReport, ScanRequest
from gateway.catalog.names import TableName
from gateway.lake.delta_table import DeltaSnapshot, DeltaTable, TableTools
from gateway.lake.reading.reader import Readers
from gateway.lake.spark.engine import Spark
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.staging import StagingFolder
from gateway.settings import ScanSettings, SparkSettings, StagingSettings, WriteSettings

ROUTES = ("direct", "spark")
# For tables that the direct reader serves: nothing here starts.
NO_SPARK = Spark(SparkSettings(enabled=False))


def open_table(path: Path, spark: Spark = NO_SPARK, rowid_column: str = "_rowid", **scan: Any) -> DeltaTable:
    """The table as a gateway with these scan settings serves it."""
    name = TableName("lake", "s", path.name)
    staging = StagingFolder(StagingSettings(folder=str(path.parent / ".staging")))
    readers = Readers(ScanSettings(**scan), spark)
    tools = TableTools(readers, spark, staging, WriteSettings(), rowid_column, statistics=True)
    return DeltaTable(name, Folder.open(str(path)), tools)


@dataclass(frozen=True)
class Result:
    table: pa.Table
    report: ScanReport
    batches: list[pa.RecordBatch]

    def rows(self) -> list[dict[str, Any]]:
        """The rows, in an order that does not depend on the engine."""
        return sorted(self.table.to_pylist(), key=repr)

    def column(self, name: str) -> list[Any]:
        return sorted(self.table.column(name).to_pylist(), key=lambda value: (value is None, value))


def read(
    snapshot: DeltaSnapshot, columns: Iterable[str] | None = None, shape: pa.Schema | None = None, **more: Any
) -> Result:
    """Read to the end; checks that every batch has exactly the told schema and is sound inside."""
    told = snapshot.shape if shape is None else shape
    wanted = frozenset(told.names if columns is None else columns)
    stream = snapshot.open(ScanRequest(told, wanted, **more))
    try:
        batches = [chunk.batch for chunk in stream]
    finally:
        stream.close()
    for batch in batches:
        assert batch.schema.equals(told, check_metadata=True)
        batch.validate(full=True)
    return Result(pa.Table.from_batches(batches, told), stream.report, batches)


def read_by(route: str, path: Path, spark: Spark, columns: Iterable[str] | None = None, **scan: Any) -> Result:
    return read(open_table(path, spark, engine=route, **scan).current(), columns)


def wire_bytes(batch: pa.RecordBatch) -> int:
    """What a batch takes on the wire."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return int(sink.size())


def write_long_log(path: Path, files: int) -> None:
    """The log alone of a table of many files, `_rowid` and `k`, written by hand and checkpointed: 100 rows a file."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("_rowid", "k")]
    metadata = {
        "id": "00000000-0000-0000-0000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    actions += [added(number) for number in range(files)]
    log_file(path, 0).write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    DeltaLog(str(path)).create_checkpoint()


def added(number: int) -> dict[str, Any]:
    """The log's entry of one more file of 100 rows."""
    low, high = number * 100, number * 100 + 99
    stats = {
        "numRecords": 100,
        "minValues": {"_rowid": low, "k": low},
        "maxValues": {"_rowid": high, "k": high},
        "nullCount": {"_rowid": 0, "k": 0},
    }
    path = f"part-{number:05d}.parquet"
    more = {"partitionValues": {}, "size": 5000, "modificationTime": 0, "dataChange": True}
    return {"add": {"path": path, "stats": json.dumps(stats), **more}}


def log_file(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def without_checksums(path: Path) -> None:
    """Version checksums repeat what commits say; readers may take them instead of the commits."""
    for checksum in {*(path / "_delta_log").glob("*.crc"), *(path / "_delta_log").glob(".*.crc")}:
        checksum.unlink()


def edit_commit(path: Path, version: int, change: Callable[[str], str]) -> None:
    without_checksums(path)
    commit = log_file(path, version)
    commit.write_text(change(commit.read_text()))
