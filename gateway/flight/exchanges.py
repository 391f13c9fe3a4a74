"""Statements of the DuckDB client: DoExchange insert, update and delete.

The client sends its schema and blocks until it has the server's; then come
batches, each answered at once when rows are returned; then the half-close,
after which the change is made durable before the count is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from gateway.access.policy import Action
from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import Operation, WriteOptions
from gateway.catalog.guarding import seen_by
from gateway.catalog.registry import Catalogs
from gateway.errors import RequestError
from gateway.flight.pending_creations import PendingCreations
from gateway.flight.statements import Change, Execution, Statements
from gateway.flight.upload_watch import Upload, UploadWatch
from gateway.wire.packing import pack
from gateway.wire.tickets import SchemaStamp, decode_path, stamp_of


class Exchanges:
    """Thread-safe: holds nothing of a call."""

    def __init__(
        self, catalogs: Catalogs, statements: Statements, uploads: UploadWatch, creations: PendingCreations
    ) -> None:
        self._catalogs = catalogs
        self._statements = statements
        self._uploads = uploads
        self._creations = creations

    def run(
        self,
        call: Call,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        with self._uploads.watched(call, reader) as upload:
            with self._statements.executing(call) as execution:
                path = decode_path(descriptor)
                operation = _operation(call)
                catalog = seen_by(call, self._catalogs).get(path.catalog or call.headers.catalog)
                table = catalog.table(path.schema, path.table, Action(operation.value))
                if call.headers.returning:
                    catalog.check(Action.READ, path.schema, path.table)
                with self._creations.guard(call, table):
                    changed = _change(call, operation, execution, table, path.stamp, upload, writer)
            upload.mark_written()
            with upload.answering():
                writer.write_metadata(pack({"total_changed": changed}))


def _change(
    call: Call,
    operation: Operation,
    execution: Execution,
    table: Readable,
    stamp: SchemaStamp | None,
    upload: Upload,
    writer: flight.MetadataRecordBatchWriter,
) -> int:
    returning = call.headers.returning
    with _schema_changes_explained(table, stamp):
        schema = upload.schema()
        change = Change(operation, table, WriteOptions(returning=returning, echo=True), stamp)
        statement = execution.open(change, schema)
    upload.bind(statement)
    # An error before the end of an upload loses its class, so the rest is read first. A client that waits for an
    # answer to each batch sends no more.
    return execution.run(statement, upload.batches(), _ExchangeReply(upload, writer), drains=not returning)


@dataclass(frozen=True, slots=True)
class _ExchangeReply:
    """Each batch is answered before the client sends the next."""

    upload: Upload
    writer: flight.MetadataRecordBatchWriter

    def begin(self, schema: pa.Schema) -> None:
        with self.upload.answering():
            self.writer.begin(schema)

    def add(self, rows: pa.RecordBatch) -> None:
        with self.upload.answering():
            self.writer.write_batch(rows)

    def finish(self) -> None:
        """The count comes after the commit."""


def _operation(call: Call) -> Operation:
    try:
        return Operation(call.headers.operation)
    except ValueError:
        raise RequestError("the exchange needs the header airport-operation: insert, update or delete") from None


@contextlib.contextmanager
def _schema_changes_explained(table: Readable, stamp: SchemaStamp | None) -> Iterator[None]:
    """An upload that does not fit, of a client that knows another schema, is refused for that reason."""
    try:
        yield
    except RequestError as error:
        if stamp is None or stamp.digest == stamp_of(table.current().shape, 0).digest:
            raise
        raise RequestError(f"the schema of table '{table.name}' changed, attach again") from error


def operation_label(name: str | None) -> str:
    """The operation where it is one, else a fixed word: client-supplied names never become metric labels."""
    return name if name in {operation.value for operation in Operation} else "unknown"
