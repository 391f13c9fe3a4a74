"""The steps statements are made of: which calls they send, with which headers, and how replies are judged."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from tests.airport import requests
from tests.airport.arrow_types import duckdb_type
from tests.airport.catalog import Catalog
from tests.airport.connection import Call, Connection, Headers, Identity
from tests.airport.exchange import Changed, judge_rows_by_name, judge_rows_by_position, upload
from tests.airport.packing import ProtocolViolation
from tests.airport.replies import (
    ROWID,
    Contents,
    Flight,
    Listing,
    decode_catalog_version,
    decode_endpoints,
    decode_flight,
    decode_info,
    decode_listing,
    decode_statistics,
    decode_transaction,
    judge_flights,
    only_result,
    open_contents,
)
from tests.airport.scan import Scan
from tests.airport_filters import Expression, build_document

Filters = str | Sequence[Expression]
At = tuple[str, object]
Disguise = Callable[[pa.Schema, Iterable[pa.RecordBatch]], tuple[pa.Schema, Iterable[pa.RecordBatch]]]


class Transaction:
    """A BEGIN block. The id is asked for by its first statement; leaving the block sends nothing."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.has_begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class Binding:
    """One table reference being bound: its calls share a trace id and the transaction id."""

    identity: Identity
    transaction_id: str | None = None
    trace: str = field(default_factory=lambda: str(uuid.uuid4()))

    def headers(self, **parts: Any) -> Headers:
        return self.identity.headers(trace=self.trace, transaction=self.transaction_id, data=True, **parts)


class Steps:
    """One attached catalog and its connection. One instance serves one thread at a time."""

    def __init__(self, identity: Identity, disguise: Disguise | None = None) -> None:
        self.identity = identity
        self.disguise = disguise
        self.connection = Connection(identity.location)
        self.catalog = Catalog(self._list_schemas, lambda entry: self.open_contents(entry.name, entry.contents))
        self._is_fixed = False

    @property
    def calls(self) -> list[Call]:
        """Everything sent so far."""
        return self.connection.calls

    def transaction_id(self, transaction: Transaction | None = None) -> str | None:
        """tx, unless the block already has its id; None and empty mean no header."""
        if transaction is not None and transaction.has_begun:
            return transaction.id
        raw = self.catalog_action("create_transaction", requests.create_transaction(self.identity.catalog))
        identifier = decode_transaction(raw) or None
        if transaction is not None:
            transaction.id, transaction.has_begun = identifier, True
        return identifier

    def check_version(self) -> None:
        """ver, until the server says that the catalog is fixed."""
        if not self._is_fixed:
            raw = self.catalog_action("catalog_version", requests.catalog_version(self.identity.catalog))
            self._is_fixed = decode_catalog_version(raw).is_fixed

    def catalog_action(self, name: str, body: bytes, *, repeat: int = 1) -> bytes:
        """An action of the catalog kind: no trace, no transaction; exactly one result."""
        headers = self.identity.headers(action=name, repeat=repeat)
        return only_result(name, self.connection.action(name, body, headers))

    def open_contents(self, schema: str, contents: Contents) -> list[Flight]:
        """Objects of a schema, inline or through ListFlights where nothing is said about them."""
        catalog = self.identity.catalog
        if not contents.is_empty:
            return open_contents(contents, catalog, schema)
        more = {"airport-list-flights-filter-catalog": catalog, "airport-list-flights-filter-schema": schema}
        return judge_flights(self.connection.list_flights(b"", self.identity.headers(more=more)), catalog, schema)

    def _list_schemas(self) -> Listing:
        listing = decode_listing(self.catalog_action("list_schemas", requests.list_schemas(self.identity.catalog)))
        self._is_fixed = listing.version.is_fixed
        return listing

    def look_up(self, schema: str, table: str, at: At | None, binding: Binding) -> Flight:
        """ver; or, for a point in time, flight_info as catalog call, ver, flight_info as part of the binding."""
        found = self.catalog.table(schema, table)
        if at is None:
            self.check_version()
            return found
        unit, value = _spell(at)
        raw = self.catalog_action("flight_info", requests.flight_info(found.descriptor, unit, value))
        first = decode_flight(decode_info(raw, "flight_info"), self.identity.catalog, found.schema_name)
        self.check_version()
        raw = self._bound_action(binding, "flight_info", requests.flight_info(first.descriptor, unit, value), first)
        second = decode_flight(decode_info(raw, "flight_info"), self.identity.catalog, found.schema_name)
        if second.descriptor != first.descriptor:
            raise ProtocolViolation(f"flight_info: answered for {second.descriptor}, asked for {first.descriptor}")
        return second

    def look_up_for_change(self, schema: str, table: str) -> Flight:
        """ver twice: the target and the scan below it are two references."""
        found = self.catalog.table(schema, table)
        self.check_version()
        self.check_version()
        if found.rowid is None:
            raise ProtocolViolation(f"{schema}.{table} has no row id: UPDATE and DELETE kill the user's DuckDB")
        return found

    def plan(
        self,
        binding: Binding,
        table: Flight,
        columns: Sequence[str] | None,
        filters: Filters,
        *,
        at: At | None = None,
        column_ids: Sequence[int] | None = None,
        statistics: bool = True,
    ) -> Scan:
        """column_statistics where advertised, then endpoints."""
        requested = table.column_names if columns is None else list(columns)
        json_filters, names = _plan_filters(filters, requested)
        ids = [table.column_id(name) for name in names] if column_ids is None else list(column_ids)
        if not ids:  # count(*)
            ids = [ROWID if table.rowid is not None else 0]
        reported: dict[str, dict[str, Any]] = {}
        if statistics and table.has_statistics:
            asked = [name for name in names if table.column_id(name) != ROWID]
            for name in asked * 2:  # the client asks for every column twice
                reported[name] = self.ask_statistics(binding, table, name)
        unit, value = _spell(at)
        body = requests.endpoints(table.descriptor, ids, json_filters, at_unit=unit, at_value=value)
        endpoints = decode_endpoints(self._bound_action(binding, "endpoints", body, table))
        return Scan(
            connection=self.connection,
            flight=table,
            columns=tuple(requested),
            column_ids=tuple(ids),
            endpoints=tuple(endpoints),
            headers=binding.headers(path=table.path),
            statistics=reported,
        )

    def ask_statistics(self, binding: Binding, table: Flight, column: str) -> dict[str, Any]:
        field = table.schema.field(table.position(column))
        body = requests.column_statistics(table.descriptor, column, duckdb_type(field.type))
        # The one bound call without a flight path, and with its action name twice.
        headers = binding.headers(action="column_statistics", repeat=2)
        results = self.connection.action("column_statistics", body, headers)
        return decode_statistics(only_result("column_statistics", results), field)

    def scan_below(
        self, table: Flight, columns: Sequence[str], filters: Filters, transaction_id: str | None
    ) -> Iterator[pa.RecordBatch]:
        """The scan below an UPDATE or DELETE; starts when its first batch is wanted."""
        scan = self.plan(Binding(self.identity, transaction_id), table, columns, filters)
        for endpoint in scan.endpoints:
            for chunk in scan.chunks(endpoint):
                yield scan.project(chunk.batch)

    def exchange(
        self,
        operation: str,
        table: Flight,
        schema: pa.Schema,
        source: Iterable[pa.RecordBatch],
        *,
        transaction_id: str | None,
        returning: bool,
    ) -> Changed:
        """DoExchange with a trace id of its own: it shares only the transaction with its scan."""
        more = {"airport-operation": operation, "return-chunks": "1" if returning else "0"}
        headers = Binding(self.identity, transaction_id).headers(path=table.path, more=more)
        if self.disguise is not None:
            schema, source = self.disguise(schema, source)
        judge = judge_rows_by_position(schema) if operation == "update" else judge_rows_by_name(table)
        streams = self.connection.exchange(table.descriptor, headers)
        is_disguised = self.disguise is not None
        return upload(streams, schema, source, returning=returning, judge_reply=judge, is_disguised=is_disguised)

    def _bound_action(self, binding: Binding, name: str, body: bytes, table: Flight) -> bytes:
        headers = binding.headers(action=name, path=table.path)
        return only_result(name, self.connection.action(name, body, headers))


def _spell(at: At | None) -> tuple[str, str]:
    return ("", "") if at is None else (at[0], str(at[1]))


def _plan_filters(filters: Filters, requested: Sequence[str]) -> tuple[str, list[str]]:
    """The filter text, and the columns the scan needs in order of first use."""
    if not isinstance(filters, str):
        return build_document(filters, requested)
    names = json.loads(filters)["column_binding_names_by_index"] if filters else []
    return filters, [*names, *(name for name in requested if name not in names)]
