"""A real Flight server on a free port over in-memory tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from gateway.access.authentication import Authenticator
from gateway.access.control import Access
from gateway.catalog.editing import Editors
from gateway.catalog.names import TableName
from gateway.catalog.registry import Catalogs
from gateway.flight.actions import Actions
from gateway.flight.admission import Gate
from gateway.flight.browsing import Browsing
from gateway.flight.ddl_actions import DdlActions
from gateway.flight.exchanges import Exchanges
from gateway.flight.pending_creations import PendingCreations
from gateway.flight.puts import Puts
from gateway.flight.scans import Scans
from gateway.flight.server import FlightServer
from gateway.flight.statements import Statements
from gateway.flight.streams import ScanStreams
from gateway.flight.transaction_actions import TransactionActions
from gateway.flight.upload_watch import UploadWatch
from gateway.settings import LimitSettings, ScanSettings, TransactionSettings
from gateway.transactions.manager import TransactionManager
from gateway.wire.filter_parser import FilterLimits
from tests.airport import AirportClient
from tests.doubles import MemorySource, MemoryTable, memory_catalog


class MemoryService:
    """The RPC layer over doubles, with the parts that tests look at."""

    def __init__(
        self,
        scan: ScanSettings,
        limits: LimitSettings,
        transactions: TransactionSettings,
        access: Access | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.source = MemorySource()
        self.catalog = memory_catalog(self.source)
        self.catalogs = Catalogs([self.catalog], "lake", access)
        self.transactions = TransactionManager(transactions)
        self.streams = ScanStreams(scan)
        self.gate = Gate()
        scans = Scans(self.catalogs, self.transactions, self.streams, FilterLimits())
        browsing = Browsing(self.catalogs, scans)
        statements = Statements(self.transactions, limits)
        self.uploads = UploadWatch(limits, self.streams)
        puts = Puts(self.catalogs, statements, self.uploads, limits)
        transaction_actions = TransactionActions(self.catalogs, self.transactions)
        editors = Editors(self.catalogs)
        creations = PendingCreations(editors, self.transactions)
        ddl = DdlActions(editors, browsing, creations, self.transactions)
        actions = Actions(self.catalogs, browsing, scans, puts, transaction_actions, ddl, limits)
        exchanges = Exchanges(self.catalogs, statements, self.uploads, creations)
        self.server = FlightServer(
            "grpc://127.0.0.1:0", actions, browsing, scans, exchanges, puts, self.gate, authenticator
        )
        self.location = f"grpc://127.0.0.1:{self.server.port}"

    def add(self, schema: str, table: str, *versions: pa.Table) -> MemoryTable:
        return self.source.add(MemoryTable(TableName("lake", schema, table), list(versions)))


@pytest.fixture
def start_service() -> Iterator[Callable[..., MemoryService]]:
    running: list[MemoryService] = []

    def start(
        limits: LimitSettings | None = None,
        transactions: TransactionSettings | None = None,
        access: Access | None = None,
        authenticator: Authenticator | None = None,
        **scan: object,
    ) -> MemoryService:
        limits, transactions = limits or LimitSettings(), transactions or TransactionSettings()
        service = MemoryService(ScanSettings(**scan), limits, transactions, access, authenticator)
        service.streams.start()
        service.uploads.start(service.server)
        running.append(service)
        return service

    yield start
    for service in running:
        service.streams.close_all("the test ended")
        for peer in service.gate.peers():
            service.server.disconnect(peer)
        service.server.shutdown()
        service.streams.stop()
        service.uploads.stop()


@pytest.fixture
def service(start_service: Callable[..., MemoryService]) -> MemoryService:
    return start_service()


@pytest.fixture
def memory_client(service: MemoryService) -> Iterator[AirportClient]:
    with AirportClient(service.location, "lake") as attached:
        yield attached
