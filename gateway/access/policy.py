"""What a caller may do: a pure decision over roles, and nothing else.

Roles allow and deny actions on patterns `catalog.schema.table`, in which `*` stands for any
characters of one part. What no role of a caller allows is not allowed; what one of
them denies is not allowed either, whatever the others say. A schema is meant by patterns
that cover all of it, whose last part is `*`. Names are compared without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from gateway.access.callers import Caller
from gateway.errors import RequestError

_ANY = "*"


class Action(StrEnum):
    READ = "read"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    DDL = "ddl"
    MAINTAIN = "maintain"
    QUERY = "query"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Target:
    """A table, or a schema where `table` is None, or a catalog where both are."""

    catalog: str
    schema: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        return ".".join(part for part in (self.catalog, self.schema, self.table) if part is not None)


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` is for the operator; a caller who may not know of the target must not see it."""

    allowed: bool
    reason: str


@dataclass(frozen=True)
class Pattern:
    catalog: str
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        parts = text.split(".")
        if len(parts) != 3 or not all(parts):
            raise RequestError(f"pattern '{text[:120]}' must have the form catalog.schema.table, with * for any")
        return cls(*parts)

    def covers(self, target: Target) -> bool:
        """Whether the target is meant; a schema or catalog only where all of it is."""
        catalog, schema, table = self._parts
        return (
            _fits(catalog, target.catalog)
            and (schema == _ANY if target.schema is None else _fits(schema, target.schema))
            and (table == _ANY if target.table is None else _fits(table, target.table))
        )

    def touches(self, catalog: str) -> bool:
        """Whether something in this catalog is meant."""
        return _fits(self._parts[0], catalog)

    @cached_property
    def _parts(self) -> tuple[str | re.Pattern[str], str | re.Pattern[str], str | re.Pattern[str]]:
        return _compiled(self.catalog), _compiled(self.schema), _compiled(self.table)

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}.{self.table}"


def _compiled(part: str) -> str | re.Pattern[str]:
    folded = part.casefold()
    if folded == _ANY or _ANY not in folded:
        return folded
    return re.compile(".*".join(re.escape(piece) for piece in folded.split(_ANY)), re.DOTALL)


def _fits(part: str | re.Pattern[str], name: str) -> bool:
    if isinstance(part, str):
        return part in (_ANY, name.casefold())
    return part.fullmatch(name.casefold()) is not None


@dataclass(frozen=True, slots=True)
class Rule:
    actions: frozenset[Action]
    patterns: tuple[Pattern, ...]

    def covering(self, action: Action, target: Target) -> Pattern | None:
        if action not in self.actions:
            return None
        return next((pattern for pattern in self.patterns if pattern.covers(target)), None)


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    roles: Mapping[str, Role] = field(default_factory=dict)

    def roles_of(self, caller: Caller) -> Iterator[Role]:
        """Those that the policy knows; a role that it does not know grants nothing."""
        return (self.roles[name] for name in sorted(caller.roles) if name in self.roles)


def decide(policy: Policy, caller: Caller, action: Action, target: Target) -> Decision:
    roles = list(policy.roles_of(caller))
    for role in roles:
        if (pattern := _first(role.deny, action, target)) is not None:
            return Decision(False, f"role {role.name} denies {action} on {pattern}")
    for role in roles:
        if (pattern := _first(role.allow, action, target)) is not None:
            return Decision(True, f"role {role.name} allows {action} on {pattern}")
    names = ", ".join(role.name for role in roles) or "none"
    return Decision(False, f"no role of {caller.name} allows {action} on {target} (roles: {names})")


def sees_catalog(policy: Policy, caller: Caller, catalog: str) -> bool:
    """Whether the caller may know of the catalog: something in it is allowed, and it is not denied as a whole."""
    roles = list(policy.roles_of(caller))
    whole = Target(catalog)
    if any(_first(role.deny, Action.READ, whole) is not None for role in roles):
        return False
    rules = (rule for role in roles for rule in role.allow)
    return any(pattern.touches(catalog) for rule in rules for pattern in rule.patterns)


def _first(rules: Iterable[Rule], action: Action, target: Target) -> Pattern | None:
    return next((found for rule in rules if (found := rule.covering(action, target)) is not None), None)
