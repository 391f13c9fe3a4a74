"""Tokens, who a call is by them, and what guessing costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.authentication import CheckCredentials, Credentials
from gateway.access.backoff import Backoff
from gateway.access.callers import Caller
from gateway.access.policy_file import AccessRules, parse_access
from gateway.access.tokens import TokenEntry, new_token, parse_tokens
from gateway.access.watched_file import WatchedFile
from gateway.errors import RequestError, UnauthenticatedError

CLOSED = parse_access("roles: {reader: {}}")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def checking(*entries: TokenEntry, rules: AccessRules = CLOSED, clock: Clock | None = None) -> CheckCredentials:
    tokens = parse_tokens("\n".join(entry.line() for entry in entries))
    return CheckCredentials(lambda: rules, lambda: tokens, backoff=Backoff(clock or Clock()), now=lambda: NOON)


def test_a_token_says_who_calls_and_with_which_roles() -> None:
    token, entry = new_token("ann", frozenset({"reader", "writer"}))
    caller = checking(entry).authenticate(Credentials(token))
    assert (caller.name, caller.roles) == ("ann", {"reader", "writer"})


def test_a_line_of_the_file_holds_a_digest_and_not_the_token() -> None:
    token, entry = new_token("ann", frozenset({"reader"}), NOON + timedelta(days=1))
    assert token not in entry.line()
    assert parse_tokens(f"# tokens\n\n{entry.line()}\n") == {entry.digest: entry}


@pytest.mark.parametrize("after", [timedelta(0), timedelta(days=1)])
def test_an_expired_token_is_refused(after: timedelta) -> None:
    token, entry = new_token("ann", frozenset(), NOON - after)
    with pytest.raises(UnauthenticatedError, match="expired"):
        checking(entry).authenticate(Credentials(token))


@pytest.mark.parametrize(
    "line", ["ann reader never", "ann reader never sha256:12", f"ann reader soon sha256:{'0' * 64}"]
)
def test_a_defect_of_the_tokens_file_names_its_line(line: str) -> None:
    with pytest.raises(RequestError, match="line 2"):
        parse_tokens(f"# tokens\n{line}")


def test_without_a_token_a_caller_is_refused_unless_anonymous_has_roles() -> None:
    with pytest.raises(UnauthenticatedError, match="CREATE SECRET"):
        checking().authenticate(Credentials())
    known = parse_access("roles: {reader: {}}\nanonymous: [reader]")
    assert checking(rules=known).authenticate(Credentials()) == Caller("anonymous", frozenset({"reader"}))


def test_a_token_that_nobody_knows_is_refused_even_where_none_is_needed() -> None:
    known = parse_access("roles: {reader: {}}\nanonymous: [reader]")
    with pytest.raises(UnauthenticatedError):
        checking(rules=known).authenticate(Credentials("guess"))


def test_guessing_from_an_address_has_to_wait_longer_and_longer_and_good_callers_do_not() -> None:
    clock = Clock()
    token, entry = new_token("ann", frozenset())
    check = checking(entry, clock=clock)
    assert check.authenticate(Credentials(token, peer="ipv4:10.0.0.1:5")).name == "ann"
    waits = 0
    for number in range(1_000):
        with pytest.raises(UnauthenticatedError) as refused:
            check.authenticate(Credentials(f"guess {number}", peer=f"ipv4:10.0.0.1:{number}"))
        waits += "too many failed attempts" in refused.value.message
    assert waits > 900
    assert check.authenticate(Credentials(token, peer="ipv4:10.0.0.1:7")).name == "ann"
    clock.seconds += 60
    with pytest.raises(UnauthenticatedError, match="not known"):
        check.authenticate(Credentials("another guess", peer="ipv4:10.0.0.1:8"))


def test_failures_of_many_addresses_take_bounded_memory() -> None:
    backoff = Backoff(Clock(), most_peers=100)
    for number in range(10_000):
        backoff.failed(f"peer {number}")
    assert len(backoff) == 100


def test_a_client_that_attached_with_a_token_is_told_how_to_send_it_with_data() -> None:
    token, entry = new_token("ann", frozenset())
    check = checking(entry, rules=parse_access("roles: {reader: {}}\nanonymous: [reader]"))
    location = "grpc://lake.example.com:8815"
    check.authenticate(Credentials(token, session="s1", location=location))
    with pytest.raises(UnauthenticatedError) as refused:
        check.authenticate(Credentials(session="s1", location=location))
    assert f"CREATE SECRET (TYPE airport, AUTH_TOKEN '...', SCOPE '{location}')" in refused.value.message
    assert token not in refused.value.message
    assert check.authenticate(Credentials(session="s2")).name == "anonymous"


def test_a_location_that_is_none_is_not_sent_back() -> None:
    with pytest.raises(UnauthenticatedError) as refused:
        checking().authenticate(Credentials(location="grpc://x'); DROP TABLE t; --"))
    assert "DROP" not in refused.value.message


def test_a_changed_file_is_read_again_and_a_broken_one_is_not_taken(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "access.yaml"
    path.write_text("roles: {one: {}}")
    watched = WatchedFile(path, parse_access, clock)

    def roles_after(text: str) -> set[str]:
        path.write_text(text)
        clock.seconds += 2
        return set(watched.get().policy.roles)

    assert roles_after("roles: {one: {}, two: {}}") == {"one", "two"}
    assert roles_after("roles: [") == {"one", "two"}
    path.unlink()
    clock.seconds += 2
    assert set(watched.get().policy.roles) == {"one", "two"}
    assert roles_after("roles: {three: {}}") == {"three"}
