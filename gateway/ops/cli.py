"""The `deltaport` command: arguments, what is printed, exit codes.

Exit codes: 0 done, 1 something the gateway could not do, 2 wrong arguments or settings.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway import __version__
from gateway.catalog.names import parse_qualified
from gateway.errors import CancelledError, GatewayError, RequestError
from gateway.settings import Settings, load_settings
from gateway.telemetry.logging import configure_logging

if TYPE_CHECKING:
    from gateway.ops.assembly import Lake

_LOOK_SECONDS = 0.5
app = typer.Typer(
    help="Delta Lake behind one Arrow Flight address, for DuckDB's Airport extension.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
_SPARK_START_SECONDS = 240.0
out = Console()
err = Console(stderr=True)

CatalogOption = Annotated[
    str | None, typer.Option("--catalog", help="The table's catalog; without one, the only or the default one.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", envvar="DELTAPORT_CONFIG", help="Settings file; without one, the defaults are used."
    ),
]


def main() -> None:
    try:
        app()
    except RequestError as error:
        _print_error(error)
        sys.exit(2)
    except GatewayError as error:
        _print_error(error)
        sys.exit(1)


def _print_error(error: GatewayError) -> None:
    err.print(f"deltaport: {error.message}", style="red", markup=False, highlight=False)


def _settings(config: Path | None) -> Settings:
    settings = load_settings(config, os.environ)
    configure_logging(settings.log)
    return settings


@app.command()
def serve(
    config: ConfigOption = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Make a small demo schema in the default warehouse first.")
    ] = False,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C."""
    from gateway.ops.lifecycle import Gateway

    settings = _settings(config)
    gateway = Gateway(settings)
    wanted, again = _signals()
    gateway.start()
    _print_addresses(gateway.location, gateway.http_address, settings)
    try:
        if demo:
            _make_demo(gateway.service.lake, settings, wanted)
        _print_attach(gateway.location, settings)
        while not wanted.wait(_LOOK_SECONDS):
            pass  # a signal that comes right before the wait is noticed when the wait ends
        out.print("Stopping: waiting for running calls. Once more to end them.")
        gateway.drain(again)
    finally:
        gateway.stop()


def _signals() -> tuple[threading.Event, threading.Event]:
    """The first signal sets the first event, the next one the second."""
    first, second = threading.Event(), threading.Event()
    caught: SimpleQueue[int] = SimpleQueue()

    def set_events() -> None:
        for event in (first, second):
            caught.get()
            event.set()

    # Not in the handler: it runs in the thread that waits for the event, perhaps while that holds the event's lock.
    threading.Thread(target=set_events, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught_number, _frame: caught.put(caught_number))
    return first, second


def _print_addresses(location: str, http: str, settings: Settings) -> None:
    out.print(f"Deltaport {__version__}", style="bold")
    out.print(f"  Flight  {settings.flight.advertised or location}", highlight=False)
    out.print(f"  HTTP    {http}  (/livez /readyz /metrics)", highlight=False)


def _print_attach(location: str, settings: Settings) -> None:
    name = next((name for name, part in settings.catalogs.items() if part.default), next(iter(settings.catalogs)))
    address = settings.flight.advertised or location
    out.print("In DuckDB:")
    out.print("  INSTALL airport FROM community; LOAD airport;", highlight=False)
    out.print(f"  ATTACH '{name}' (TYPE airport, LOCATION '{address}');", highlight=False, soft_wrap=True)


def _make_demo(lake: Lake, settings: Settings, stopping: threading.Event) -> None:
    """Make the demo tables unless they are there; a failure is printed, and the gateway serves what it has."""
    from gateway.lake.demo import has_demo, make_demo

    name, warehouse = _demo_warehouse(settings)
    if has_demo(warehouse):
        return
    try:
        with _progress("Starting Spark to make the demo tables") as report:
            while not lake.spark.is_ready():
                if stopping.wait(0.1):
                    return

            def go_on(table: str) -> None:
                if stopping.is_set():
                    raise CancelledError("the gateway is stopping")
                report(f"Making {table}")

            lake.writer_locks.of(name).check()
            make_demo(lake.spark, warehouse, settings.rowids.column, go_on)
        lake.catalogs.get(name).refresh()
    except GatewayError as error:
        err.print(f"No demo tables: {error.message}", style="red", markup=False, highlight=False)


def _demo_warehouse(settings: Settings) -> tuple[str, Path]:
    for name, catalog in settings.catalogs.items():
        if (catalog.default or len(settings.catalogs) == 1) and catalog.warehouse and "://" not in catalog.warehouse:
            return name, Path(catalog.warehouse).expanduser().resolve()
    raise RequestError("--demo needs a default catalog with a local warehouse")


@app.command()
def tables(config: ConfigOption = None) -> None:
    """List catalogs, schemas and tables, with what each table can do."""
    from gateway.ops.assembly import build_lake

    lake = build_lake(_settings(config))
    shown = Table(box=None, pad_edge=False)
    for title in ("catalog", "schema", "table"):
        shown.add_column(title)
    for title in ("version", "rows", "bytes", "files"):
        shown.add_column(title, justify="right")
    shown.add_column("can")
    with _progress("Reading the tables' logs"):
        for catalog in lake.catalogs:
            catalog.refresh()
    for catalog in lake.catalogs:
        listing = catalog.listing()
        filled = {schema for schema, _ in [*listing.tables, *listing.broken]}
        for key, schema in listing.schemas.items():
            if key not in filled:
                shown.add_row(catalog.name, schema, "", "", "", "", "", "(no tables)")
        for table in listing.tables.values():
            about = table.describe()
            rows = "?" if about.size.rows is None else f"{about.size.rows:,}"
            size = (f"{about.version}", rows, f"{about.size.bytes:,}", f"{about.size.files:,}")
            shown.add_row(catalog.name, table.name.schema, table.name.table, *size, ", ".join(about.abilities))
        for name, reason in listing.broken.values():
            shown.add_row(catalog.name, name.schema, name.table, "", "", "", "", f"broken: {reason}", style="red")
    lake.refreshers.shutdown()
    out.print(shown)


@app.command()
def adopt(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="A table that others made.")],
    catalog: CatalogOption = None,
    config: ConfigOption = None,
) -> None:
    """Give every row of a table an id, so that UPDATE and DELETE work on it. Run it again after an early end."""
    from gateway.lake.delta_table import DeltaTable
    from gateway.lake.spark.engine import Spark
    from gateway.ops.assembly import build_lake

    schema, name = parse_qualified(table)
    settings = _settings(config)
    # Nothing else is done with this Spark, so it has nothing to warm up for.
    spark = Spark(settings.spark.model_copy(update={"warm_up": False}), fsync=settings.write.fsync)
    lake = build_lake(settings, spark)
    only = next(iter(settings.catalogs)) if len(settings.catalogs) == 1 else None
    found = lake.catalogs.get(catalog or only).table(schema, name)
    assert isinstance(found, DeltaTable)
    adoption = found.adoption()
    adoption.check()
    lake.spark.start()
    try:
        with _progress("Starting Spark"):
            lake.spark.wait_ready(_SPARK_START_SECONDS)
        lake.writer_locks.of(found.name.catalog).check()
        with _rows_bar(f"Giving ids to {found.name}") as report:
            adopted = adoption.run(report)
    finally:
        lake.spark.stop()
        lake.refreshers.shutdown()
    if adopted.commits == 0:
        out.print(f"{found.name}: every row has an id already", highlight=False, markup=False)
    else:
        made = "1 commit" if adopted.commits == 1 else f"{adopted.commits:,} commits"
        given = "1 id" if adopted.rows == 1 else f"{adopted.rows:,} ids"
        summary = f"{found.name}: {given} given in {made}; it is at version {adopted.version} now"
        out.print(summary, highlight=False, markup=False)


@app.command()
def undrop(
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE", help="A table that was dropped.")],
    catalog: CatalogOption = None,
    config: ConfigOption = None,
) -> None:
    """Bring back the table that was dropped last under this name; a running gateway finds it by itself."""
    from gateway.ops.assembly import build_lake

    schema, name = parse_qualified(table)
    settings = _settings(config)
    lake = build_lake(settings)
    try:
        only = next(iter(settings.catalogs)) if len(settings.catalogs) == 1 else None
        found = lake.warehouses[lake.catalogs.get(catalog or only).name].undrop(schema, name)
    finally:
        lake.refreshers.shutdown()
    dropped_at = found.dropped_at.isoformat(sep=" ", timespec="seconds")
    out.print(f"{found.schema}.{found.table}, dropped at {dropped_at}, is back", highlight=False, markup=False)


@contextlib.contextmanager
def _rows_bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of rows done on a terminal, a line per step elsewhere."""
    if not err.is_terminal:
        yield lambda done, total: err.print(f"{words}: {done:,} of {total:,} rows", highlight=False, markup=False)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@app.command("check-config")
def check_config(config: ConfigOption = None) -> None:
    """Print the settings in force, secrets redacted."""
    from gateway.ops.assembly import access_of

    settings = load_settings(config, os.environ)
    access_of(settings.access)  # the access files are settings, too
    out.print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False).rstrip(), markup=False, highlight=False)


token_app = typer.Typer(help="Tokens of callers.", no_args_is_help=True)
app.add_typer(token_app, name="token")


@token_app.command("new")
def new_token_command(
    name: Annotated[str, typer.Argument(help="Who calls with it.")],
    role: Annotated[list[str], typer.Option("--role", help="A role of the access file; may be repeated.")],
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires; without, never.")] = None,
) -> None:
    """Make a token: it is shown once, with the line for the file of `access.tokens`."""
    from gateway.access.tokens import new_token

    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    token, entry = new_token(name, frozenset(role), None if expires is None else expires.replace(microsecond=0))
    err.print("The token, which is not kept anywhere:", highlight=False)
    out.print(token, highlight=False, soft_wrap=True, markup=False)
    err.print("The line for the file of access.tokens; removing it revokes the token:", highlight=False)
    out.print(entry.line(), highlight=False, soft_wrap=True, markup=False)


@app.command("who-can")
def who_can(
    action: Annotated[str, typer.Argument(help="read, insert, update, delete, ddl, maintain, query or admin.")],
    table: Annotated[str, typer.Argument(metavar="SCHEMA.TABLE")],
    catalog: CatalogOption = None,
    config: ConfigOption = None,
) -> None:
    """List the roles and callers that may do something to a table, and why."""
    from gateway.ops.permissions import callers_who_can

    settings = _settings(config)
    only = next((name for name, part in settings.catalogs.items() if part.default), next(iter(settings.catalogs)))
    shown = Table(box=None, pad_edge=False)
    for title in ("caller", "may", "because"):
        shown.add_column(title)
    for caller, decision in callers_who_can(settings.access, action, catalog or only, *parse_qualified(table)):
        shown.add_row(caller, "yes" if decision.allowed else "no", decision.reason)
    out.print(shown)


@app.command()
def version() -> None:
    """Print the version."""
    out.print(__version__, highlight=False)


@app.command("fetch-jars")
def fetch_jars_command() -> None:
    """Fetch Delta's jars into this environment, once; starting then needs no network."""
    from gateway.lake.spark.jars import fetch_jars, find_java

    with _progress("Fetching Delta's jars") as report:
        fetch_jars(find_java(), report)


@contextlib.contextmanager
def _progress(words: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, and lines that stay, there as elsewhere."""
    with err.status(words) if err.is_terminal else contextlib.nullcontext():
        if not err.is_terminal:
            err.print(words, highlight=False)
        yield lambda line: err.print(line, highlight=False, markup=False)
