"""What the gateway reads for itself, of one version of a table: look-ups of rows, keys, the highest row id.

The same rule as for scans decides by which engine: the direct reader where it
takes the table and gets the values right, else Spark. Either way rows come
batch by batch, so that memory follows what the reader keeps and not what the
engine has to look through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import functions

from gateway.errors import GatewayError, InternalError
from gateway.lake.pushdown.datafusion import DataFusionDialect
from gateway.lake.pushdown.spark import MOST_ITEMS, SparkDialect
from gateway.lake.pushdown.translation import say
from gateway.lake.reading.lookups import Selection
from gateway.lake.reading.projection import before_decoding, rows_per_batch
from gateway.lake.reading.pruning import files_for
from gateway.lake.reading.routes import Routes
from gateway.lake.reading.row_groups import RowGroups
from gateway.lake.reading.spark_batches import SparkBatches, in_small_partitions
from gateway.lake.reading.widths import Widths
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.sql.quoting import double_quoted, quoted
from gateway.lake.tables.snapshots import TABLE, LogSnapshot
from gateway.settings import ScanSettings


class OwnReads:
    """Thread-safe. These reads take no scan slot."""

    def __init__(
        self, settings: ScanSettings, spark: Spark, routes: Routes, widths: Widths, row_groups: RowGroups
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._routes = routes
        self._widths = widths
        self._row_groups = row_groups

    def read(self, snapshot: LogSnapshot, selection: Selection) -> Iterator[pa.RecordBatch]:
        """Batches of exactly the stored types."""
        # Row ids are in the files whose statistics say so, and other files may hold what they like.
        by_ids = selection.row_ids is not None
        files: Sequence[int] = range(snapshot.files.num_rows)
        if by_ids:
            files = files_for(snapshot, selection.condition)
        if not files:
            return
        is_direct = self._routes.is_direct_right(snapshot, selection.columns, files)
        row_bytes = self._widths.row_bytes(snapshot, selection.columns, files, expands_texts=not is_direct)
        rows = rows_per_batch((column.type for column in selection.columns), row_bytes, self._settings)
        if is_direct:
            yield from self._directly(snapshot, selection, rows, files)
        else:
            yield from self._through_spark(snapshot, selection, rows, files, row_bytes)

    def _directly(
        self, snapshot: LogSnapshot, selection: Selection, rows: int, files: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        # By ids the condition names one column, which is among those read.
        conditions = [selection.condition] if selection.row_ids is not None else []
        with snapshot.explained_errors():
            plan = self._row_groups.plan(snapshot, conditions, selection.columns, files)
            if plan is not None:
                yield from self._row_groups.read(snapshot, plan, rows)
                return
        names = ", ".join(double_quoted(column.name) for column in selection.columns)
        condition = say(DataFusionDialect(), selection.condition)
        where = "" if condition is None else f" WHERE {condition}"
        with snapshot.explained_errors():
            sql = f"SELECT {names} FROM {TABLE}{where}"  # noqa: S608 - quoted names, rendered literals
            for batch in snapshot.query(sql, rows):
                for part in before_decoding(batch, self._settings.batch_bytes):
                    yield part.cast(selection.stored)

    def _through_spark(
        self, snapshot: LogSnapshot, selection: Selection, rows: int, files: Sequence[int], row_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        with _explained(snapshot), self._spark.session(Profile.SCAN) as session:
            frame = _frame(session, snapshot, selection)
            batches = SparkBatches(in_small_partitions(frame, snapshot, files, selection.columns, row_bytes), rows)
            try:
                for batch in batches:
                    yield batch.cast(selection.stored)
            finally:
                batches.release()


def _frame(session: Any, snapshot: LogSnapshot, selection: Selection) -> Any:
    frame = session.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.uri)
    snapshot.check_in_place()  # Spark finds a table by its place, where another one may be by now
    if (condition := say(SparkDialect(), selection.condition)) is not None:
        frame = frame.where(condition)
    frame = frame.select(*(functions.col(quoted(column.name)) for column in selection.columns))
    if selection.row_ids is not None and len(selection.row_ids) > MOST_ITEMS:
        name = selection.columns[0].name
        wanted = session.createDataFrame(pa.table({name: selection.row_ids}))
        frame = frame.join(functions.broadcast(wanted), name, "left_semi")
    return frame


@contextlib.contextmanager
def _explained(snapshot: LogSnapshot) -> Iterator[None]:
    try:
        yield
    except (GatewayError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:  # py4j, sockets and Spark each raise their own
        snapshot.check_in_place()
        raise InternalError(f"table '{snapshot.table}': Spark cannot read version {snapshot.version}") from error
