"""The access files that come with the project, and the commands about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.access.policy_file import parse_access
from gateway.access.tokens import digest_of, parse_tokens
from gateway.errors import RequestError
from gateway.ops.assembly import access_of
from gateway.ops.cli import app
from gateway.ops.permissions import callers_who_can
from gateway.settings import AccessSettings, load_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["conf/access.yaml", "deploy/container/access.yaml"])
def test_the_examples_are_valid(name: str) -> None:
    rules = parse_access((ROOT / name).read_text(encoding="utf-8"))
    assert rules.policy.roles
    assert rules.anonymous is None


def test_the_container_lets_nobody_in_before_there_is_a_token() -> None:
    assert parse_tokens((ROOT / "deploy/container/tokens").read_text(encoding="utf-8")) == {}
    settings = load_settings(ROOT / "deploy/container/gateway.yaml", {})
    assert settings.access.file is not None
    assert settings.access.tokens is not None


def test_a_new_token_is_printed_with_its_line() -> None:
    ran = CliRunner().invoke(app, ["token", "new", "ann", "--role", "reader", "--role", "writer", "--days", "1"])
    token, line = (printed for printed in ran.stdout.splitlines() if printed.startswith(("dpt_", "ann ")))
    [entry] = parse_tokens(line).values()
    assert entry.digest == digest_of(token)
    assert entry.caller.roles == {"reader", "writer"}
    assert entry.expires is not None


def test_who_can_lists_callers_with_the_reason(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann reader never sha256:{'0' * 64}\nbob writer never sha256:{'1' * 64}\n")
    settings = AccessSettings(file=str(ROOT / "conf/access.yaml"), tokens=str(tokens))
    found = list(callers_who_can(settings, "insert", "lake", "sales", "orders"))
    assert [(name, decision.allowed) for name, decision in found] == [("ann", False), ("bob", True)]
    assert all(decision.reason for _, decision in found)
    with pytest.raises(RequestError, match="'fly' is not one of"):
        list(callers_who_can(settings, "fly", "lake", "sales", "orders"))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "lake.example.com", "::"])  # noqa: S104 - never listened on
def test_a_network_address_needs_rules_or_a_word_that_none_are_wanted(host: str) -> None:
    with pytest.raises(RequestError, match="allow_anonymous_on_network"):
        load_settings(None, {"DELTAPORT_FLIGHT__HOST": host})
    load_settings(None, {"DELTAPORT_FLIGHT__HOST": host, "DELTAPORT_ACCESS__ALLOW_ANONYMOUS_ON_NETWORK": "true"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_loopback_address_needs_none(host: str) -> None:
    load_settings(None, {"DELTAPORT_FLIGHT__HOST": host})


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"access\.file"):
        access_of(AccessSettings(file=str(tmp_path / "none")))
