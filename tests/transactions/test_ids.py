from __future__ import annotations

import pytest

from gateway.transactions.ids import TransactionIds


def test_an_id_says_when_and_how_it_was_issued() -> None:
    ids = TransactionIds(None)
    for manual in (False, True):
        parsed = ids.parse(ids.issue(1_700_000_000_123, manual=manual))
        assert parsed is not None
        assert (parsed.issued_ms, parsed.is_manual, parsed.is_genuine) == (1_700_000_000_123, manual, True)


@pytest.mark.parametrize(
    "text", ["", "-", "tx-e245e68c", "a-b-c-d", "x" * 5000, "\ud800", "1-2-é", "550e8400-e29b-41d4-a716-446655440000"]
)
def test_a_text_that_no_gateway_issued_is_no_id(text: str) -> None:
    ids = TransactionIds(None)
    assert ids.parse(text) is None
    assert ids.parse(ids.issue(1, manual=False) + text) is None or not text


def test_a_changed_id_is_not_genuine() -> None:
    ids = TransactionIds(None)
    identity = ids.issue(1_700_000_000_123, manual=False)
    for forged in (
        identity[:-1] + ("0" if identity[-1] != "0" else "1"),
        identity.replace("-a-", "-m-"),
        "0" + identity,
    ):
        parsed = ids.parse(forged)
        assert parsed is not None
        assert not parsed.is_genuine


def test_ids_of_an_earlier_run_are_genuine_when_the_secret_is_configured() -> None:
    for secret, is_genuine in (("s3cret", True), (None, False)):
        parsed = TransactionIds(secret).parse(TransactionIds(secret).issue(7, manual=False))
        assert parsed is not None
        assert parsed.is_genuine is is_genuine
