"""Reading through Spark, as a stream with bounded memory.

Spark's `toArrow` collects a whole result. Here one partition at a time becomes
Arrow batches in the JVM and comes over a local socket when it is asked for, so
a slow client holds up the job instead of filling memory.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from gateway.catalog.capabilities import Chunk, ScanReport, ScanRequest
from gateway.errors import CancelledError, GatewayError, InternalError, UnavailableError
from gateway.lake.pushdown.spark import Spark as SparkWords
from gateway.lake.pushdown.translation import Bindings, to_spark
from gateway.lake.reading.projection import Projection, Widener, pieces_of, rows_per_batch
from gateway.lake.reading.slices import slice_predicate
from gateway.lake.spark.engine import Profile, Spark, State, quoted
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.settings import ScanSettings


class SparkStream:
    """A scan by Spark. `close` cancels its jobs, whichever thread calls it."""

    def __init__(
        self,
        spark: Spark,
        snapshot: LogSnapshot,
        projection: Projection,
        request: ScanRequest,
        bindings: Bindings,
        settings: ScanSettings,
        report: ScanReport,
    ) -> None:
        self.report = report
        self._spark = spark
        self._snapshot = snapshot
        self._projection = projection
        self._request = request
        self._bindings = bindings
        self._settings = settings
        self._lock = threading.Lock()
        self._group = f"scan-{uuid.uuid4()}"
        self._context: Any = None
        self._closed = False
        if spark.state is not State.READY:
            raise UnavailableError(f"table '{snapshot.table}' needs Spark ({report.route_reason}): {spark.reason}")

    def __iter__(self) -> Iterator[Chunk]:
        widener = Widener(self._projection)
        seen, total = 0, self._snapshot.size.rows or 0
        with self._explained(), self._spark.session(Profile.SCAN) as session:
            for batch in self._batches(session):
                seen += batch.num_rows
                progress = min(1.0, seen / total) if total else 0.0
                for part in pieces_of(widener.widen(batch), self._settings.batch_bytes):
                    yield Chunk(part, progress)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            context, self._context = self._context, None
        if context is not None:
            with contextlib.suppress(Exception):  # a JVM that is gone has nothing to cancel
                context.cancelJobGroup(self._group)

    def _batches(self, session: Any) -> Iterator[pa.RecordBatch]:
        frame = self._frame(session)
        schema = _arrow_schema(frame)
        context = session.sparkContext
        with self._lock:
            if self._closed:
                raise CancelledError("the scan was cancelled")
            self._context = context
        # The serving thread in the JVM inherits the job group of the thread that starts it.
        context.setJobGroup(self._group, "deltaport scan", interruptOnCancel=True)
        rows = rows_per_batch(self._projection, self._snapshot, self._settings)
        rdd = frame._jdf.toArrowBatchRdd(rows, "UTC", True, False)
        served = context._jvm.PythonRDD.toLocalIteratorAndServe(rdd, True)
        for message in _messages(served):
            if self._closed:
                raise CancelledError("the scan was cancelled")
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
            if batch.num_rows:
                yield batch

    def _frame(self, session: Any) -> Any:
        from pyspark.sql import functions

        snapshot = self._snapshot
        frame = session.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.uri)
        translation = to_spark(self._request.conjuncts, self._bindings)
        self.report.filters_pushed, self.report.filters_dropped = translation.pushed, translation.dropped
        if translation.predicate is not None:
            frame = frame.where(translation.predicate)
        if (part := slice_predicate(SparkWords(), self._request.slice, snapshot.schema)) is not None:
            frame = frame.where(part)
        snapshot.check_in_place()  # Spark finds a table by its place, where another one may be by now
        columns = [functions.col(quoted(column.name)) for column in self._projection.reads]
        return frame.select(*columns) if columns else frame.select(functions.lit(1).alias("one"))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (GatewayError, GeneratorExit, KeyboardInterrupt):
            raise
        except Exception as error:  # py4j, sockets and Spark each raise their own
            if self._closed:
                raise CancelledError("the scan was cancelled") from error
            self._snapshot.check_in_place()
            raise InternalError(
                f"table '{self._snapshot.table}': Spark cannot read version {self._snapshot.version}"
            ) from error


def _arrow_schema(frame: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


def _messages(served: Any) -> Iterator[bytes]:
    """Arrow messages off the socket; leaving early tells the JVM to stop."""
    from pyspark.serializers import FramedSerializer
    from pyspark.util import _local_iterator_from_socket

    class Raw(FramedSerializer):  # type: ignore[misc]
        def loads(self, message: bytes) -> bytes:
            return message

    yield from _local_iterator_from_socket(served, Raw())
