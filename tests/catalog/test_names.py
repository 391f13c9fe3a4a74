from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.names import TableName, check_name, fold, is_name, parse_qualified
from gateway.errors import RequestError

GOOD = [
    "orders",
    "Orders 2024",
    "größe",
    "注文",
    "a-b",
    "a.b",
    "100%",
    "o'clock",
    'quo"ted',
    "😀",
    "x" * 255,
    "select",
    "a;b",
]
BAD = [
    "", ".", "..", ".hidden", "_delta_log", "a/b", "../x", "a\\b", "a\0b", "a\nb", "a\x7fb", " a", "a ", "x" * 256,
    "é" * 128, "a\u202eb", "a\u2028b", "\ud800", "\u200b",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_plain_name_is_kept_as_written(name: str) -> None:
    assert check_name("table", name) == name


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_could_be_a_path_or_disturb_a_log_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_name("table", name)
    assert refused.value.message.startswith("table name ")
    assert len(refused.value.message) < 150
    assert refused.value.message.isprintable()


@given(st.text())
def test_an_accepted_name_stays_one_folder_below_its_parent(name: str) -> None:
    if is_name(name):
        assert "/" not in name
        assert "\0" not in name
        assert name not in (".", "..")
        assert 0 < len(name.encode()) <= 255


@given(st.text())
def test_checking_and_asking_agree(name: str) -> None:
    try:
        check_name("schema", name)
    except RequestError:
        assert not is_name(name)
    else:
        assert is_name(name)


def test_names_are_compared_without_regard_to_case() -> None:
    assert TableName("lake", "Demo", "ORDERS").key == TableName("LAKE", "demo", "orders").key
    assert fold("STRASSE") == fold("straße")


def test_a_qualified_name_is_split_at_its_first_dot() -> None:
    assert parse_qualified("sales.orders.old") == ("sales", "orders.old")


@pytest.mark.parametrize("text", ["orders", ".orders", "sales.", "sales./etc", "a/b.c"])
def test_a_qualified_name_needs_two_good_parts(text: str) -> None:
    with pytest.raises(RequestError):
        parse_qualified(text)
