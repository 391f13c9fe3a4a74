"""Transaction ids: issue time, mode and a signature, so that issuing one stores nothing.

`<issued in milliseconds, hex>-<random>-<mode>-<signature>`. An id whose signature
does not verify may be one that an earlier run of the gateway issued.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import NewType

TransactionId = NewType("TransactionId", str)

_FORM = re.compile(r"([0-9a-f]{8,16})-[0-9a-f]{16}-([am])-[0-9a-f]{16}", re.ASCII)
_AUTO, _MANUAL = "a", "m"


@dataclass(frozen=True, slots=True)
class ParsedId:
    """`is_manual`: the caller ends the transaction itself. `is_genuine`: signed with this key."""

    id: TransactionId
    issued_ms: int
    is_manual: bool
    is_genuine: bool


class TransactionIds:
    """Issues and reads ids. Immutable, thread-safe."""

    def __init__(self, secret: str | None) -> None:
        self._key = hashlib.sha256(secret.encode()).digest() if secret else secrets.token_bytes(32)

    def issue(self, now_ms: int, *, manual: bool) -> TransactionId:
        body = f"{now_ms:08x}-{secrets.token_hex(8)}-{_MANUAL if manual else _AUTO}"
        return TransactionId(f"{body}-{self._sign(body)}")

    def parse(self, text: str | None) -> ParsedId | None:
        """None for a text that no gateway ever issued."""
        match = _FORM.fullmatch(text or "")
        if match is None:
            return None
        body, _, signature = match[0].rpartition("-")
        is_genuine = hmac.compare_digest(signature, self._sign(body))
        return ParsedId(TransactionId(match[0]), int(match[1], 16), match[2] == _MANUAL, is_genuine)

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()[:16]
