"""The client: one method per kind of SQL statement, each sending the RPCs that statement sends.

    tx   create_transaction      once per statement, or once per BEGIN block
    ls   list_schemas            the first time the catalog is needed
    ver  catalog_version         per table reference, until the server says is_fixed

`SELECT` is tx, ls, ver, column_statistics (if advertised), endpoints, DoGet per
endpoint; the other orders stand at the methods. COMMIT and ROLLBACK send nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from tests.airport.connection import Identity
from tests.airport.ddl import Ddl
from tests.airport.exchange import Changed, as_batches, conform, upload_schema
from tests.airport.packing import ProtocolViolation
from tests.airport.replies import Flight, flight_path, info_schema
from tests.airport.scan import Scan, Scanned
from tests.airport.steps import At, Binding, Disguise, Filters, Steps, Transaction
from tests.airport_filters import Expression, listing_document

Rows = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]


class AirportClient(Steps):
    """ATTACH `catalog` at `location`; nothing is sent before the first statement.

    `token` is a secret scoped to the location and goes on every call; a token given
    in ATTACH (`attach_token`) goes on catalog calls only, as the real client has it.
    `calls` is everything sent so far. One instance serves one thread at a time.
    With a `disguise` (tests/nasty) uploads differ from what DuckDB sends: rows and meaning are the same.
    """

    def __init__(
        self,
        location: str,
        catalog: str = "",
        *,
        token: str | None = None,
        attach_token: str | None = None,
        session: str | None = None,
        threads: int = 1,
        disguise: Disguise | None = None,
    ) -> None:
        super().__init__(Identity(location, catalog, token, attach_token, session or str(uuid.uuid4())), disguise)
        self.threads = threads
        self.ddl = Ddl(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    # Catalog

    def tables(self) -> list[Flight]:
        """SHOW ALL TABLES: `ls` the first time, afterwards nothing at all."""
        return self.catalog.tables()

    def table(self, schema: str, name: str) -> Flight:
        """A table as the client knows it; loads like `tables`, and only that schema."""
        return self.catalog.table(schema, name)

    def describe(self, schema: str, name: str, *, transaction: Transaction | None = None) -> Flight:
        """DESCRIBE, EXPLAIN, PREPARE: tx, ver."""
        self.transaction_id(transaction)
        table = self.catalog.table(schema, name)
        self.check_version()
        return table

    def begin(self) -> Transaction:
        return Transaction()

    # Reading

    def scan(
        self,
        schema: str,
        table: str,
        columns: Sequence[str] | None = None,
        filters: Filters = (),
        *,
        at: At | None = None,
        transaction: Transaction | None = None,
        column_ids: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> Scanned:
        """SELECT, read to the end or to `limit` rows; see `open_scan`."""
        opened = self.open_scan(schema, table, columns, filters, at=at, transaction=transaction, column_ids=column_ids)
        return opened.read(limit=limit, threads=self.threads)

    def open_scan(
        self,
        schema: str,
        table: str,
        columns: Sequence[str] | None = None,
        filters: Filters = (),
        *,
        at: At | None = None,
        transaction: Transaction | None = None,
        column_ids: Sequence[int] | None = None,
    ) -> Scan:
        """SELECT up to the `endpoints` call; the streams are read from the result.

        No `columns` means all ordinary ones, an empty list is `count(*)`, and `rowid`
        may be among them. `filters` are expressions, or the exact text to send.
        """
        binding = Binding(self.identity, self.transaction_id(transaction))
        found = self.look_up(schema, table, at, binding)
        return self.plan(binding, found, columns, filters, at=at, column_ids=column_ids)

    def flight_info(self, schema: str, table: str, at: At, *, transaction: Transaction | None = None) -> Flight:
        """DESCRIBE of a table AT a point: tx, flight_info, ver, flight_info."""
        return self.look_up(schema, table, at, Binding(self.identity, self.transaction_id(transaction)))

    def column_statistics(
        self, schema: str, table: str, column: str, *, transaction: Transaction | None = None
    ) -> dict[str, Any]:
        """The statistics of one column, asked for out of turn; a scan asks by itself where they are advertised."""
        binding = Binding(self.identity, self.transaction_id(transaction))
        return self.ask_statistics(binding, self.look_up(schema, table, None, binding), column)

    # Ad-hoc functions: no catalog, no transaction

    def take_flight(
        self,
        descriptor: flight.FlightDescriptor | Sequence[str] | str | bytes,
        columns: Sequence[str] | None = None,
        filters: Filters = (),
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        at: At | None = None,
    ) -> Scanned:
        """`airport_take_flight`: GetFlightInfo, endpoints, DoGet."""
        wanted = _as_descriptor(descriptor)
        binding = Binding(self._ad_hoc(token, headers))
        info = self.connection.flight_info(wanted, binding.headers(path=flight_path(wanted)))
        if info.descriptor != wanted:
            raise ProtocolViolation(f"GetFlightInfo: answered for {info.descriptor}, asked for {wanted}")
        found = Flight(wanted, info_schema(info, "GetFlightInfo"), {}, info.total_records)
        # Whether statistics are asked for here was never measured.
        return self.plan(binding, found, columns, filters, at=at, statistics=False).read(threads=self.threads)

    def databases(self) -> Scanned:
        """`airport_databases`: take_flight of PATH ['__databases']."""
        return self.take_flight(["__databases"])

    def flights(self, criteria: bytes = b"", filters: Sequence[Expression] = ()) -> list[flight.FlightInfo]:
        """`airport_flights`: ListFlights."""
        more = {"airport-duckdb-json-filters": listing_document(filters)}
        infos = self.connection.list_flights(criteria, self._ad_hoc().headers(data=True, more=more))
        for info in infos:
            info_schema(info, "ListFlights")
        return infos

    def action(self, name: str, body: bytes = b"", *, token: str | None = None) -> list[bytes]:
        """`airport_action`: the raw body, the raw results."""
        return self.connection.action(name, body, self._ad_hoc(token).headers(action=name, data=True))

    # Writing

    def insert(
        self,
        schema: str,
        table: str,
        rows: Rows,
        *,
        returning: bool = False,
        transaction: Transaction | None = None,
    ) -> Changed:
        """INSERT: tx, ver, DoExchange. All table columns are uploaded; missing ones are NULL."""
        transaction_id = self.transaction_id(transaction)
        found = self.catalog.table(schema, table)
        self.check_version()
        return self.insert_into(found, rows, transaction_id, returning=returning)

    def insert_into(self, table: Flight, rows: Rows, transaction_id: str | None, *, returning: bool = False) -> Changed:
        """The exchange of an INSERT alone."""
        sent = upload_schema(table, table.column_names)
        source = (conform(batch, sent, table) for batch in as_batches(rows))
        return self.exchange("insert", table, sent, source, transaction_id=transaction_id, returning=returning)

    def update(
        self,
        schema: str,
        table: str,
        rows: Rows,
        *,
        sets: Sequence[str],
        returning: bool = False,
        transaction: Transaction | None = None,
    ) -> Changed:
        """UPDATE with ready-made rows (`sets` and `rowid`): tx, ver twice, DoExchange; the scan is left out."""
        transaction_id = self.transaction_id(transaction)
        found = self.look_up_for_change(schema, table)
        sent = upload_schema(found, [*sets, "rowid"])
        source = (conform(batch, sent, found) for batch in as_batches(rows))
        return self.exchange("update", found, sent, source, transaction_id=transaction_id, returning=returning)

    def update_where(
        self,
        schema: str,
        table: str,
        change: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        sets: Sequence[str],
        reads: Sequence[str] = (),
        filters: Filters = (),
        returning: bool = False,
        transaction: Transaction | None = None,
    ) -> Changed:
        """UPDATE as SQL runs it: tx, ver twice, DoExchange, and while that is open endpoints and DoGet.

        `change` gets each scanned batch (`reads`, then `rowid`) and gives back the rows
        to upload (`sets`, then `rowid`). The server may return too many rows: `change`
        drops those that do not match.
        """
        transaction_id = self.transaction_id(transaction)
        found = self.look_up_for_change(schema, table)
        sent = upload_schema(found, [*sets, "rowid"])
        scanned = self.scan_below(found, [*reads, "rowid"], filters, transaction_id)
        source = (conform(change(batch), sent, found) for batch in scanned)
        return self.exchange("update", found, sent, source, transaction_id=transaction_id, returning=returning)

    def delete(
        self,
        schema: str,
        table: str,
        rowids: Sequence[object] | pa.Array,
        *,
        returning: bool = False,
        transaction: Transaction | None = None,
    ) -> Changed:
        """DELETE of known row ids: tx, ver twice, DoExchange; the scan is left out."""
        transaction_id = self.transaction_id(transaction)
        found = self.look_up_for_change(schema, table)
        sent = upload_schema(found, ["rowid"])
        batch = pa.RecordBatch.from_arrays([pa.array(rowids, sent.field(0).type)], schema=sent)
        return self.exchange("delete", found, sent, [batch], transaction_id=transaction_id, returning=returning)

    def delete_where(
        self,
        schema: str,
        table: str,
        choose: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
        *,
        reads: Sequence[str] = (),
        filters: Filters = (),
        returning: bool = False,
        transaction: Transaction | None = None,
    ) -> Changed:
        """DELETE (or TRUNCATE) as SQL runs it; `choose` keeps the rows to delete. Order as in `update_where`."""
        transaction_id = self.transaction_id(transaction)
        found = self.look_up_for_change(schema, table)
        sent = upload_schema(found, ["rowid"])
        scanned = self.scan_below(found, [*reads, "rowid"], filters, transaction_id)
        source = (conform(choose(batch), sent, found) for batch in scanned)
        return self.exchange("delete", found, sent, source, transaction_id=transaction_id, returning=returning)

    def _ad_hoc(self, token: str | None = None, headers: Mapping[str, str] | None = None) -> Identity:
        return replace(
            self.identity, catalog="", attach_token=None, token=token or self.identity.token, extra=headers or {}
        )


def _as_descriptor(descriptor: flight.FlightDescriptor | Sequence[str] | str | bytes) -> flight.FlightDescriptor:
    if isinstance(descriptor, flight.FlightDescriptor):
        return descriptor
    if isinstance(descriptor, str | bytes):
        return flight.FlightDescriptor.for_command(descriptor)
    return flight.FlightDescriptor.for_path(*descriptor)
