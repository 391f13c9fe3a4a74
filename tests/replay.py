"""Captured statements sent again, to a server under test.

    from tests.captures import statements
    from tests.replay import Replay

    with Replay(location) as replay:
        for statement in statements("select"):
            for reply in replay.run(statement):
                ...  # reply.rpc is the captured call, reply.value what the server said now

Bodies and headers go out byte for byte as captured, but for what the server hands
out itself: the port, transaction ids, tickets and table descriptors. Captured
descriptors are PATH [schema, table]; the present ones are learned from the
server's own `list_schemas` (asked for once, if the statement itself does not),
from AT replies and from DDL replies, and can be given as `descriptors`. The tables
of the captures must exist: `demo.people` (id int64 not null, name, age int32, city),
`demo.people_stats` (the same, with statistics), `demo.parts` (the same, any number
of endpoints), `alt.a1` (the same), in catalog `db`; `catalogs` maps `db` and `lazy`
to other names. Ad-hoc calls (`take-flight`) name their descriptor themselves and
keep it.

Replies are judged as `tests.airport` judges them. `value` is: a `Listing`, a
`VersionInfo`, the transaction id, a `Flight` (flight_info and DDL), endpoints,
statistics as a dict, `Contents` (create_schema), a pa.Table (DoGet, full width; None
where the server gave fewer endpoints than the captured one), a
FlightInfo (GetFlightInfo), a list of FlightInfo (ListFlights), `Changed`
(DoExchange), or the raw results of another action. An error raises where the
capture has status OK, and is kept in `error` where the capture shows an error.

Limits: a DoExchange is sent to its end before the scan below it begins, with the
captured row ids; uploads too long to be captured and functions cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from tests.airport import requests
from tests.airport.connection import Connection, Headers, Identity
from tests.airport.exchange import upload
from tests.airport.packing import Pairs, ProtocolViolation, pack, unpack_reply, unpack_request
from tests.airport.replies import (
    REUSE_CONNECTION,
    Flight,
    decode_catalog_version,
    decode_contents,
    decode_endpoints,
    decode_flight,
    decode_info,
    decode_listing,
    decode_statistics,
    decode_transaction,
    first_location,
    flight_path,
    info_schema,
    judge_flights,
    judge_stream_schema,
    only_result,
    open_contents,
)
from tests.airport.scan import read_chunks
from tests.captures import Rpc, Statement

_TABLE_ACTIONS = {
    "flight_info",
    "create_table",
    "add_column",
    "remove_column",
    "rename_column",
    "rename_table",
    "change_column_type",
    "set_default",
    "set_not_null",
    "drop_not_null",
    "add_field",
    "rename_field",
    "remove_field",
}


@dataclass(frozen=True)
class Reply:
    """What the server under test said to one captured call."""

    rpc: Rpc
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Substitutions:
    """What differs between the captured world and the server's. All may stay empty.

    A `token` goes on every call, in place of captured ones.
    """

    catalogs: Mapping[str, str] | None = None
    descriptors: Mapping[tuple[str, str], flight.FlightDescriptor] | None = None
    token: str | None = None


def replay(statement: Statement, location: str, substitutions: Substitutions | None = None) -> list[Reply]:
    """One statement on a connection of its own; use `Replay` for statements that belong together."""
    with Replay(location, substitutions) as session:
        return session.run(statement)


class Replay:
    """A captured session against one server; remembers transaction ids and tables between statements."""

    def __init__(self, location: str, substitutions: Substitutions | None = None) -> None:
        given = substitutions or Substitutions()
        self.connection = Connection(location)
        self._catalogs = dict(given.catalogs or {})
        self._given = dict(given.descriptors or {})
        self._token = given.token
        self._tables: dict[str, dict[tuple[str, str], Flight]] = {}
        self._transactions: dict[str, str | None] = {}
        self._looked_up: dict[tuple[str, str], Flight] = {}
        # Per trace: the table being scanned and its endpoints not yet read.
        self._bound: dict[str, Flight] = {}
        self._endpoints: dict[str, list[flight.FlightEndpoint]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def run(self, statement: Statement) -> list[Reply]:
        """Every call of the statement in captured order."""
        return [self._send(rpc) for rpc in statement.rpcs]

    def _send(self, rpc: Rpc) -> Reply:
        sender: Callable[[Rpc], Any] = {
            "DoAction": self._action,
            "DoGet": self._get,
            "DoExchange": self._exchange,
            "GetFlightInfo": self._get_flight_info,
            "ListFlights": self._list_flights,
        }[rpc.method]
        try:
            return Reply(rpc, sender(rpc))
        except (pa.ArrowException, OSError, KeyError, NotImplementedError) as error:
            if rpc.status == "OK":
                raise
            return Reply(rpc, error=error)

    def _action(self, rpc: Rpc) -> Any:
        results = self.connection.action(rpc.action, self._body(rpc), self._headers(rpc))
        if rpc.action in ("drop_table", "drop_schema", "echo"):
            return results
        return self._decode(rpc, only_result(rpc.action, results))

    def _decode(self, rpc: Rpc, raw: bytes) -> Any:
        catalog = self._catalog(rpc)
        value: Any
        match rpc.action:
            case "create_transaction":
                value = decode_transaction(raw)
                self._transactions[rpc.results[0]["msgpack"]["identifier"]] = value
            case "catalog_version":
                value = decode_catalog_version(raw)
            case "list_schemas":
                value = decode_listing(raw)
                self._learn(catalog, raw)
            case "endpoints":
                value = decode_endpoints(raw)
                self._endpoints[rpc.header("airport-trace-id") or ""] = list(value)
            case "column_statistics":
                table = self._table(rpc)
                value = decode_statistics(raw, table.schema.field(table.position(rpc.decoded["column_name"])))
            case "create_schema":
                value = decode_contents(unpack_reply(raw, rpc.action), rpc.action)
            case name if name in _TABLE_ACTIONS:
                value = self._decode_table(rpc, raw, catalog)
            case _:
                raise NotImplementedError(f"no reply of {rpc.action} is known here")
        return value

    def _decode_table(self, rpc: Rpc, raw: bytes, catalog: str) -> Flight:
        schema = rpc.decoded.get("schema_name") or rpc.decoded.get("schema") or rpc.descriptor.path[0].decode()
        value = decode_flight(decode_info(raw, rpc.action), catalog, schema)
        trace = rpc.header("airport-trace-id")
        if rpc.action != "flight_info":
            self._tables.setdefault(catalog, {})[value.schema_name, value.name] = value
        elif trace is None:
            self._looked_up[value.schema_name, value.name] = value
        else:
            self._bound[trace] = value
        return value

    def _get(self, rpc: Rpc) -> pa.Table | None:
        trace = rpc.header("airport-trace-id") or ""
        if not self._endpoints[trace]:
            return None  # the server under test needs fewer endpoints, or none for a table without rows
        endpoint = self._endpoints[trace].pop(0)
        declared = (self._bound.get(trace) or self._table(rpc)).schema
        uri = first_location(endpoint)
        location = None if uri == REUSE_CONNECTION else uri
        with self.connection.get(endpoint.ticket, self._headers(rpc), location) as reader:
            judge_stream_schema(declared, reader.schema)
            return pa.Table.from_batches([chunk.batch for chunk in read_chunks(reader)], reader.schema)

    def _exchange(self, rpc: Rpc) -> Any:
        if rpc.upload is None or rpc.header("airport-operation") not in ("insert", "update", "delete"):
            raise NotImplementedError(f"{rpc.statement}: this exchange cannot be replayed")
        schema, batches = rpc.upload
        returning = rpc.header("return-chunks") == "1"
        streams = self.connection.exchange(self._table(rpc).descriptor, self._headers(rpc))
        return upload(streams, schema, batches, returning=returning, judge_reply=lambda _schema: None)

    def _get_flight_info(self, rpc: Rpc) -> flight.FlightInfo:
        info = self.connection.flight_info(rpc.descriptor, self._headers(rpc))
        if info.descriptor != rpc.descriptor:
            raise ProtocolViolation(f"GetFlightInfo: answered for {info.descriptor}, asked for {rpc.descriptor}")
        bound = Flight(info.descriptor, info_schema(info, "GetFlightInfo"), {}, info.total_records)
        self._bound[rpc.header("airport-trace-id") or ""] = bound
        return info

    def _list_flights(self, rpc: Rpc) -> list[flight.FlightInfo]:
        return self.connection.list_flights(rpc.fields.get("criteria", "").encode(), self._headers(rpc))

    # Substitution

    def _identity(self, catalog: str) -> Identity:
        """For calls the capture does not hold."""
        return Identity(self.connection.location, catalog, self._token)

    def _catalog(self, rpc: Rpc) -> str:
        name = rpc.header("airport-catalog") or ""
        return self._catalogs.get(name, name)

    def _table(self, rpc: Rpc) -> Flight:
        """The table a captured PATH descriptor stood for, as this server tells it."""
        catalog = self._catalog(rpc)
        if catalog not in self._tables:
            headers = self._identity(catalog).headers(action="list_schemas")
            raw = self.connection.action("list_schemas", requests.list_schemas(catalog), headers)
            self._learn(catalog, only_result("list_schemas", raw))
        described = rpc.descriptor
        path = (
            described.path if described is not None else (rpc.header("airport-flight-path") or "").encode().split(b"/")
        )
        schema, name = (part.decode() for part in path)
        return self._tables[catalog][schema, name]

    def _learn(self, catalog: str, raw: bytes) -> None:
        tables = self._tables.setdefault(catalog, {})
        for entry in decode_listing(raw).schemas:
            for table in self._open(catalog, entry.name, entry.contents):
                tables[table.schema_name, table.name] = table

    def _open(self, catalog: str, schema: str, contents: Any) -> list[Flight]:
        if not contents.is_empty:
            return open_contents(contents, catalog, schema)
        more = {"airport-list-flights-filter-catalog": catalog, "airport-list-flights-filter-schema": schema}
        headers = self._identity(catalog).headers(more=more)
        return judge_flights(self.connection.list_flights(b"", headers), catalog, schema)

    def _descriptor(self, rpc: Rpc) -> flight.FlightDescriptor | None:
        """What to send in place of the captured descriptor; ad-hoc calls keep theirs."""
        if rpc.header("airport-catalog") is None:
            return rpc.descriptor
        trace = rpc.header("airport-trace-id")
        if trace in self._bound:
            return self._bound[trace].descriptor
        table = self._table(rpc)
        key = (table.schema_name, table.name)
        if rpc.action == "flight_info" and trace is not None:  # the second of two asks with the first one's answer
            table = self._looked_up.get(key, table)
        return self._given.get(key, table.descriptor)

    def _body(self, rpc: Rpc) -> bytes:
        if (rpc.descriptor is None and not self._catalogs) or rpc.action == "echo":
            return rpc.body
        request = unpack_request(rpc.body)
        return pack(Pairs((key, self._substitute(rpc, key.decode(), value)) for key, value in request))

    def _substitute(self, rpc: Rpc, key: str, value: Any) -> Any:
        if key in ("descriptor", "flight_descriptor"):
            return self._descriptor(rpc).serialize()
        if key in ("catalog", "catalog_name"):
            return self._catalogs.get(value.decode(), value.decode())
        return value

    def _headers(self, rpc: Rpc) -> Headers:
        pairs = []
        for name, value in rpc.headers:
            sent: str | None = value
            if name == "authority":
                sent = self.connection.location
            elif name in ("airport-catalog", "airport-list-flights-filter-catalog"):
                sent = self._catalogs.get(value, value)
            elif name == "airport-transaction-id":
                sent = self._transaction(value, rpc)
            elif name == "airport-flight-path":
                descriptor = self._descriptor(rpc)
                sent = value if descriptor is None else flight_path(descriptor)
            elif name == "authorization" and self._token is not None:
                sent = None
            if sent:
                pairs.append((name, sent))
        if self._token is not None:
            pairs.append(("authorization", f"Bearer {self._token}"))
        return tuple(pairs)

    def _transaction(self, captured: str, rpc: Rpc) -> str | None:
        """The server's id for a captured one; a statement taken out of its BEGIN block gets a fresh one."""
        if captured not in self._transactions:
            catalog = self._catalog(rpc)
            headers = self._identity(catalog).headers(action="create_transaction")
            body = requests.create_transaction(catalog)
            results = self.connection.action("create_transaction", body, headers)
            self._transactions[captured] = decode_transaction(only_result("create_transaction", results))
        return self._transactions[captured]
