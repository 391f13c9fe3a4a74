"""One table scan: endpoints already known, streams read under the client's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.airport.connection import Connection, Headers
from tests.airport.packing import ProtocolViolation
from tests.airport.replies import (
    REUSE_CONNECTION,
    Flight,
    decode_progress,
    first_location,
    judge_batch,
    judge_stream_schema,
)


@dataclass(frozen=True)
class Chunk:
    """A full-width batch and the progress that came with it."""

    batch: pa.RecordBatch
    progress: float | None


@dataclass(frozen=True)
class Scanned:
    """What came back.

    `table` has the requested columns only, in the order asked for; the real client
    would still apply the filter to it, so it may hold more rows than match.
    `batches` are the full-width batches of the stream.
    """

    table: pa.Table
    batches: list[pa.RecordBatch]
    progress: list[float]
    endpoints: int
    statistics: Mapping[str, Mapping[str, Any]]

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()


@dataclass(frozen=True)
class Scan:
    """A scan whose streams are not opened yet; each endpoint may be read once or often."""

    connection: Connection
    flight: Flight
    columns: tuple[str, ...]
    column_ids: tuple[int, ...]
    endpoints: tuple[flight.FlightEndpoint, ...]
    headers: Headers
    statistics: Mapping[str, Mapping[str, Any]]

    def chunks(self, endpoint: flight.FlightEndpoint) -> Iterator[Chunk]:
        """The stream of one endpoint; closing the iterator early cancels the call, as LIMIT does."""
        uri = first_location(endpoint)
        location = None if uri == REUSE_CONNECTION else uri
        with self.connection.get(endpoint.ticket, self.headers, location) as reader:
            judge_stream_schema(self.flight.schema, reader.schema)
            yield from read_chunks(reader)

    @property
    def schema(self) -> pa.Schema:
        """The requested columns, the row id under the name `rowid`."""
        declared = self.flight.schema
        return pa.schema([pa.field(name, declared.field(self.flight.position(name)).type) for name in self.columns])

    def project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The requested columns of a full-width batch."""
        arrays = [batch.column(self.flight.position(name)) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def read(self, *, limit: int | None = None, threads: int = 1) -> Scanned:
        """All endpoints, one after the other or on `threads` threads; with a limit, cancel once it is reached."""
        if threads > 1 and limit is None:
            with ThreadPoolExecutor(threads) as pool:
                parts = list(pool.map(lambda endpoint: list(self.chunks(endpoint)), self.endpoints))
            chunks = [chunk for part in parts for chunk in part]
        else:
            chunks = list(self._until(limit))
        batches = [chunk.batch for chunk in chunks]
        table = pa.Table.from_batches([self.project(batch) for batch in batches], self.schema)
        progress = [chunk.progress for chunk in chunks if chunk.progress is not None]
        return Scanned(table, batches, progress, len(self.endpoints), self.statistics)

    def _until(self, limit: int | None) -> Iterator[Chunk]:
        rows = 0
        for endpoint in self.endpoints:
            stream = self.chunks(endpoint)
            for chunk in stream:
                yield chunk
                rows += chunk.batch.num_rows
                if limit is not None and rows >= limit:
                    stream.close()
                    return


def read_chunks(reader: flight.FlightStreamReader) -> Iterator[Chunk]:
    """Batches of a DoGet stream, each checked for what the client cannot take."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.data is None:
            raise ProtocolViolation("DoGet: a message without a batch ends the stream for the client")
        judge_batch(chunk.data)
        yield Chunk(chunk.data, None if chunk.app_metadata is None else decode_progress(chunk.app_metadata))
