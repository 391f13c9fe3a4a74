"""Uploads of the DuckDB client: DoExchange insert, update and delete.

The client sends its schema and blocks until it has the server's; then come
batches, each answered at once when rows are returned; then the half-close,
after which the change is made durable before the count is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import structlog
from pyarrow import flight

from gateway.catalog.capabilities import Readable
from gateway.catalog.changes import Operation, Statement, WriteOptions, delete_of, insert_into, update_of
from gateway.catalog.registry import Catalogs
from gateway.errors import CancelledError, GatewayError, RequestError
from gateway.flight.contexts import WriteContexts
from gateway.flight.fillings import Fillings
from gateway.flight.puts import batches_of, schema_of
from gateway.flight.uploads import Upload, Uploads
from gateway.wire.headers import CallHeaders
from gateway.wire.packing import pack
from gateway.wire.tickets import SchemaStamp, decode_path, stamp_of

log = structlog.get_logger(__name__)


class Exchanges:
    def __init__(
        self, catalogs: Catalogs, contexts: WriteContexts, uploads: Uploads, fillings: Fillings | None = None
    ) -> None:
        self._catalogs = catalogs
        self._contexts = contexts
        self._uploads = uploads
        self._fillings = fillings

    def run(
        self,
        headers: CallHeaders,
        descriptor: flight.FlightDescriptor,
        reader: Any,
        writer: Any,
        is_cancelled: Callable[[], bool],
        peer: str,
    ) -> int:
        """Take an upload to its commit and answer it; returns how many rows were affected."""
        with self._uploads.watched(reader, peer, headers.transaction) as upload:
            with self._contexts.outcome(headers):
                path = decode_path(descriptor)
                table = self._catalogs.get(path.catalog or headers.catalog).table(path.schema, path.table)
                with self._filling(headers, table):
                    changed = self._change(headers, table, path.stamp, upload, writer, is_cancelled)
            upload.was_written()
            with upload.answering():
                writer.write_metadata(pack({"total_changed": changed}))
        return changed

    def _change(
        self,
        headers: CallHeaders,
        table: Readable,
        stamp: SchemaStamp | None,
        upload: Upload,
        writer: Any,
        is_cancelled: Callable[[], bool],
    ) -> int:
        with _told(table, stamp):
            statement = self._open(headers, table, stamp, schema_of(upload, is_cancelled), is_cancelled)
        upload.fills(statement)
        try:
            with upload.answering():
                writer.begin(statement.reply_schema)
            self._take(statement, headers.returning, upload, writer, is_cancelled)
            if is_cancelled():
                raise CancelledError("the upload was cancelled; nothing was written")
            return statement.commit()
        finally:
            statement.abort()

    def _filling(self, headers: CallHeaders, table: Readable) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._fillings is None else self._fillings.around(headers, table)

    def _open(
        self,
        headers: CallHeaders,
        table: Readable,
        stamp: SchemaStamp | None,
        upload: pa.Schema,
        is_cancelled: Callable[[], bool],
    ) -> Statement:
        changes_rows = headers.operation != Operation.INSERT.value
        context = self._contexts.of_transaction(headers, table, is_cancelled, changes_rows=changes_rows, stamp=stamp)
        options = WriteOptions(returning=headers.returning, echo=True)
        match headers.operation:
            case Operation.INSERT.value:
                return insert_into(table, table.name, upload, options, context)
            case Operation.UPDATE.value:
                return update_of(table, upload, options, context)
            case Operation.DELETE.value:
                return delete_of(table, upload, options, context)
        raise RequestError("the exchange needs the header airport-operation: insert, update or delete")

    @staticmethod
    def _take(
        statement: Statement, returning: bool, upload: Upload, writer: Any, is_cancelled: Callable[[], bool]
    ) -> None:
        failure: GatewayError | None = None
        for batch in batches_of(upload, is_cancelled):
            if failure is not None:
                continue  # a longer upload loses the class of an error that comes before its end: drain first
            try:
                answer = statement.add(upload.checked(batch))
            except GatewayError as error:
                if returning:
                    raise  # the client waits for an answer to this very batch
                failure = error
                statement.abort()
                continue
            if answer is not None:
                with upload.answering():
                    writer.write_batch(answer)
        if failure is not None:
            raise failure


@contextlib.contextmanager
def _told(table: Readable, stamp: SchemaStamp | None) -> Iterator[None]:
    """An upload that does not fit, of a client that was told another schema, is told why."""
    try:
        yield
    except RequestError as error:
        if stamp is None or stamp.digest == stamp_of(table.current().shape, 0).digest:
            raise
        raise RequestError(f"the schema of table '{table.name}' changed, attach again") from error


def known_operation(name: str | None) -> str:
    """The operation where it is one, else a fixed word: names from outside never become metric labels."""
    return name if name in {operation.value for operation in Operation} else "unknown"
