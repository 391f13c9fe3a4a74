"""Keys: what a violation says."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from gateway.lake.tables.schemas import Column
from gateway.lake.values.leaves import sortable_bytes
from gateway.lake.values.types import stored_form
from gateway.lake.writing.keys import Key, values_of, violation

SOME_UUID = str(uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("kind", "stored", "shown"),
    [
        (pa.int64(), 5, "5"),
        (pa.opaque(pa.binary(16), "hugeint", "DuckDB"), sortable_bytes(-(1 << 100), "hugeint"), str(-(1 << 100))),
        (pa.opaque(pa.binary(16), "uhugeint", "DuckDB"), sortable_bytes(1 << 127, "uhugeint"), str(1 << 127)),
        (pa.uint64(), 1 << 63, str(1 << 63)),
        (pa.time64("us"), 3_600_000_001, "01:00:00.000001"),
        (pa.timestamp("ns"), 1_700_000_000_123_456_789, "2023-11-14 22:13:20.123456789"),
        (pa.uuid(), SOME_UUID, SOME_UUID),
        (pa.opaque(pa.binary(8), "time_tz", "DuckDB"), b"\xff" * 8, str(b"\xff" * 8)),  # it has no text here
    ],
)
def test_a_key_is_shown_as_its_client_wrote_it(kind: pa.DataType, stored: Any, shown: str) -> None:
    form = stored_form(pa.field("k", kind))
    column = Column("k", form.arrow, True, None, None, "k", None, form)
    message = violation(Key((column,), is_primary=True), {"k": stored}).message
    assert message == f'Duplicate key "k: {shown}" violates primary key constraint.'


def test_a_key_that_python_has_no_value_for_is_shown_all_the_same() -> None:
    row = pa.table({"at": pa.array([253402300800_000_000, None], pa.timestamp("us", "UTC")), "k": [1, 2]}).slice(0, 1)
    assert values_of(row) == {"at": "10000-01-01 00:00:00.000000Z", "k": 1}
