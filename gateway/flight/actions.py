"""The dispatch table: an action's name to what decodes, handles and encodes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyarrow import flight

from gateway.catalog.calls import Call
from gateway.catalog.guarding import seen_by
from gateway.catalog.registry import Catalogs
from gateway.errors import RequestError, UnsupportedError
from gateway.flight.browsing import Browsing
from gateway.flight.ddl_actions import DdlActions
from gateway.flight.puts import Puts
from gateway.flight.scans import REUSE_CONNECTION, Scans
from gateway.flight.transaction_actions import TransactionActions
from gateway.settings import LimitSettings
from gateway.wire.listing import encode_version
from gateway.wire.messages import CatalogRequest, EndpointsRequest, FlightInfoRequest, StatisticsRequest
from gateway.wire.packing import pack
from gateway.wire.tickets import DATABASES_TICKET, is_databases

Handler = Callable[[Call, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Action:
    description: str
    handle: Handler


class Actions:
    def __init__(
        self,
        catalogs: Catalogs,
        browsing: Browsing,
        scans: Scans,
        puts: Puts,
        transactions: TransactionActions,
        ddl: DdlActions,
        limits: LimitSettings,
    ) -> None:
        self._catalogs = catalogs
        self._browsing = browsing
        self._scans = scans
        self._limits = limits
        self._table: dict[str, Action] = {
            "list_schemas": Action("Every schema and table of a catalog", self._list_schemas),
            "catalog_version": Action("A number that moves when the catalog changes", self._catalog_version),
            "create_transaction": Action("An id under which statements read one version", transactions.create),
            "commit_transaction": Action("Ends a transaction", transactions.commit),
            "rollback_transaction": Action("Undoes what a transaction wrote", transactions.rollback),
            "get_transaction_status": Action("What became of a transaction", transactions.status),
            "endpoints": Action("Where to read a table: tickets for DoGet", self._endpoints),
            "flight_info": Action("A table at a version or time", self._flight_info),
            "column_statistics": Action("Bounds of a column, from the Delta log", self._column_statistics),
            "delete": Action("Delete rows by their ids (JSON)", puts.delete),
            **{name: Action(*action) for name, action in ddl.actions().items()},
        }

    def descriptions(self) -> list[tuple[str, str]]:
        return [(name, action.description) for name, action in self._table.items()]

    def label(self, name: str) -> str:
        """The name where it is known, else a fixed word: client-supplied names never become metric labels."""
        return name if name in self._table else "unknown"

    def run(self, call: Call, name: str, body: bytes) -> bytes:
        action = self._table.get(name)
        if action is None:
            raise UnsupportedError(f"unknown action '{name[:60]}'")
        if len(body) > self._limits.action_bytes:
            raise RequestError(f"{name}: the body is larger than {self._limits.action_bytes} bytes")
        return action.handle(call, body)

    def _list_schemas(self, call: Call, body: bytes) -> bytes:
        return self._browsing.list_schemas(call, CatalogRequest.decode("list_schemas", body).catalog)

    def _catalog_version(self, call: Call, body: bytes) -> bytes:
        catalog = seen_by(call, self._catalogs).get(CatalogRequest.decode("catalog_version", body).catalog)
        return pack(encode_version(catalog.version))

    def _endpoints(self, call: Call, body: bytes) -> bytes:
        request = EndpointsRequest.decode("endpoints", body)
        if is_databases(request.descriptor):
            return pack([flight.FlightEndpoint(DATABASES_TICKET, [REUSE_CONNECTION]).serialize()])
        return pack([endpoint.serialize() for endpoint in self._scans.endpoints(call, request)])

    def _flight_info(self, call: Call, body: bytes) -> bytes:
        info: bytes = self._browsing.flight_info(call, FlightInfoRequest.decode("flight_info", body)).serialize()
        return info

    def _column_statistics(self, call: Call, body: bytes) -> bytes:
        return self._scans.column_statistics(call, StatisticsRequest.decode("column_statistics", body))
