"""The catalogs and their tables, and the look-ups that raise NotFound once for everyone.

What a catalog holds is an immutable listing that a refresh replaces. Statements
read the listing and their own table's log, never the warehouse; refreshes run
in the background and when a client attaches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

import structlog

from gateway.access.control import Access, EverythingAllowed
from gateway.catalog.capabilities import Readable, Snapshot
from gateway.catalog.names import TableName, check_name, fold, is_name
from gateway.errors import GatewayError, NotFoundError, UnavailableError
from gateway.wire.tickets import SchemaStamp

log = structlog.get_logger(__name__)

TableKey = tuple[str, str]
K = TypeVar("K")
V = TypeVar("V")


class Source(Protocol):
    """Where a catalog's tables come from."""

    def schemas(self) -> Iterable[str]:
        """Names of the schemas that exist, empty ones too."""

    def tables(self) -> Iterable[tuple[str, str]]:
        """Schema and table names that exist."""

    def has_table(self, schema: str, table: str) -> tuple[str, str] | None:
        """The names as written where this one table exists; reads nothing else."""

    def open(self, name: TableName) -> Readable: ...


@dataclass(frozen=True, slots=True)
class Listing:
    """What a catalog holds at one moment; keys are folded names."""

    schemas: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[TableKey, Readable] = field(default_factory=dict)
    broken: Mapping[TableKey, tuple[TableName, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Edited:
    """The names that edits of the gateway's own changed."""

    schemas: set[str] = field(default_factory=set)
    tables: set[TableKey] = field(default_factory=set)


class Catalog:
    """One catalog. Thread-safe: readers take the listing as it is, `_refresh_lock` lets one refresh run at a time,
    `_listing_lock` guards what replaces the listing."""

    def __init__(
        self,
        name: str,
        source: Source,
        first_version: int,
        run_all: Callable[[Iterable[Callable[[], None]]], None],
        description: str = "",
    ) -> None:
        self.name = name
        self.description = description
        self._source = source
        self._run_all = run_all
        self._refresh_lock = threading.Lock()
        self._refreshes_begun = 0
        self._listing_lock = threading.Lock()
        self._edited: _Edited | None = None  # since the refresh that runs began
        self._listing = Listing()
        self._version = first_version
        self._loaded = threading.Event()

    @property
    def version(self) -> int:
        """Moves when the set of tables or a schema changes; asked for by every statement."""
        return self._version

    def listing(self) -> Listing:
        """The listing as of the last refresh; waits for the first."""
        if not self._loaded.is_set():
            self.refresh()
        return self._listing

    def last_listing(self) -> Listing:
        """The listing as of the last refresh, empty before the first; never waits."""
        return self._listing

    def table(self, schema: str, table: str) -> Readable:
        check_name("schema", schema)
        check_name("table", table)
        key = fold(schema), fold(table)
        listing = self.listing()
        if (found := listing.tables.get(key)) is not None:
            return found
        if (broken := listing.broken.get(key)) is not None:
            raise UnavailableError(f"table '{schema}.{table}' cannot be read: {broken[1]}")
        if (made_since := self._find_new(schema, table)) is not None:
            return made_since
        if fold(schema) not in self._listing.schemas:
            raise NotFoundError(f"schema '{schema}' not found")
        raise NotFoundError(f"table '{schema}.{table}' not found")

    def forget(self, table: Readable) -> None:
        """A statement found this table gone; the next refresh would too."""
        with self._listing_lock:
            key = fold(table.name.schema), fold(table.name.table)
            if self._listing.tables.get(key) is table:
                if self._edited is not None:  # a refresh that runs may have passed it while it was there
                    self._edited.tables.add(key)
                tables = {k: v for k, v in self._listing.tables.items() if k != key}
                self._replace_listing(self._listing.schemas, tables, self._listing.broken)

    @property
    def source(self) -> Source:
        return self._source

    def edit(self, change: Callable[[Listing], Listing]) -> None:
        """Apply a change that the gateway itself made: it is listed at once, and the version moves."""
        self.listing()
        with self._listing_lock:
            new = change(self._listing)
            if self._edited is not None:
                self._edited.schemas |= _changed_keys(self._listing.schemas, new.schemas)
                self._edited.tables |= _changed_keys(self._listing.tables, new.tables)
                self._edited.tables |= _changed_keys(self._listing.broken, new.broken)
            self._replace_listing(new.schemas, new.tables, new.broken, schema_changed=True)

    def refresh(self) -> None:
        """List the source and read every table's log.

        One refresh runs at a time. A caller that comes meanwhile cannot use its result, which may
        miss a table made before the call; the next refresh serves all who wait.
        """
        begun = self._refreshes_begun
        with self._refresh_lock:
            if self._refreshes_begun > begun:
                return
            self._refreshes_begun += 1
            self._refresh()

    def _refresh(self) -> None:
        """Read everything once. Of what is edited meanwhile it may see half, so there the edits count."""
        with self._listing_lock:
            known = self._listing.tables
            edited = self._edited = _Edited()
        schemas: dict[str, str] = {}
        for schema_name in self._source.schemas():
            schemas.setdefault(fold(schema_name), schema_name)
        tables: dict[TableKey, Readable] = {}
        broken: dict[TableKey, tuple[TableName, str]] = {}
        changed: list[TableName] = []

        def inspect(schema: str, table: str) -> None:
            key = fold(schema), fold(table)
            name = TableName(self.name, schema, table)
            try:
                readable = known[key] if key in known and known[key].name == name else self._source.open(name)
                if readable.refresh():
                    changed.append(name)
                tables[key] = readable
            except GatewayError as error:
                broken[key] = name, error.message

        self._run_all([_call(inspect, *names) for names in _without_duplicates(schemas, self._source.tables())])
        with self._listing_lock:
            self._edited = None
            now = self._listing
            schemas = _with_edits(schemas, now.schemas, edited.schemas)
            tables = _with_edits(tables, now.tables, edited.tables)
            broken = _with_edits(broken, now.broken, edited.tables)
            self._report_broken(broken)
            self._replace_listing(schemas, tables, broken, schema_changed=bool(changed))
            self._loaded.set()

    def _replace_listing(
        self,
        schemas: Mapping[str, str],
        tables: Mapping[TableKey, Readable],
        broken: Mapping[TableKey, tuple[TableName, str]],
        *,
        schema_changed: bool = False,
    ) -> None:
        old = self._listing
        same = not schema_changed and old.schemas == schemas and old.tables.keys() == tables.keys()
        same = same and all(tables[key] is old.tables[key] for key in tables)
        ordered = {key: tables[key] for key in sorted(tables)}
        self._listing = Listing(
            MappingProxyType(dict(sorted(schemas.items()))), MappingProxyType(ordered), MappingProxyType(dict(broken))
        )
        if not same:
            self._version += 1
            log.info("catalog_changed", catalog=self.name, version=self._version, tables=len(tables))

    def _find_new(self, schema: str, table: str) -> Readable | None:
        """A table made by others since the last refresh, found by its own name alone."""
        written = self._source.has_table(schema, table)
        if written is None:
            return None
        readable = self._source.open(TableName(self.name, *written))
        readable.refresh()
        with self._listing_lock:
            key = fold(schema), fold(table)
            known = self._listing.tables.get(key)
            if known is not None:
                return known
            schemas = {**self._listing.schemas, key[0]: self._listing.schemas.get(key[0], written[0])}
            self._replace_listing(schemas, {**self._listing.tables, key: readable}, self._listing.broken)
        return readable

    def _report_broken(self, broken: Mapping[TableKey, tuple[TableName, str]]) -> None:
        for key, (name, reason) in broken.items():
            if self._listing.broken.get(key, (None, None))[1] != reason:
                log.warning("table_skipped", catalog=self.name, table=str(name), reason=reason)


def _changed_keys(old: Mapping[K, V], new: Mapping[K, V]) -> set[K]:
    """The keys under which the two do not hold the same."""
    return {key for key in {**old, **new} if key not in old or key not in new or old[key] is not new[key]}


def _with_edits(found: dict[K, V], now: Mapping[K, V], keys: set[K]) -> dict[K, V]:
    """What was found, and under these keys what is there now."""
    return {key: value for key, value in found.items() if key not in keys} | {
        key: now[key] for key in keys if key in now
    }


def _call(function: Callable[[str, str], None], schema: str, table: str) -> Callable[[], None]:
    return lambda: function(schema, table)


def _without_duplicates(schemas: Mapping[str, str], names: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The tables that can be served: of names that differ only in case, the client can use just one."""
    seen: dict[TableKey, tuple[str, str]] = {}
    for schema, table in names:
        if not (is_name(schema) and is_name(table)):
            continue
        first = seen.setdefault((fold(schema), fold(table)), (schema, table))
        if first != (schema, table) or schemas.get(fold(schema)) != schema:
            log.warning("table_skipped", table=f"{schema}.{table}", reason="another name differs only in case")
            if first == (schema, table):
                del seen[fold(schema), fold(table)]
    return list(seen.values())


class Catalogs:
    """Every catalog by name; the one marked default answers for an empty name.

    Calls look through `guarding.seen_by`, which asks `access`; the gateway itself looks here.
    """

    def __init__(
        self,
        catalogs: Iterable[Catalog],
        default: str | None,
        access: Access | None = None,
    ) -> None:
        self.access = access or EverythingAllowed()
        self._catalogs = {fold(catalog.name): catalog for catalog in catalogs}
        self._default = default

    def __iter__(self) -> Iterator[Catalog]:
        return iter(self._catalogs.values())

    def get(self, name: str | None, is_seen: Callable[[str], bool] = lambda _name: True) -> Catalog:
        """The catalog of this name among those that are seen."""
        seen = {key: catalog for key, catalog in self._catalogs.items() if is_seen(catalog.name)}
        names = ", ".join(catalog.name for catalog in seen.values()) or "none for you"
        wanted = name or (self._default if self._default is not None and fold(self._default) in seen else None)
        if wanted is None:
            raise NotFoundError(f"no default catalog; name one of: {names}")
        catalog = seen.get(fold(wanted))
        if catalog is None:
            raise NotFoundError(f"catalog '{wanted[:60]}' not found; this gateway has: {names}")
        return catalog


def not_before(table: Readable, snapshot: Snapshot, stamp: SchemaStamp | None) -> Snapshot:
    """The snapshot, or a later one whose schema the client knows: it may have altered the table in its transaction."""
    if stamp is None or stamp.version <= snapshot.version:
        return snapshot
    try:
        return table.at(stamp.version)
    except NotFoundError:
        return snapshot  # the table was replaced by another one, whose schema will not match
