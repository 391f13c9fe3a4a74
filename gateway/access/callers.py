"""Callers: who somebody is, once that is proven. A role's name means nothing here; the policy knows what it grants."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is what logs, commits and ownership go by; `method` is how it was proven."""

    name: str
    roles: frozenset[str] = field(default=frozenset())
    method: str = "none"

    def __str__(self) -> str:
        return self.name


ANONYMOUS = Caller("anonymous")
