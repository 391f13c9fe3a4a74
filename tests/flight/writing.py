"""What tests of writes over Delta share: quick tables, both dialects, and a look at what was committed."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from delta.tables import DeltaMergeBuilder
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyarrow import flight

from gateway.lake.spark.engine import Spark
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.conftest import CATALOG, settings_for
from tests.nasty import Disguise
from tests.refusals import refusal_of

Rows = pa.RecordBatch | Sequence[pa.RecordBatch]
KINDS = {"k": pa.int64(), "v": pa.string(), "rowid": pa.int64()}
NUMBERS = pa.schema([("_rowid", pa.int64()), pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def numbers(lake: Lake, table: str = "n", rows: int = 4, **properties: str) -> str:
    """`Lake.numbers` as delta-rs makes it, in milliseconds."""
    keys = range(rows)
    data = pa.table([list(keys), list(keys), [f"v{key}" for key in keys]], schema=NUMBERS)
    # delta-rs refuses properties that it does not know, and keys are such.
    write_deltalake(str(lake.path(table)), data)
    for name, value in properties.items():
        lake.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{name.replace('__', '.')}' = '{value}')", table)
    return table


def batch(**columns: list[object]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, KINDS[name]) for name, values in columns.items()], names=list(columns))


def rows_of(client: AirportClient, lake: Lake, table: str = "n") -> list[tuple[object, ...]]:
    """(k, v, rowid) of every row, by key."""
    scanned = client.scan(lake.schema, table, ["k", "v", "rowid"]).rows()
    return sorted((row["k"], row["v"], row["rowid"]) for row in scanned)


def version_of(lake: Lake, table: str = "n") -> int:
    return DeltaTable(str(lake.path(table))).version()


def staged_files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.parquet")]


def refused(work: Callable[[], object]) -> str:
    """The text of a refused call; what Arrow adds to it is checked, and that nothing leaks."""
    return refusal_of(work).text


def sql_error(work: Callable[[], object]) -> tuple[str, str]:
    """The exception that SQL shows for a refused exchange, and its text."""
    refusal = refusal_of(work)
    assert refusal.sql_class is not None
    return refusal.sql_class, refusal.text


@contextmanager
def running_gateway(warehouse: Path, spark: Spark, staging: Path, memory_rows: int) -> Iterator[Gateway]:
    """A gateway that spools whatever has more rows than that."""
    running = Gateway(settings_for(warehouse, staging={"folder": staging, "memory_rows": memory_rows}), spark)
    running.start()
    running.service.lake.catalogs.get(CATALOG).refresh()  # the first listing may have begun before a test's table
    yield running
    running.stop()


class JsonClient:
    """The JSON dialect on one table; a disguise (tests/nasty) changes what is sent, not what it means."""

    def __init__(
        self,
        location: str,
        schema: str,
        table: str = "n",
        disguise: Disguise | None = None,
        transaction: str | None = None,
    ) -> None:
        self._client = flight.connect(location)
        self._disguise = disguise
        headers = [] if transaction is None else [(b"x-transaction-id", transaction.encode())]
        self._options = flight.FlightCallOptions(headers=headers)
        self._target = {"catalog_name": "lake", "schema_name": schema, "table_name": table}

    def close(self) -> None:
        self._client.close()

    def insert(self, rows: Rows, **fields: Any) -> dict[str, Any]:
        return self._put({"operation": "insert", **fields}, rows)

    def update(self, row_ids: list[int], rows: Rows, **fields: Any) -> dict[str, Any]:
        return self._put({"operation": "update", "row_ids": row_ids, **fields}, rows)

    def delete(self, row_ids: list[int], **fields: Any) -> dict[str, Any]:
        body = json.dumps({**self._target, "row_ids": row_ids, **fields}).encode()
        (result,) = self._client.do_action(flight.Action("delete", body), self._options)
        reply = json.loads(result.body.to_pybytes())
        if "returning_data" in reply:
            reply["returning_data"] = base64.b64decode(reply["returning_data"])
        return _opened(reply)

    def _put(self, command: dict[str, Any], rows: Rows) -> dict[str, Any]:
        batches: Iterable[pa.RecordBatch] = [rows] if isinstance(rows, pa.RecordBatch) else rows
        schema = next(iter(batches)).schema
        if self._disguise is not None:
            schema, batches = self._disguise(schema, batches)
        descriptor = flight.FlightDescriptor.for_command(json.dumps({**self._target, **command}).encode())
        upload, replies = self._client.do_put(descriptor, schema, self._options)
        with upload:
            for each in batches:
                upload.write_batch(each)
            upload.done_writing()
            reply = replies.read()
        return _opened(msgpack.unpackb(reply.to_pybytes()))


def _opened(reply: dict[str, Any]) -> dict[str, Any]:
    if "returning_data" in reply:
        reply["returning_data"] = pa.ipc.open_stream(reply["returning_data"]).read_all().to_pylist()
    return reply


@contextmanager
def before_the_next_merge(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: float = 1
) -> Iterator[list[str]]:
    """Something happens at the last moment before a MERGE chooses its snapshot, so many times; counts the MERGEs."""
    original = DeltaMergeBuilder.execute
    merges: list[str] = []

    def execute(builder: DeltaMergeBuilder) -> Any:
        merges.append("merge")
        if len(merges) <= times:
            with ThreadPoolExecutor(1) as other:  # Spark keeps the session of a thread
                other.submit(act).result()
        return original(builder)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaMergeBuilder, "execute", execute)
        yield merges


@contextmanager
def during_the_next_merge(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: float = 1
) -> Iterator[list[str]]:
    """Something happens while a MERGE runs, so many times: after its snapshot, before its commit; counts the MERGEs.

    The fence has looked by then and found nothing, so what was committed meanwhile only Delta itself can see.
    """
    original = SparkTable.merge
    merges: list[str] = []
    halts: list[_Halt] = []

    def merge(table: Any, source: Any, condition: Any) -> Any:
        merges.append("merge")
        if len(merges) <= times:
            halts.append(_Halt(Path(folder) / str(len(merges)), act))
            source = halts[-1].added_to(source).alias("s")
        return original(table, source, condition)

    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        patch.setattr(SparkTable, "merge", merge)
        try:
            yield merges
        finally:
            for halt in halts:
                halt.end()
    for number, halt in enumerate(halts, 1):
        assert halt.was_reached, f"MERGE {number} read none of its rows"


class _Halt:
    """A source of no rows that keeps whoever reads it waiting until something has been done.

    Opening a FIFO waits for the other end: Python's until a task of the MERGE opens the file, and the task's until
    Python has come. Whatever reads the source again finds an empty file in its place.
    """

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        self._path = path
        self._act = act
        self._is_over = False
        self.was_reached = False
        os.mkfifo(path)
        self._thread = ThreadPoolExecutor(1)  # Spark keeps the session of a thread
        self._done: Future[None] = self._thread.submit(self._wait)

    def _wait(self) -> None:
        with self._path.open("w"):
            if self._is_over:
                return
            self.was_reached = True
            empty = self._path.with_suffix(".empty")
            empty.touch()
            empty.replace(self._path)
            self._act()

    def added_to(self, source: Any) -> Any:
        """The same rows, read from the file as well."""
        from pyspark.sql import DataFrame, functions

        session = source.sparkSession
        # Spark leaves files out that are empty, as a FIFO seems to be, except where it wants them whole.
        texts = session.sparkContext._jsc.wholeTextFiles(self._path.as_uri(), 1).values().rdd()
        encoder = session._jvm.org.apache.spark.sql.Encoders.STRING()
        lines = DataFrame(session._jsparkSession.createDataset(texts, encoder).toDF(), session)
        columns = [functions.lit(None).cast(field.dataType).alias(field.name) for field in source.schema.fields]
        return source.union(lines.where("value <> ''").select(*columns))

    def end(self) -> None:
        """Stop waiting for a reader that never came; raises what went wrong."""
        self._is_over = True
        if not self._done.done():
            os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
        self._thread.shutdown()
        self._done.result()
