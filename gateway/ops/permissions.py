"""Who may do what, by the access files alone: for the command line, which asks no running gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.access.callers import ANONYMOUS, Caller
from gateway.access.control import EverythingAllowed
from gateway.access.policy import Action, Decision, Target, decide
from gateway.access.policy_file import parse_access
from gateway.access.tokens import parse_tokens
from gateway.access.watched_file import WatchedFile
from gateway.errors import RequestError
from gateway.settings import AccessSettings


def callers_who_can(
    settings: AccessSettings, action: str, catalog: str, schema: str, table: str
) -> Iterator[tuple[str, Decision]]:
    """Each caller that the files know, by name, with the decision."""
    if action not in set(Action):
        raise RequestError(f"'{action[:60]}' is not one of {', '.join(Action)}")
    target = Target(catalog, schema, table)
    if settings.file is None:
        yield ANONYMOUS.name, EverythingAllowed().decide(ANONYMOUS, Action(action), target)
        return
    rules = WatchedFile(Path(settings.file), parse_access, what="access.file").get()
    callers: list[Caller] = [rules.anonymous] if rules.anonymous is not None else []
    if settings.tokens is not None:
        tokens = WatchedFile(Path(settings.tokens), parse_tokens, what="access.tokens").get()
        callers += (entry.caller for entry in tokens.values())
    for caller in sorted(callers, key=lambda each: each.name):
        yield caller.name, decide(rules.policy, caller, Action(action), target)
