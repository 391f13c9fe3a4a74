"""Builds the object graph; the only place that sees every room."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from gateway.access.authentication import Authenticator, CheckCredentials, TrustEverybody
from gateway.access.control import Access, EverythingAllowed, RuledAccess
from gateway.access.policy_file import parse_access
from gateway.access.tokens import parse_tokens
from gateway.access.watched_file import WatchedFile
from gateway.catalog.changes import Traces
from gateway.catalog.editing import Editors
from gateway.catalog.names import check_name
from gateway.catalog.registry import Catalog, Catalogs
from gateway.errors import RequestError, UnavailableError
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
from gateway.lake.commits.writer_lock import WriterLocks
from gateway.lake.ddl.editable_warehouse import EditableWarehouse
from gateway.lake.ddl.spark_alter import forget_log
from gateway.lake.delta_table import DeltaTable, TableTools
from gateway.lake.reading.reader import Readers
from gateway.lake.spark.engine import Profile, Spark, SparkState
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.staging import StagingFolder
from gateway.lake.writing.traces import traces_of
from gateway.settings import AccessSettings, CatalogSettings, FlightSettings, Settings
from gateway.telemetry import metrics
from gateway.transactions.ids import TransactionId
from gateway.transactions.manager import TransactionManager
from gateway.wire.filter_parser import FilterLimits


@dataclass(frozen=True)
class Lake:
    """What serves tables: enough for the command line, which needs no server."""

    settings: Settings
    spark: Spark
    staging: StagingFolder
    transactions: TransactionManager
    writer_locks: WriterLocks
    catalogs: Catalogs
    warehouses: dict[str, EditableWarehouse]
    refreshers: ThreadPoolExecutor
    authenticator: Authenticator


@dataclass(frozen=True)
class Service:
    lake: Lake
    streams: ScanStreams
    uploads: UploadWatch
    gate: Gate
    server: FlightServer


def build_lake(settings: Settings, spark: Spark | None = None) -> Lake:
    """A Spark that is given is used as it is: a process has but one, and its owner starts and stops it."""
    spark = spark or Spark(settings.spark, on_state=_show_spark_state, fsync=settings.write.fsync)
    readers = Readers(settings.scan, spark)
    executor = ThreadPoolExecutor(settings.discovery.threads, thread_name_prefix="refresh")

    def find_in_log(transaction: TransactionId, issued_ms: int) -> Traces:
        tables = [table for catalog in catalogs for table in catalog.listing().tables.values()]
        # The log of a table that cannot be served may record the transaction all the same.
        tables += [catalog.source.open(name) for catalog in catalogs for name, _ in catalog.listing().broken.values()]
        logs: dict[Hashable, Folder] = {
            table.name.key: table.log_folder for table in tables if isinstance(table, DeltaTable)
        }
        return traces_of(logs, transaction, issued_ms)

    transactions = TransactionManager(
        settings.transactions, find_in_log=find_in_log, commit_seconds=settings.write.wait_seconds
    )
    staging = StagingFolder(settings.staging)

    tools = TableTools(
        readers,
        spark,
        staging,
        settings.write,
        settings.rowids.column,
        settings.scan.statistics,
        adopts=settings.rowids.adopt == "auto",
    )

    roots = {name: _root(part, fsync=settings.write.fsync) for name, part in settings.catalogs.items()}
    locks = WriterLocks(spark, roots)

    def replaced(uri: str) -> None:
        if spark.state is SparkState.READY:
            with spark.session(Profile.LATENCY) as session:
                forget_log(session, uri)

    def warehouse(name: str, part: CatalogSettings) -> EditableWarehouse:
        guarded = replace(tools, writer_lock=locks.of(name))
        return EditableWarehouse(
            roots[name],
            part.tables,
            lambda table, folder: DeltaTable(table, folder, guarded),
            settings.rowids.column,
            settings.ddl,
            check_writer=locks.of(name).check,
            replaced=replaced,
        )

    warehouses = {name: warehouse(name, part) for name, part in settings.catalogs.items()}
    access, authenticator = access_of(settings.access)
    catalogs = Catalogs(
        [_catalog(name, part, warehouses[name], executor) for name, part in settings.catalogs.items()],
        next((name for name, part in settings.catalogs.items() if part.default), None),
        access,
    )
    return Lake(settings, spark, staging, transactions, locks, catalogs, warehouses, executor, authenticator)


def build_service(settings: Settings, spark: Spark | None = None) -> Service:
    lake = build_lake(settings, spark)
    transactions = lake.transactions
    streams = ScanStreams(settings.scan)
    limits = FilterLimits(settings.filters.depth, settings.filters.in_items, settings.limits.field_bytes)
    scans = Scans(lake.catalogs, transactions, streams, limits)
    browsing = Browsing(lake.catalogs, scans)
    gate = Gate()
    statements = Statements(transactions, settings.limits)
    uploads = UploadWatch(settings.limits, streams)
    puts = Puts(lake.catalogs, statements, uploads, settings.limits)
    editors = Editors(lake.catalogs)
    creations = PendingCreations(editors, transactions)
    actions = Actions(
        lake.catalogs,
        browsing,
        scans,
        puts,
        TransactionActions(lake.catalogs, transactions),
        DdlActions(editors, browsing, creations, transactions),
        settings.limits,
    )
    exchanges = Exchanges(lake.catalogs, statements, uploads, creations)
    address = f"{settings.flight.host}:{settings.flight.port}"
    certificate = _certificate(settings.flight)
    location = f"{scheme_of(settings.flight)}://{address}"
    try:
        server = FlightServer(
            location, actions, browsing, scans, exchanges, puts, gate, lake.authenticator, certificate
        )
    except pa.ArrowException as error:  # says no more than that it did not start
        raise UnavailableError(f"cannot listen on {address} (flight.host, flight.port): is the port taken?") from error
    return Service(lake, streams, uploads, gate, server)


def scheme_of(settings: FlightSettings) -> str:
    return "grpc" if settings.tls_certificate is None else "grpc+tls"


def _certificate(settings: FlightSettings) -> tuple[str, str] | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return _pem("flight.tls_certificate", settings.tls_certificate), _pem("flight.tls_key", settings.tls_key)


def _pem(key: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"settings: {key}: cannot read {path}") from error
    if "-----BEGIN " not in text:
        raise RequestError(f"settings: {key}: {path} is not a PEM file")
    return text


def access_of(settings: AccessSettings) -> tuple[Access, Authenticator]:
    """Who decides and who asks for credentials. A file that cannot be used is a RequestError."""
    if settings.file is None:
        return EverythingAllowed(), TrustEverybody()
    rules = WatchedFile(Path(settings.file), parse_access, what="access.file")
    if settings.tokens is None:
        return RuledAccess(rules), CheckCredentials(rules.get)
    tokens = WatchedFile(Path(settings.tokens), parse_tokens, what="access.tokens")
    return RuledAccess(rules), CheckCredentials(rules.get, tokens.get)


def _catalog(
    name: str,
    settings: CatalogSettings,
    warehouse: EditableWarehouse,
    executor: ThreadPoolExecutor,
) -> Catalog:
    def run_all(jobs: Iterable[Callable[[], None]]) -> None:
        for future in [executor.submit(job) for job in jobs]:
            future.result()

    # Versions start at the clock, so that a restarted gateway never repeats a number with other contents.
    first_version = time.time_ns() // 1_000_000
    return Catalog(check_name("catalog", name), warehouse, first_version, run_all, settings.description)


def _root(settings: CatalogSettings, *, fsync: bool) -> Folder | None:
    return None if settings.warehouse is None else Folder.open(settings.warehouse, fsync=fsync)


def _show_spark_state(state: SparkState) -> None:
    for each in SparkState:
        metrics.SPARK_STATE.labels(each.value).set(each is state)
