"""The three that are compared: the gateway over Flight, deltalake in this process, and Spark.

Each answers the same query and counts the rows it was given; a wrong count
ends the run. What is timed: from asking until the last batch has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.sql.quoting import table_at
from gateway.settings import SparkSettings
from tests.airport import AirportClient, Flight, Scan
from tests.airport.steps import Binding
from tests.airport_filters import Expression
from tests.bench.data import COLUMNS, SCHEMA, TABLE
from tests.bench.timing import timed

_SPARK_SECONDS = 240


@dataclass(frozen=True)
class Query:
    """One query in the words of all three. `filters` makes the client's filter out of the table it was told."""

    columns: Sequence[str] = COLUMNS
    where: str = ""
    filters: Callable[[Flight], list[Expression]] = lambda _table: []

    def sql(self, source: str) -> str:
        columns = ("_rowid" if column == "rowid" else column for column in self.columns)
        return f"SELECT {', '.join(columns)} FROM {source}{f' WHERE {self.where}' if self.where else ''}"


EVERYTHING = Query()
TWO_COLUMNS = Query(columns=("id", "amount"))
COUNT = Query(columns=("rowid",))  # what the client asks for, whatever it counts


def one_percent(customers: int) -> Query:
    """Customers are scattered over all files, so statistics rule none out."""
    limit = customers // 100
    return Query(where=f"customer < {limit}", filters=lambda table: [table.ref("customer").lt(limit)])


def by_key(key: int) -> Query:
    return Query(where=f"id = {key}", filters=lambda table: [table.ref("id").eq(key)])


class OverFlight:
    """A client of the gateway: per query the `endpoints` action and a DoGet, as DuckDB's extension sends them.

    Batches are taken from pyarrow's reader as they come, without the checks of
    the test client. The transaction is made before the clock starts, and column
    statistics, which DuckDB asks for while planning, are not asked for.
    """

    def __init__(self, client: AirportClient, table: str = TABLE) -> None:
        self.client = client
        self.table = client.table(SCHEMA, table)

    def seconds(self, query: Query, rows: int) -> float:
        binding = Binding(self.client.identity, self.client.transaction_id())
        return timed(lambda: _check(self._rows(binding, query), rows))

    def statement_seconds(self, query: Query, rows: int) -> float:
        """The whole statement as DuckDB sends it: transaction, catalog version, statistics, endpoints, DoGet."""

        def run() -> None:
            scan = self.client.open_scan(SCHEMA, TABLE, query.columns, query.filters(self.table))
            _check(sum(batch.num_rows for batch in batches_of(scan)), rows)

        return timed(run)

    def batches(self, query: Query) -> Iterator[pa.RecordBatch]:
        return batches_of(self._plan(Binding(self.client.identity, self.client.transaction_id()), query))

    def _plan(self, binding: Binding, query: Query) -> Scan:
        return self.client.plan(binding, self.table, query.columns, query.filters(self.table), statistics=False)

    def _rows(self, binding: Binding, query: Query) -> int:
        return sum(batch.num_rows for batch in batches_of(self._plan(binding, query)))


def batches_of(scan: Scan) -> Iterator[pa.RecordBatch]:
    for endpoint in scan.endpoints:
        with scan.connection.get(endpoint.ticket, scan.headers) as reader:
            while True:
                try:
                    yield reader.read_chunk().data
                except StopIteration:
                    break


class InProcess:
    """deltalake as a program would use it: a table that is open, at the engine's own batch size."""

    def __init__(self, table: Path) -> None:
        self._builder = QueryBuilder().register("t", DeltaTable(table))

    def seconds(self, query: Query, rows: int) -> float:
        return timed(lambda: _check(self._rows(query), rows))

    def count(self, query: Query) -> int:
        return self._rows(query)

    def _rows(self, query: Query) -> int:
        # Through the C stream: deltalake's own iterator is no faster and holds the GIL.
        return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(self._builder.execute(query.sql("t"))))


class BySpark:
    """`spark.sql(...).toArrow()` in the gateway's own Spark, with the settings it scans with."""

    def __init__(self, session: Any, table: Path) -> None:
        self._session = session
        self._source = table_at(str(table))

    def seconds(self, query: Query, rows: int) -> float:
        return timed(lambda: _check(self._session.sql(query.sql(self._source)).toArrow().num_rows, rows))


@contextmanager
def spark_session(folder: Path, profile: Profile) -> Iterator[Any]:
    """A session of a Spark of this process, stopped at the end. Larger than the gateway's: `toArrow` collects."""
    settings = SparkSettings(
        driver_memory="4g",
        warm_up=False,
        conf={"spark.driver.maxResultSize": "0", "spark.sql.warehouse.dir": str(folder / "spark-warehouse")},
    )
    spark = Spark(settings)
    spark.start()
    try:
        spark.wait_ready(_SPARK_SECONDS)
        with spark.session(profile) as session:
            yield session
    finally:
        spark.stop()


def _check(got: int, wanted: int) -> None:
    if got != wanted:
        raise RuntimeError(f"{got:,} rows came where {wanted:,} were expected")
