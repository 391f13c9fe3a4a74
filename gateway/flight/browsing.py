"""Browsing: schemas, tables and catalogs as Flight lists them."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Description, Readable, ScanRequest
from gateway.catalog.guarding import SeenCatalog, seen_by
from gateway.catalog.names import fold
from gateway.catalog.registry import Catalogs, Listing
from gateway.errors import NotFoundError
from gateway.flight.scans import REUSE_CONNECTION, ResolvedTable, Scans, parse_as_of
from gateway.wire.listing import SchemaEntry, TableEntry, encode_listing, table_info
from gateway.wire.messages import FlightInfoRequest
from gateway.wire.tickets import DATABASES_TICKET, TablePath, decode_path, encode_path, is_databases

DATABASES_SHAPE = pa.schema(
    [("database_name", pa.string()), ("description", pa.string()), ("schemas", pa.int64()), ("tables", pa.int64())]
)


class Browsing:
    """Thread-safe: keeps nothing but finished bytes, keyed by all they depend on."""

    def __init__(self, catalogs: Catalogs, scans: Scans) -> None:
        self._catalogs = catalogs
        self._scans = scans
        # A description is replaced when it changes; a thousand unchanged tables then cost one compression.
        self._entries: WeakKeyDictionary[Description, dict[str, bytes]] = WeakKeyDictionary()

    def list_schemas(self, call: Call, attached_as: str) -> bytes:
        """The whole catalog, as fresh as the lake is now: clients ask once per ATTACH."""
        catalog = seen_by(call, self._catalogs).get(attached_as)
        catalog.refresh()
        # The version is read first: a change in between makes the client re-bind once more, never once less.
        version, listing = catalog.version, catalog.listing()
        entries: dict[str, list[bytes]] = {key: [] for key in listing.schemas}
        for (schema, _), table in listing.tables.items():
            entries[schema].append(self.entry(table, attached_as))
        return encode_listing(
            (SchemaEntry(listing.schemas[key], "", tuple(of)) for key, of in entries.items()), version
        )

    def entry(self, table: Readable, attached_as: str) -> bytes:
        """One table as listings and DDL replies declare it."""
        description = table.describe()
        known = self._entries.setdefault(description, {})
        if attached_as not in known:
            known[attached_as] = table_info(_entry(table, description, attached_as, None)).serialize()
        return known[attached_as]

    def flights(self, call: Call, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """One schema's tables for a client that loads lazily, else every table whose name holds the criteria."""
        headers = call.headers
        if headers.list_schema is not None:
            attached_as = headers.list_catalog or headers.catalog or ""
            listing = seen_by(call, self._catalogs).get(attached_as).listing()
            if fold(headers.list_schema) not in listing.schemas:
                raise NotFoundError(f"schema '{headers.list_schema[:60]}' not found")
            for table in _tables_of(listing, fold(headers.list_schema)):
                yield table_info(_entry(table, table.describe(), attached_as, None))
            return
        wanted = fold(criteria.decode("utf-8", "replace"))
        for catalog in seen_by(call, self._catalogs):
            for table in catalog.listing().tables.values():
                if wanted in fold(f"{catalog.name}.{table.name}"):
                    yield table_info(_entry(table, table.describe(), catalog.name, catalog.name))

    def flight_info(self, call: Call, request: FlightInfoRequest) -> flight.FlightInfo:
        """The table at a point of its history, under the very descriptor that was asked with."""
        return self._info(call, request.descriptor, request.at_unit, request.at_value, with_endpoints=False)

    def describe_flight(self, call: Call, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """GetFlightInfo: as `flight_info`, now, and with tickets for clients that know nothing but Flight."""
        if is_databases(descriptor):
            endpoint = flight.FlightEndpoint(DATABASES_TICKET, [REUSE_CONNECTION])
            return flight.FlightInfo(DATABASES_SHAPE, descriptor, [endpoint], -1, -1)
        return self._info(call, descriptor, "", "", with_endpoints=True)

    def schema(self, call: Call, descriptor: flight.FlightDescriptor) -> pa.Schema:
        if is_databases(descriptor):
            return DATABASES_SHAPE
        return self._scans.resolve(call, decode_path(descriptor), None).shape

    def databases(self, call: Call) -> pa.RecordBatch:
        rows = [_database(catalog) for catalog in seen_by(call, self._catalogs)]
        return pa.RecordBatch.from_pylist(rows, schema=DATABASES_SHAPE)

    def _info(
        self, call: Call, descriptor: flight.FlightDescriptor, unit: str, value: str, *, with_endpoints: bool
    ) -> flight.FlightInfo:
        resolved = self._scans.resolve(call, decode_path(descriptor), parse_as_of(unit, value))
        whole = ScanRequest(resolved.shape, frozenset(resolved.shape.names))
        return flight.FlightInfo(
            resolved.shape,
            descriptor,
            self._scans.tickets(resolved, whole) if with_endpoints else [],
            -1 if resolved.snapshot.rows is None else resolved.snapshot.rows,
            resolved.snapshot.size.bytes,
            app_metadata=_metadata(resolved, call.headers.catalog or resolved.catalog.name),
        )


def _database(catalog: SeenCatalog) -> dict[str, object]:
    listing = catalog.listing()
    return {
        "database_name": catalog.name,
        "description": catalog.description,
        "schemas": len(listing.schemas),
        "tables": len(listing.tables),
    }


def _tables_of(listing: Listing, schema: str) -> Iterator[Readable]:
    return (table for (table_schema, _), table in listing.tables.items() if table_schema == schema)


def _entry(table: Readable, description: Description, attached_as: str, catalog: str | None) -> TableEntry:
    name = table.name
    return TableEntry(
        catalog=attached_as,
        schema=name.schema,
        name=name.table,
        comment=description.comment,
        shape=description.shape,
        descriptor=encode_path(TablePath(name.schema, name.table, catalog, description.stamp)),
        rows=description.size.rows,
        bytes=description.size.bytes,
    )


def _metadata(resolved: ResolvedTable, attached_as: str) -> bytes:
    described = resolved.table.describe()
    metadata: bytes = table_info(_entry(resolved.table, described, attached_as, None)).app_metadata
    return metadata
