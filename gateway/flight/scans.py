"""Reading: which table, which version, which shape, which parts; then the stream."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import flight

from gateway.access.policy import Action
from gateway.catalog.calls import Call
from gateway.catalog.capabilities import AsOf, ColumnStatistics, Readable, ScanRequest, Snapshot, WithStatistics
from gateway.catalog.guarding import SeenCatalog, seen_by
from gateway.catalog.registry import Catalogs, not_before
from gateway.errors import NotFoundError, RequestError, UnsupportedError
from gateway.flight.streams import Scan, ScanStreams
from gateway.transactions.manager import TransactionManager
from gateway.wire.bodies import write_options
from gateway.wire.filter_parser import FilterLimits, parse_filters
from gateway.wire.filter_tree import Expression
from gateway.wire.listing import ROWID_KEY, STATISTICS_KEY
from gateway.wire.messages import EndpointsRequest, StatisticsRequest
from gateway.wire.statistics_reply import encode_statistics
from gateway.wire.tickets import ScanTicket, SchemaStamp, TablePath, decode_path, decode_ticket, encode_ticket, stamp_of

# The client then reads on the connection it has.
REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
_MOST_REMEMBERED_BYTES = 4 << 20  # of a filter document


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table as one call means it: at a version, in the shape declared to the caller."""

    catalog: SeenCatalog
    table: Readable
    snapshot: Snapshot
    shape: pa.Schema


class _FilterParser:
    """Remembers the last documents, since a ticket brings its own back: one of 10,000 items takes 0.1 s to parse."""

    def __init__(self, limits: FilterLimits) -> None:
        self._limits = limits
        self._parse_remembered = functools.lru_cache(maxsize=8)(self._parse)

    def __call__(self, document: bytes) -> tuple[Expression, ...]:
        return self._parse_remembered(document) if len(document) <= _MOST_REMEMBERED_BYTES else self._parse(document)

    def _parse(self, document: bytes) -> tuple[Expression, ...]:
        return parse_filters(document, self._limits).conjuncts


class Scans:
    def __init__(
        self, catalogs: Catalogs, transactions: TransactionManager, streams: ScanStreams, limits: FilterLimits
    ) -> None:
        self._catalogs = catalogs
        self._transactions = transactions
        self._streams = streams
        self._parse = _FilterParser(limits)

    def endpoints(self, call: Call, request: EndpointsRequest) -> list[flight.FlightEndpoint]:
        path = decode_path(request.descriptor)
        resolved = self.resolve(call, path, parse_as_of(request.at_unit, request.at_value))
        scan = ScanRequest(
            shape=resolved.shape,
            columns=_asked_for(resolved.shape, request),
            conjuncts=self._parse(request.filters),
        )
        return self.tickets(resolved, scan, request.filters if scan.conjuncts else b"")

    def tickets(self, resolved: ResolvedTable, scan: ScanRequest, filters: bytes = b"") -> list[flight.FlightEndpoint]:
        name, snapshot = resolved.table.name, resolved.snapshot
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
                        filters=filters,
                        slice=part,
                    )
                ),
                [REUSE_CONNECTION],
            )
            for part in snapshot.slices(scan)
        ]

    def stream(
        self, call: Call, raw_ticket: bytes
    ) -> tuple[pa.Schema, pa.ipc.IpcWriteOptions, Iterator[tuple[pa.RecordBatch, bytes]]]:
        """The schema to announce, how bodies are written, and the batches that follow.

        A ticket grants nothing: its bearer is asked.
        """
        ticket = decode_ticket(raw_ticket)
        table = seen_by(call, self._catalogs).get(ticket.catalog).table(ticket.schema, ticket.table, Action.READ)
        request = ScanRequest(ticket.shape, ticket.columns, self._parse(ticket.filters), ticket.slice)
        scan = Scan(call, table, ticket, request)
        options = write_options(ticket.shape, ticket.columns, self._streams.compression)
        return ticket.shape, options, self._streams.stream(scan)

    def column_statistics(self, call: Call, request: StatisticsRequest) -> bytes:
        """The reply to the action of that name."""
        resolved = self.resolve(call, decode_path(request.descriptor), None)
        index = resolved.shape.get_field_index(request.column)
        if index < 0:
            raise NotFoundError(f"table '{resolved.table.name}' has no column '{request.column[:60]}'")
        if not isinstance(resolved.snapshot, WithStatistics):
            raise UnsupportedError(f"table '{resolved.table.name}' has no statistics")
        kind = resolved.shape.field(index).type
        now = resolved.snapshot.shape.get_field_index(request.column)
        # Nothing is known of a column that was replaced since this client attached; reading it is refused.
        is_same = now >= 0 and resolved.snapshot.shape.field(now).type == kind
        known = resolved.snapshot.statistics(request.column) if is_same else ColumnStatistics()
        return encode_statistics(
            kind,
            known.minimum,
            known.maximum,
            may_have_null=known.may_have_null,
            may_have_value=known.may_have_value,
        )

    def resolve(self, call: Call, path: TablePath, point: AsOf | None) -> ResolvedTable:
        catalog = seen_by(call, self._catalogs).get(path.catalog or call.headers.catalog)
        table = catalog.table(path.schema, path.table, Action.READ)
        try:
            if point is not None:
                snapshot = table.at(table.version_as_of(point))
                return ResolvedTable(catalog, table, snapshot, _without_statistics(snapshot.shape))
            snapshot = self._pinned(call, table, path.stamp)
            return ResolvedTable(catalog, table, snapshot, _declared_shape(table, snapshot, path.stamp))
        except NotFoundError:
            if not _exists(table):
                catalog.forget(table)
            raise

    def _pinned(self, call: Call, table: Readable, stamp: SchemaStamp | None) -> Snapshot:
        view = self._transactions.pin(call.transaction, table.name.key, table.current, call.owner)
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


def parse_as_of(unit: str, value: str) -> AsOf | None:
    match unit.upper():
        case "":
            return None
        case "VERSION":
            return AsOf("VERSION", value)
        case "TIMESTAMP":
            return AsOf("TIMESTAMP", value)
    raise RequestError("AT takes VERSION or TIMESTAMP")


def _declared_shape(table: Readable, snapshot: Snapshot, stamp: SchemaStamp | None) -> pa.Schema:
    """The shape declared to this client when it attached: a stream of any other crashes it."""
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
