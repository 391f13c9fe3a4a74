"""The catalogs as one caller sees them: the only way from a name to a table for a call.

Whoever looks a table up says what for, and the access rules decide before anything is looked
up. What a caller may not read is for it as if it was not there: the same error, from the
name alone, whether the table exists or not. Who may read a table is told what it may not do to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from gateway.access.policy import Action, Target
from gateway.catalog.calls import Call
from gateway.catalog.capabilities import Readable
from gateway.catalog.names import check_name, fold
from gateway.catalog.registry import Catalog, Catalogs, Listing
from gateway.errors import DeniedError, NotFoundError
from gateway.telemetry import metrics

log = structlog.get_logger(__name__)
# What concerns the service as a whole is granted on *.*.* alone.
SERVICE = Target("*")


class SeenCatalog:
    """One catalog, as the caller of one call sees it."""

    def __init__(self, catalog: Catalog, seen: SeenCatalogs) -> None:
        self._catalog = catalog
        self._seen = seen

    @property
    def name(self) -> str:
        return self._catalog.name

    @property
    def description(self) -> str:
        return self._catalog.description

    @property
    def version(self) -> int:
        """Moves with the access rules, too: clients then list again."""
        return self._catalog.version + self._seen.access.revision

    def refresh(self) -> None:
        self._catalog.refresh()

    def forget(self, table: Readable) -> None:
        self._catalog.forget(table)

    def table(self, schema: str, table: str, action: Action) -> Readable:
        """The table, for this and nothing else."""
        check_name("schema", schema)
        check_name("table", table)
        self.check(action, schema, table)
        try:
            return self._catalog.table(schema, table)
        except NotFoundError:
            if self.sees_schema(schema):
                raise
            raise _missing_schema(schema) from None

    def listing(self) -> Listing:
        """What the caller may read, and the schemas that it may know of."""
        whole = self._catalog.listing()
        tables = {key: table for key, table in whole.tables.items() if self.may(Action.READ, *table.name.key[1:])}
        broken = {key: each for key, each in whole.broken.items() if self.may(Action.READ, *each[0].key[1:])}
        filled = {schema for schema, _ in [*tables, *broken]}
        schemas = {key: name for key, name in whole.schemas.items() if key in filled or self._may_know(name)}
        return Listing(schemas, tables, broken)

    def sees_schema(self, schema: str) -> bool:
        return fold(schema) in self.listing().schemas

    def may(self, action: Action, schema: str, table: str | None = None) -> bool:
        return self._seen.may(action, Target(self.name, schema, table))

    def check(self, action: Action, schema: str, table: str | None = None) -> None:
        """Refuse what is not allowed on a table or schema, as if it was not there for who may not read it."""
        target = Target(self.name, schema, table)
        if self._seen.allows(action, target):
            return
        if action is not Action.READ and self._seen.may(Action.READ, target):
            raise self._denied(action, schema, table)
        if table is None or not self.sees_schema(schema):
            raise _missing_schema(schema)
        raise NotFoundError(f"table '{schema}.{table}' not found")

    def check_new(self, schema: str, table: str | None = None) -> None:
        """The same for what is to be made: who may not make it learns nothing of what is there."""
        if self._seen.allows(Action.DDL, Target(self.name, schema, table)):
            return
        if table is not None and not self.sees_schema(schema):
            raise _missing_schema(schema)
        raise self._denied(Action.DDL, schema, table)

    def _may_know(self, schema: str) -> bool:
        return self.may(Action.READ, schema) or self.may(Action.DDL, schema)

    def _denied(self, action: Action, schema: str, table: str | None) -> DeniedError:
        what = f"schema '{schema}'" if table is None else f"table '{schema}.{table}'"
        return DeniedError(f"caller '{self._seen.call.caller.name}' has no right to {action} on {what}")


class SeenCatalogs:
    """Every catalog that the caller may know of."""

    def __init__(self, catalogs: Catalogs, call: Call) -> None:
        self._catalogs = catalogs
        self.access = catalogs.access
        self.call = call

    def __iter__(self) -> Iterator[SeenCatalog]:
        return (SeenCatalog(catalog, self) for catalog in self._catalogs if self._sees(catalog.name))

    def get(self, name: str | None) -> SeenCatalog:
        return SeenCatalog(self._catalogs.get(name, self._sees), self)

    def may(self, action: Action, target: Target) -> bool:
        return self.access.decide(self.call.caller, action, target).allowed

    def allows(self, action: Action, target: Target) -> bool:
        """As `may`, of what was asked for: a refusal is recorded."""
        decision = self.access.decide(self.call.caller, action, target)
        if not decision.allowed:
            metrics.DENIED.labels(action.value).inc()
            facts = {"caller": self.call.caller.name, "action": action.value, "target": str(target)}
            log.warning("access_denied", **facts, peer=self.call.peer, reason=decision.reason)
        return decision.allowed

    def _sees(self, catalog: str) -> bool:
        return self.access.sees_catalog(self.call.caller, catalog)


def seen_by(call: Call, catalogs: Catalogs) -> SeenCatalogs:
    return SeenCatalogs(catalogs, call)


def _missing_schema(schema: str) -> NotFoundError:
    return NotFoundError(f"schema '{schema}' not found")
