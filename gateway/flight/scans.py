"""Reading: which table, which version, which shape, which parts; then the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import AsOf, Readable, ScanRequest, Snapshot
from gateway.catalog.registry import Catalog, Catalogs
from gateway.errors import NotFoundError, RequestError
from gateway.flight.statements import not_before
from gateway.flight.streams import Scan, ScanStreams
from gateway.transactions.manager import TransactionManager
from gateway.wire.filters import FilterLimits, parse_filters
from gateway.wire.listing import ROWID_KEY, STATISTICS_KEY
from gateway.wire.messages import EndpointsRequest
from gateway.wire.tickets import ScanTicket, SchemaStamp, TablePath, decode_path, decode_ticket, encode_ticket, stamp_of

# The client then reads on the connection it has.
REUSE_CONNECTION = "arrow-flight-reuse-connection://?"


@dataclass(frozen=True, slots=True)
class Target:
    """A table as one call means it: at a version, in the shape the caller was told."""

    catalog: Catalog
    table: Readable
    snapshot: Snapshot
    shape: pa.Schema


class Scans:
    def __init__(
        self, catalogs: Catalogs, transactions: TransactionManager, streams: ScanStreams, limits: FilterLimits
    ) -> None:
        self._catalogs = catalogs
        self._transactions = transactions
        self._streams = streams
        self._limits = limits

    def endpoints(self, call: Call, request: EndpointsRequest) -> list[flight.FlightEndpoint]:
        path = decode_path(request.descriptor)
        target = self.resolve(call, path, as_of(request.at_unit, request.at_value))
        scan = ScanRequest(
            shape=target.shape,
            columns=_asked_for(target.shape, request),
            conjuncts=parse_filters(request.filters, self._limits).conjuncts,
        )
        return self.tickets(target, scan)

    def tickets(self, target: Target, scan: ScanRequest) -> list[flight.FlightEndpoint]:
        name, snapshot = target.table.name, target.snapshot
        return [
            flight.FlightEndpoint(
                encode_ticket(
                    ScanTicket(
                        catalog=name.catalog,
                        schema=name.schema,
                        table=name.table,
                        identity=snapshot.identity,
                        version=snapshot.version,
                        shape=scan.shape,
                        columns=scan.columns,
                        conjuncts=scan.conjuncts,
                        slice=part,
                    )
                ),
                [REUSE_CONNECTION],
            )
            for part in snapshot.slices(scan)
        ]

    def stream(self, call: Call, raw_ticket: bytes) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
        """The schema to announce, and the batches that follow."""
        ticket = decode_ticket(raw_ticket)
        table = self._catalogs.get(ticket.catalog).table(ticket.schema, ticket.table)
        scan = Scan(call, table, ticket)
        return ticket.shape, self._streams.stream(scan)

    def resolve(self, call: Call, path: TablePath, point: AsOf | None) -> Target:
        catalog = self._catalogs.get(path.catalog or call.headers.catalog)
        table = catalog.table(path.schema, path.table)
        try:
            if point is not None:
                snapshot = table.at(table.version_as_of(point))
                return Target(catalog, table, snapshot, _without_statistics(snapshot.shape))
            snapshot = self._pinned(call, table, path.stamp)
            return Target(catalog, table, snapshot, _told_shape(table, snapshot, path.stamp))
        except NotFoundError:
            if not _exists(table):
                catalog.forget(table)
            raise

    def _pinned(self, call: Call, table: Readable, stamp: SchemaStamp | None) -> Snapshot:
        view = self._transactions.touch(call.transaction, table.name.key, table.current, call.owner)
        snapshot = table.at(view.read_version)
        if view.identity is not None and snapshot.identity != view.identity:
            raise NotFoundError(f"table '{table.name}' was replaced by another one meanwhile; start a new transaction")
        return not_before(table, snapshot, stamp)


def _exists(table: Readable) -> bool:
    try:
        table.current()
    except NotFoundError:
        return False
    return True


def as_of(unit: str, value: str) -> AsOf | None:
    match unit.upper():
        case "":
            return None
        case "VERSION":
            return AsOf("VERSION", value)
        case "TIMESTAMP":
            return AsOf("TIMESTAMP", value)
    raise RequestError("AT takes VERSION or TIMESTAMP")


def _told_shape(table: Readable, snapshot: Snapshot, stamp: SchemaStamp | None) -> pa.Schema:
    """The shape that this client was told when it attached: a stream of any other crashes it."""
    if stamp is None or stamp.digest == stamp_of(snapshot.shape, 0).digest:
        return snapshot.shape
    described = table.describe()
    if stamp.digest == described.stamp.digest:
        return described.shape
    try:
        old = table.at(stamp.version).shape
    except NotFoundError:
        old = None
    if old is None or stamp.digest != stamp_of(old, 0).digest:
        raise RequestError(f"the schema of table '{table.name}' changed since this client attached; attach again")
    return old


def _asked_for(shape: pa.Schema, request: EndpointsRequest) -> frozenset[str]:
    ordinary = [field.name for field in shape if not (field.metadata or {}).get(ROWID_KEY)]
    rowid = [field.name for field in shape if (field.metadata or {}).get(ROWID_KEY)]
    if any(position >= len(ordinary) for position in request.positions):
        raise RequestError(f"endpoints: column_ids goes beyond the table's {len(ordinary)} columns")
    return frozenset([*(ordinary[position] for position in request.positions), *(rowid if request.wants_rowid else [])])


def _without_statistics(shape: pa.Schema) -> pa.Schema:
    # The client asks for statistics of a historical table without saying of which version.
    metadata = {key: value for key, value in (shape.metadata or {}).items() if key != STATISTICS_KEY}
    return shape.with_metadata(metadata or None)
