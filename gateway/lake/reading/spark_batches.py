"""The rows of a Spark frame as Arrow batches, with bounded memory.

Spark's `toArrow` collects a whole result. Here one partition at a time becomes
Arrow batches in the JVM and comes over a local socket when it is asked for, so
a slow reader holds up the job instead of filling memory. The JVM holds such a
partition whole, so partitions are cut anew where their rows would fill it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import pyarrow as pa
from pyspark.serializers import FramedSerializer, read_int, write_int
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _create_local_socket

from gateway.errors import CancelledError
from gateway.lake.reading.widths import boundless
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.schemas import Column
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.wire.bodies import value_bytes

# Of a partition's decoded rows the JVM holds several copies, and prepares the next partition meanwhile.
_MOST_PARTITION_BYTES = 96 << 20
_NEW_PARTITION_BYTES = 32 << 20
_MOST_PARTITIONS = 20_000
_LOOK_SECONDS = 0.2
# How Spark puts small files together: the profile's `maxPartitionBytes`, and its own `openCostInBytes`.
_READ_TOGETHER = 32 << 20
_COST_OF_A_FILE = 4 << 20
_UNKNOWN_ROWS = 10_000_000  # in a file of which the log does not say how many it has


class SparkBatches:
    """For one reader. `cut` ends the reading from any thread and waits for nobody, not even for the JVM."""

    def __init__(self, frame: Any, batch_rows: int) -> None:
        self._schema = to_arrow_schema(frame.schema, timezone="UTC")
        rdd = frame._jdf.toArrowBatchRdd(batch_rows, "UTC", True, False)
        address = frame.sparkSession.sparkContext._jvm.PythonRDD.toLocalIteratorAndServe(rdd, True)
        port, secret, self._server = address
        self._file, self._socket = _create_local_socket((port, secret))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for message in self._messages():
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._schema)
            if batch.num_rows:
                yield batch

    def cut(self) -> None:
        with contextlib.suppress(OSError):  # it is already closed
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """For the reader, when it is done: ends the connection, and with it the JVM's sending."""
        self.cut()
        with contextlib.suppress(OSError):  # there may be a request left that can no longer be sent
            self._file.close()
        self._socket.close()

    def _messages(self) -> Iterator[bytes]:
        """As pyspark's own iterator asks for them, which would read a partition to its end when it is left early."""

        class Raw(FramedSerializer):  # type: ignore[misc]
            def loads(self, message: bytes) -> bytes:
                return message

        while True:
            write_int(1, self._file)
            self._file.flush()
            match read_int(self._file):
                case 1:
                    yield from Raw().load_stream(self._file)
                case 0:
                    return
                case _:
                    self._server.getResult()  # raises what went wrong in the JVM
                    raise ConnectionError("the JVM ended the stream")


def in_small_partitions(
    frame: Any, snapshot: LogSnapshot, files: Sequence[int], columns: Sequence[Column], boundless_bytes: int
) -> Any:
    """The same rows, in partitions of which the JVM can hold one.

    `boundless_bytes` is what the columns without a fixed width may take in a row. That may be far
    too much, so Spark adds up the truth before any row is moved.
    """
    fixed = sum(value_bytes(column.type) for column in columns)
    if (fixed + boundless_bytes) * _partition_rows(snapshot, files) <= _MOST_PARTITION_BYTES:
        return frame
    widths = [_bytes_of(functions.col(quoted(column.name)), column.type) for column in boundless(columns)]
    width = sum(widths, functions.lit(fixed).cast("long"))
    sums = frame.groupBy(functions.spark_partition_id()).agg(functions.sum(width).alias("bytes"))
    widest, total = sums.agg(functions.max("bytes"), functions.sum("bytes")).collect()[0]
    if widest is None or widest <= _MOST_PARTITION_BYTES:
        return frame
    return frame.repartition(min(_MOST_PARTITIONS, -(-total // _NEW_PARTITION_BYTES)))


def _partition_rows(snapshot: LogSnapshot, files: Sequence[int]) -> float:
    """The most rows that Spark may read as one partition: a whole file, or several small ones."""
    places = pa.array(files, pa.int64())
    rows, sizes = (snapshot.files.column(name).take(places).to_pylist() for name in ("num_records", "size_bytes"))
    return max(
        (
            (_UNKNOWN_ROWS if count is None else count) * max(1.0, _READ_TOGETHER / (size + _COST_OF_A_FILE))
            for count, size in zip(rows, sizes, strict=True)
        ),
        default=0,
    )


def _bytes_of(value: Any, kind: pa.DataType) -> Any:
    """What a value takes, as a Spark column that is never null."""
    types = pa.types
    if types.is_map(kind):
        keys = _bytes_of(functions.map_keys(value), pa.list_(kind.key_type))
        return keys + _bytes_of(functions.map_values(value), pa.list_(kind.item_type))
    if types.is_struct(kind):
        parts = [_bytes_of(value.getField(field.name), field.type) for field in kind]
        return sum(parts, functions.lit(0).cast("long"))
    if kind.num_fields:
        inner = kind.field(0).type
        added: Callable[[Any, Any], Any] = lambda total, item: total + _bytes_of(item, inner)  # noqa: E731
        whole = functions.aggregate(value, functions.lit(0).cast("long"), added)
        return functions.coalesce(whole, functions.lit(0).cast("long"))
    if types.is_string(kind) or types.is_binary(kind):
        return functions.coalesce(functions.octet_length(value).cast("long"), functions.lit(0).cast("long"))
    return functions.lit(8).cast("long")


def begun_apart(begin: Callable[[], SparkBatches], is_given_up: Callable[[], bool]) -> SparkBatches:
    """Begin in a thread of its own, and wait for it only while somebody wants the batches.

    A JVM that does not answer holds up that thread alone, and the job group of a scan, by which it
    is cancelled, does not stay with a thread that will write next.
    """
    begun: Future[SparkBatches] = Future()

    def run() -> None:
        try:
            begun.set_result(begin())
        except BaseException as error:
            begun.set_exception(error)

    threading.Thread(target=run, name="spark-scan", daemon=True).start()
    while not wait([begun], timeout=_LOOK_SECONDS).done:
        if is_given_up():
            begun.add_done_callback(_release)
            raise CancelledError("the scan was cancelled")
    return begun.result()


def _release(begun: Future[SparkBatches]) -> None:
    if begun.exception() is None:
        begun.result().release()


def in_background(call: Callable[[], None]) -> None:
    """For calls into a JVM that may not answer, whose outcome nobody waits for."""

    def run() -> None:
        with contextlib.suppress(Exception):  # a JVM that is gone has nothing to do
            call()

    threading.Thread(target=run, name="spark-call", daemon=True).start()
