"""Bearer tokens: a file holds their digests, one line each, and never a token.

A line is `NAME ROLES EXPIRES DIGEST`: roles with commas between them or `-`, a date in ISO form or
`never`, and `sha256:` with 64 hex digits. Empty lines and lines that begin with `#` say
nothing. A token has 256 random bits, so a plain digest cannot be searched for.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.access.callers import Caller
from gateway.errors import RequestError

_PREFIX = "dpt_"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_NAME = re.compile(r"[^\s#,]{1,200}")


@dataclass(frozen=True, slots=True)
class TokenEntry:
    caller: Caller
    digest: str
    expires: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires

    def line(self) -> str:
        roles = ",".join(sorted(self.caller.roles)) or "-"
        expires = "never" if self.expires is None else self.expires.isoformat()
        return f"{self.caller.name} {roles} {expires} sha256:{self.digest}"


Tokens = Mapping[str, TokenEntry]


def new_token(name: str, roles: frozenset[str], expires: datetime | None = None) -> tuple[str, TokenEntry]:
    """A token, which is nowhere else, and what the file says of it."""
    if not all(_NAME.fullmatch(word) for word in (name, *roles)):
        raise RequestError("names of callers and roles have no spaces, commas or #, and at most 200 characters")
    token = _PREFIX + secrets.token_urlsafe(32)
    return token, TokenEntry(Caller(name, roles, "token"), digest_of(token), expires)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def parse_tokens(text: str) -> dict[str, TokenEntry]:
    """By digest. Every defect is a RequestError that names the line, and nothing of its contents but the name."""
    found: dict[str, TokenEntry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 4:
            raise RequestError(f"tokens: line {number}: a line is NAME ROLES EXPIRES DIGEST")
        name, roles, expires, digest = words
        if (match := _DIGEST.fullmatch(digest)) is None:
            raise RequestError(f"tokens: line {number}: the digest of {name[:60]} is not sha256: and 64 hex digits")
        if match[1] in found:
            raise RequestError(f"tokens: line {number}: the same digest stands in another line")
        caller = Caller(name, frozenset() if roles == "-" else frozenset(filter(None, roles.split(","))), "token")
        found[match[1]] = TokenEntry(caller, match[1], _parse_expiry(number, expires))
    return found


def _parse_expiry(number: int, text: str) -> datetime | None:
    if text == "never":
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(f"tokens: line {number}: the time of expiry is not an ISO date, or never") from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def find_token(tokens: Tokens, token: str) -> TokenEntry | None:
    """Found by the digest, which tells nobody how much of a token was right; compared in constant time all the same."""
    digest = digest_of(token)
    entry = tokens.get(digest)
    return entry if entry is not None and hmac.compare_digest(entry.digest, digest) else None
