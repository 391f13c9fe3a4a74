from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from gateway.catalog.capabilities import Readable
from gateway.catalog.names import TableName
from gateway.catalog.registry import Catalogs, Listing
from gateway.errors import InternalError, NotFoundError, RequestError, UnavailableError
from tests.doubles import MemorySource, MemoryTable, memory_catalog

ROWS = pa.table({"k": [1, 2]})


def table(schema: str, name: str) -> MemoryTable:
    return MemoryTable(TableName("lake", schema, name), [ROWS])


@pytest.fixture
def source() -> MemorySource:
    made = MemorySource()
    made.add(table("demo", "orders"))
    return made


def test_tables_are_found_whatever_their_case(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    assert catalog.table("DEMO", "Orders").name.table == "orders"


def test_statements_never_list_the_warehouse(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    catalog.refresh()
    listed = source.listings
    for _ in range(10):
        catalog.table("demo", "orders")
        assert catalog.version
    assert source.listings == listed
    assert source.probes == 0


def test_a_table_made_since_the_last_refresh_is_found_by_one_look(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    catalog.refresh()
    before, listed = catalog.version, source.listings
    source.add(table("demo", "later"))
    assert catalog.table("demo", "LATER").name.table == "later"
    assert catalog.version > before
    assert source.listings == listed


def test_unknown_names_say_what_is_missing(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    with pytest.raises(NotFoundError, match=r"^schema 'nope' not found$"):
        catalog.table("nope", "orders")
    with pytest.raises(NotFoundError, match=r"^table 'demo\.nope' not found$"):
        catalog.table("demo", "nope")


@pytest.mark.parametrize("name", ["../etc", "a/b", "_delta_log", "x\0", ""])
def test_a_name_that_is_no_name_never_reaches_the_source(source: MemorySource, name: str) -> None:
    catalog = memory_catalog(source)
    catalog.refresh()
    with pytest.raises(RequestError):
        catalog.table(name, "orders")
    with pytest.raises(RequestError):
        catalog.table("demo", name)
    assert source.probes == 0


def test_a_broken_table_is_left_out_and_the_rest_is_served(source: MemorySource) -> None:
    source.found["demo", "broken"] = InternalError("its Delta log cannot be read")
    catalog = memory_catalog(source)
    listing = catalog.listing()
    assert list(listing.tables) == [("demo", "orders")]
    with pytest.raises(UnavailableError, match=r"table 'demo\.broken' cannot be read: its Delta log"):
        catalog.table("demo", "broken")


def test_the_version_moves_when_the_set_of_tables_changes(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    catalog.refresh()
    first = catalog.version
    catalog.refresh()
    assert catalog.version == first
    source.add(table("demo", "new"))
    catalog.refresh()
    second = catalog.version
    assert second > first
    del source.found["demo", "new"]
    catalog.refresh()
    assert catalog.version > second


def test_the_version_moves_when_a_schema_changes(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    catalog.refresh()
    first = catalog.version
    found = source.found["demo", "orders"]
    assert isinstance(found, MemoryTable)
    found.refresh = lambda: True  # type: ignore[method-assign]
    catalog.refresh()
    assert catalog.version > first


def test_an_empty_schema_is_listed(source: MemorySource) -> None:
    source.extra_schemas = ["bare"]
    assert list(memory_catalog(source).listing().schemas.values()) == ["bare", "demo"]


def test_of_names_that_differ_only_in_case_one_is_served(source: MemorySource) -> None:
    source.add(table("demo", "ORDERS"))
    source.add(table("Demo", "other"))
    listing = memory_catalog(source).listing()
    assert [str(each.name) for each in listing.tables.values()] == ["demo.orders"]


def test_a_table_found_gone_is_forgotten(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    gone = catalog.table("demo", "orders")
    before = catalog.version
    del source.found["demo", "orders"]
    catalog.forget(gone)
    assert catalog.version > before
    with pytest.raises(NotFoundError):
        catalog.table("demo", "orders")


def test_the_default_catalog_answers_for_an_empty_name(source: MemorySource) -> None:
    catalogs = Catalogs([memory_catalog(source, "lake"), memory_catalog(source, "other")], "lake")
    assert catalogs.get("").name == catalogs.get(None).name == "lake"
    assert catalogs.get("OTHER").name == "other"
    with pytest.raises(NotFoundError, match="this gateway has: lake, other"):
        catalogs.get("nope")


def test_without_a_default_the_error_lists_the_names_to_choose_from(source: MemorySource) -> None:
    with pytest.raises(NotFoundError, match="name one of: lake"):
        Catalogs([memory_catalog(source)], None).get("")


def test_who_comes_during_a_refresh_gets_one_that_began_later(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    listing, go_on = threading.Event(), threading.Event()
    listed_at_first = source.tables

    def slow() -> list[tuple[str, str]]:
        found = list(listed_at_first())
        listing.set()
        go_on.wait(20)
        return found

    source.tables = slow  # type: ignore[method-assign]
    first = threading.Thread(target=catalog.refresh)
    first.start()
    assert listing.wait(20)
    source.add(table("demo", "made_meanwhile"))
    second = threading.Thread(target=catalog.refresh)
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert ("demo", "made_meanwhile") in catalog.listing().tables


def test_a_refresh_ends_however_often_the_gateway_edits_meanwhile(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    catalog.refresh()
    found = source.tables
    made = 0

    def while_somebody_does_ddl() -> list[tuple[str, str]]:
        nonlocal made
        names = list(found())  # listed before the edit, of which it therefore knows nothing
        made += 1
        new = source.add(table("demo", f"made_{made}"))
        gone = catalog.listing().tables["demo", "orders"] if made == 1 else None
        if gone is not None:
            del source.found["demo", "orders"]
        catalog.edit(lambda old: with_table(old, new, without=gone))
        return names

    source.tables = while_somebody_does_ddl  # type: ignore[method-assign]
    before = source.listings
    catalog.refresh()
    assert source.listings == before + 1
    tables = catalog.listing().tables
    assert ("demo", "made_1") in tables
    assert ("demo", "orders") not in tables


def with_table(old: Listing, new: Readable, without: Readable | None) -> Listing:
    tables = {key: known for key, known in old.tables.items() if known is not without}
    return Listing(old.schemas, {**tables, (new.name.schema, new.name.table): new}, old.broken)


def test_a_table_found_gone_during_a_refresh_does_not_come_back_with_it(source: MemorySource) -> None:
    catalog = memory_catalog(source)
    gone = catalog.table("demo", "orders")
    found = source.tables

    def while_a_statement_misses_it() -> list[tuple[str, str]]:
        names = list(found())
        catalog.forget(gone)
        return names

    source.tables = while_a_statement_misses_it  # type: ignore[method-assign]
    catalog.refresh()
    assert ("demo", "orders") not in catalog.listing().tables
