from __future__ import annotations

import pytest

from gateway.access.callers import Caller
from gateway.access.policy import Action, Decision, Target, decide, sees_catalog
from gateway.access.policy_file import parse_access
from gateway.errors import RequestError

RULES = parse_access(
    """
roles:
  reader:
    allow: [{actions: [read], tables: ["lake.*.*"]}]
    deny: [{actions: [read], tables: ["lake.hr.*", "*.*.secret_*"]}]
  writer: {allow: [{actions: [insert, update], tables: ["Lake.Sales.orders"]}]}
  builder: {allow: [{actions: [ddl], tables: ["lake.scratch.*"]}]}
  owner: {allow: [{actions: [all], tables: ["*.*.*"]}]}
anonymous: [reader]
"""
)


def decided(roles: str, action: Action, *target: str) -> Decision:
    return decide(RULES.policy, Caller("ann", frozenset(roles.split())), action, Target(*target))


@pytest.mark.parametrize(
    ("roles", "action", "target", "allowed"),
    [
        ("reader", Action.READ, ("lake", "sales", "orders"), True),
        ("reader", Action.READ, ("LAKE", "SALES", "ORDERS"), True),
        ("reader", Action.READ, ("other", "sales", "orders"), False),
        ("reader", Action.INSERT, ("lake", "sales", "orders"), False),
        ("reader", Action.READ, ("lake", "hr", "people"), False),
        ("reader", Action.READ, ("lake", "sales", "secret_deals"), False),
        ("reader owner", Action.READ, ("lake", "hr", "people"), False),  # deny wins over another role's allow
        ("owner", Action.ADMIN, ("lake", "hr", "people"), True),
        ("writer", Action.UPDATE, ("lake", "sales", "orders"), True),
        ("writer", Action.DELETE, ("lake", "sales", "orders"), False),
        ("writer", Action.UPDATE, ("lake", "sales", "orders2"), False),
        ("builder", Action.DDL, ("lake", "scratch"), True),
        ("writer", Action.INSERT, ("lake", "sales"), False),  # one table is not the schema
        ("", Action.READ, ("lake", "sales", "orders"), False),
        ("no_such_role", Action.READ, ("lake", "sales", "orders"), False),
    ],
)
def test_roles_add_up_and_a_denial_wins(roles: str, action: Action, target: tuple[str, ...], allowed: bool) -> None:
    decision = decided(roles, action, *target)
    assert decision.allowed is allowed
    assert decision.reason


def test_a_catalog_is_known_to_whom_something_in_it_is_allowed() -> None:
    seen = [sees_catalog(RULES.policy, Caller("ann", frozenset({"writer"})), name) for name in ("lake", "other")]
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("roles: {r: {allow: [{actions: [read], tables: [lake.sales]}]}}", "lake.sales"),
        ("roles: {r: {allow: [{actions: [fly], tables: ['*.*.*']}]}}", "roles.r.allow.0.actions"),
        ("roles: {r: {grants: []}}", "roles.r.grants"),
        ("roles: {}\nanonymous: [ghost]", "ghost"),
        ("roles: [", "YAML"),
    ],
)
def test_a_defect_of_the_access_file_is_named(text: str, named: str) -> None:
    with pytest.raises(RequestError, match=named.replace(".", r"\.")):
        parse_access(text)
