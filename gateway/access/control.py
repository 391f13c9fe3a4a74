"""What the rooms above ask: may this caller do that. One object answers, whichever way the question comes."""

from __future__ import annotations

from typing import Protocol

from gateway.access.callers import Caller
from gateway.access.policy import Action, Decision, Target, decide, sees_catalog
from gateway.access.policy_file import AccessRules
from gateway.access.watched_file import WatchedFile


class Access(Protocol):
    """Thread-safe."""

    @property
    def revision(self) -> int:
        """Moves when the answers may have changed."""

    def decide(self, caller: Caller, action: Action, target: Target) -> Decision: ...

    def sees_catalog(self, caller: Caller, catalog: str) -> bool: ...


class EverythingAllowed:
    """Without access rules."""

    revision = 0

    def decide(self, _caller: Caller, _action: Action, _target: Target) -> Decision:
        return Decision(True, "there are no access rules")

    def sees_catalog(self, _caller: Caller, _catalog: str) -> bool:
        return True


class RuledAccess:
    """By the access file, as it is now."""

    def __init__(self, rules: WatchedFile[AccessRules]) -> None:
        self._rules = rules

    @property
    def revision(self) -> int:
        self._rules.get()
        return self._rules.revision

    def decide(self, caller: Caller, action: Action, target: Target) -> Decision:
        return decide(self._rules.get().policy, caller, action, target)

    def sees_catalog(self, caller: Caller, catalog: str) -> bool:
        return sees_catalog(self._rules.get().policy, caller, catalog)
