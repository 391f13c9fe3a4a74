"""A scan through Spark, in the declared shape; it can be closed from another thread, whatever the JVM does."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions

from gateway.catalog.capabilities import Chunk, ScanReport
from gateway.errors import CancelledError, GatewayError, InternalError, UnavailableError
from gateway.lake.pushdown.spark import SparkDialect
from gateway.lake.pushdown.translation import Conditions, translate
from gateway.lake.reading.projection import Projection, Widener, pieces_of, rows_per_batch
from gateway.lake.reading.slices import slice_predicate
from gateway.lake.reading.spark_batches import SparkBatches, begun_apart, in_background, in_small_partitions
from gateway.lake.reading.widths import Widths
from gateway.lake.spark.engine import Profile, Spark, SparkState
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.settings import ScanSettings
from gateway.wire.tickets import Slice


class SparkStream:
    """A scan by Spark. `close` cancels its jobs, whichever thread calls it."""

    def __init__(
        self,
        spark: Spark,
        snapshot: LogSnapshot,
        projection: Projection,
        conditions: Conditions,
        part: Slice | None,
        settings: ScanSettings,
        report: ScanReport,
        widths: Widths,
        files: Sequence[int],
    ) -> None:
        self.report = report
        self._spark = spark
        self._snapshot = snapshot
        self._projection = projection
        self._conditions = conditions
        self._slice = part
        self._settings = settings
        self._widths = widths
        self._files = files
        self._lock = threading.Lock()
        self._group = f"scan-{uuid.uuid4()}"
        self._context: Any = None
        self._batches: SparkBatches | None = None
        self._closed = False
        if spark.state is not SparkState.READY:
            raise UnavailableError(f"table '{snapshot.table}' needs Spark ({report.route_reason}): {spark.reason}")

    def __iter__(self) -> Iterator[Chunk]:
        widener = Widener(self._projection)
        seen, total = 0, self._snapshot.size.rows or 0
        with self._explained():
            for batch in self._read():
                seen += batch.num_rows
                progress = min(1.0, seen / total) if total else 0.0
                for part in pieces_of(widener.widen(batch), self._settings.batch_bytes):
                    yield Chunk(part, progress)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            context, self._context = self._context, None
            batches, self._batches = self._batches, None
        if batches is not None:
            batches.cut()
        if context is not None:
            # Not here: a JVM that does not answer would hold up whoever closes.
            in_background(lambda: context.cancelJobGroup(self._group))

    def _read(self) -> Iterator[pa.RecordBatch]:
        batches = begun_apart(self._begin, lambda: self._closed)
        try:
            with self._lock:
                self._refuse_closed()
                self._batches = batches
            for batch in batches:
                self._refuse_closed()
                yield batch
            self._context = None  # all its jobs are done
        finally:
            batches.release()

    def _begin(self) -> SparkBatches:
        reads, shape = self._projection.reads, self._projection.shape
        row_bytes = self._widths.row_bytes(self._snapshot, reads, self._files, expands_texts=True)
        rows = rows_per_batch((field.type for field in shape), row_bytes, self._settings)
        with self._spark.session(Profile.SCAN) as session:
            with self._lock:
                self._refuse_closed()
                self._context = session.sparkContext
            # What serves the batches in the JVM inherits the job group of this thread, which ends here.
            session.sparkContext.setJobGroup(self._group, "deltaport scan", interruptOnCancel=True)
            frame = in_small_partitions(self._frame(session), self._snapshot, self._files, reads, row_bytes)
            return SparkBatches(frame, rows)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CancelledError("the scan was cancelled")

    def _frame(self, session: Any) -> Any:
        snapshot = self._snapshot
        frame = session.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.uri)
        translation = translate(SparkDialect(), self._conditions)
        self.report.filters_pushed, self.report.filters_dropped = translation.pushed, translation.dropped
        if translation.predicate is not None:
            frame = frame.where(translation.predicate)
        if (part := slice_predicate(SparkDialect(), self._slice, snapshot.schema)) is not None:
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
