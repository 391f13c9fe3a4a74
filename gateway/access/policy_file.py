"""The access file: roles, and those of callers who show nothing.

`conf/access.yaml` explains its keys. Unknown keys and roles are errors that name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.access.callers import Caller
from gateway.access.policy import Action, Pattern, Policy, Role, Rule
from gateway.errors import RequestError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Rule(_Part):
    actions: list[Action | Literal["all"]] = Field(min_length=1)
    tables: list[str] = Field(min_length=1)


class _Role(_Part):
    allow: list[_Rule] = []
    deny: list[_Rule] = []


class _Document(_Part):
    roles: dict[str, _Role]
    anonymous: list[str] = []


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the file says. `anonymous` is None where callers must say who they are."""

    policy: Policy
    anonymous: Caller | None = None


def parse_access(text: str) -> AccessRules:
    """Every defect is one RequestError."""
    try:
        raw: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RequestError("access: the file is not valid YAML") from error
    try:
        document = _Document.model_validate(raw if raw is not None else {})
    except ValidationError as error:
        raise RequestError("access: " + "; ".join(_describe(detail) for detail in error.errors())) from error
    roles = {name: _role(name, role) for name, role in document.roles.items()}
    _check_known(roles, "anonymous", document.anonymous)
    anonymous = Caller("anonymous", frozenset(document.anonymous)) if document.anonymous else None
    return AccessRules(Policy(roles), anonymous)


def _role(name: str, role: _Role) -> Role:
    def rules(kind: str, found: list[_Rule]) -> tuple[Rule, ...]:
        try:
            return tuple(Rule(_actions(rule), tuple(Pattern.parse(text) for text in rule.tables)) for rule in found)
        except RequestError as error:
            raise RequestError(f"access: roles.{name}.{kind}: {error.message}") from error

    return Role(name, rules("allow", role.allow), rules("deny", role.deny))


def _actions(rule: _Rule) -> frozenset[Action]:
    if "all" in rule.actions:
        return frozenset(Action)
    return frozenset(Action(action) for action in rule.actions)


def _check_known(roles: Mapping[str, Role], where: str, names: list[str]) -> None:
    for name in names:
        if name not in roles:
            raise RequestError(f"access: {where}: unknown role '{name[:60]}'")


def _describe(detail: Any) -> str:
    key = ".".join(str(part) for part in detail["loc"]) or "the file"
    return f"{key}: unknown key" if detail["type"] == "extra_forbidden" else f"{key}: {detail['msg']}"
