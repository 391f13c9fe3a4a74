"""Every DuckDB type as clients transmit it, with values worth trying, and an exact comparison of arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

WKB = {b"ARROW:extension:name": b"geoarrow.wkb", b"ARROW:extension:metadata": b"{}"}
DAY = 86_400
ENDLESS = 2**63 - 1  # DuckDB's infinite timestamps
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_PARIS_GAP = 1_711_848_600  # 2024-03-31 02:30, which no clock in Paris showed
_UUIDS = [bytes(16), b"\xff" * 16, bytes.fromhex("b975e4187a6d4afdb1a41f7174ce1805"), bytes.fromhex("7f" + "00" * 15)]


@dataclass(frozen=True)
class Kind:
    """A type: its DuckDB text, the Arrow field of lossless mode, the plain type its values are written in, values."""

    text: str
    sent: pa.DataType
    raw: pa.DataType
    samples: tuple[Any, ...]
    more: st.SearchStrategy[Any]
    metadata: dict[bytes, bytes] | None = None
    sent_plainly: pa.DataType | None = None  # in default mode, where that differs

    def field(self, name: str) -> pa.Field:
        return pa.field(name, self.sent, metadata=self.metadata)

    def values(self) -> st.SearchStrategy[Any]:
        return st.none() | st.sampled_from(self.samples) | self.more


def _opaque(raw: pa.DataType, name: str) -> pa.DataType:
    return pa.opaque(raw, name, "DuckDB")


def _whole(text: str, kind: pa.DataType, low: int, high: int) -> Kind:
    return Kind(text, kind, kind, (low, high, 0, 1), st.integers(low, high))


def _wide(text: str, low: int, high: int) -> Kind:
    signed = low < 0
    samples = tuple(n.to_bytes(16, "little", signed=signed) for n in (low, high, 0, 1, 10**38, 2**64, low + 1))
    random = st.binary(min_size=16, max_size=16)
    sent = _opaque(pa.binary(16), text.lower())
    return Kind(text, sent, pa.binary(16), samples, random, sent_plainly=pa.decimal128(38, 0))


def _moments(text: str, kind: pa.DataType, per_second: int, *, endless: bool = True) -> Kind:
    days = (_FIRST_DAY, 0, _LAST_DAY) if per_second < 10**9 else (-100_000, 0, 100_000)
    samples = [day * DAY * per_second for day in days] + [-per_second, _PARIS_GAP * per_second + per_second // 2]
    samples.append((days[-1] + 1) * DAY * per_second - 1)
    if endless:
        samples += [ENDLESS, -ENDLESS]
    return Kind(text, kind, pa.int64(), tuple(samples), st.integers(days[0] * DAY * per_second, samples[5]))


def _clock(text: str, kind: pa.DataType, per_second: int) -> Kind:
    last = DAY * per_second - 1
    return Kind(text, kind, pa.int64(), (0, 1, last, 36_672 * per_second), st.integers(0, last))


def _floats(text: str, kind: pa.DataType, width: int) -> Kind:
    tiny = struct.unpack("<f", b"\x01\0\0\0")[0] if width == 32 else 5e-324
    samples = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -0.1 if width == 64 else -0.5, tiny)
    return Kind(text, kind, kind, samples, st.floats(width=32 if width == 32 else 64))


def _decimal(precision: int, scale: int) -> Kind:
    kind = pa.decimal128(precision, scale)
    edges = [Decimal((sign, (9,) * precision, -scale)) for sign in (0, 1)]
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1)
    more = numbers.map(lambda number: Decimal(f"{number}e-{scale}"))
    return Kind(f"DECIMAL({precision},{scale})", kind, kind, (*edges, Decimal(0), Decimal(1).scaleb(-scale)), more)


_TEXTS = ("", "a", "Zürich 😀 it's", "\0", "NULL", "x" * 40, "é" * 1_000)
_BLOBS = (b"", b"\0", b"\xff" * 40, b"ab", bytes(range(256)))
_SPANS = ((0, 0, 0), (1, 2, 3_000_000_000), (-(2**31), 2**31 - 1, -(2**63)), (2**31 - 1, -(2**31), 2**63 - 1))

KINDS = (
    Kind("BOOLEAN", pa.bool8(), pa.int8(), (0, 1), st.integers(0, 1), sent_plainly=pa.bool_()),
    _whole("TINYINT", pa.int8(), -(2**7), 2**7 - 1),
    _whole("SMALLINT", pa.int16(), -(2**15), 2**15 - 1),
    _whole("INTEGER", pa.int32(), -(2**31), 2**31 - 1),
    _whole("BIGINT", pa.int64(), -(2**63), 2**63 - 1),
    _whole("UTINYINT", pa.uint8(), 0, 2**8 - 1),
    _whole("USMALLINT", pa.uint16(), 0, 2**16 - 1),
    _whole("UINTEGER", pa.uint32(), 0, 2**32 - 1),
    _whole("UBIGINT", pa.uint64(), 0, 2**64 - 1),
    _wide("HUGEINT", -(2**127), 2**127 - 1),
    _wide("UHUGEINT", 0, 2**128 - 1),
    Kind(
        "BIGNUM",
        _opaque(pa.binary(), "bignum"),
        pa.binary(),
        (bytes.fromhex("80000d018ee90ff6c373e0ee4e3f0ad2"), bytes.fromhex("7ffffefa")),
        st.binary(min_size=4, max_size=20),
    ),
    _floats("FLOAT", pa.float32(), 32),
    _floats("DOUBLE", pa.float64(), 64),
    _decimal(4, 1),
    _decimal(18, 3),
    _decimal(38, 10),
    Kind("VARCHAR", pa.string(), pa.string(), _TEXTS, st.text(max_size=20)),
    Kind("BLOB", pa.binary(), pa.binary(), _BLOBS, st.binary(max_size=20)),
    Kind(
        "BIT",
        _opaque(pa.binary(), "bit"),
        pa.binary(),
        (bytes.fromhex("05fd"), bytes.fromhex("07fe")),
        st.binary(min_size=2, max_size=9),
        sent_plainly=pa.binary(),
    ),
    Kind(
        "UUID", pa.uuid(), pa.binary(16), tuple(_UUIDS), st.binary(min_size=16, max_size=16), sent_plainly=pa.string()
    ),
    Kind(
        "JSON",
        pa.json_(pa.string()),
        pa.string(),
        ('{"a":1}', "[]", '"é 😀"', "null"),
        st.text(max_size=9),
        sent_plainly=pa.string(),
    ),
    Kind(
        "DATE",
        pa.date32(),
        pa.int32(),
        (0, -1, _FIRST_DAY, _LAST_DAY, 19_813, 2**31 - 1, -(2**31) + 1),
        st.integers(_FIRST_DAY, _LAST_DAY),
    ),
    _clock("TIME", pa.time64("us"), 10**6),
    _clock("TIME_NS", pa.time64("ns"), 10**9),
    Kind(
        "TIME WITH TIME ZONE",
        _opaque(pa.binary(8), "time_tz"),
        pa.binary(8),
        (bytes.fromhex("dfc4000068c46108"), bytes.fromhex("ffe0000000000000")),
        st.binary(min_size=8, max_size=8),
        sent_plainly=pa.time64("us"),
    ),
    _moments("TIMESTAMP", pa.timestamp("us"), 10**6),
    _moments("TIMESTAMP_S", pa.timestamp("s"), 1),
    _moments("TIMESTAMP_MS", pa.timestamp("ms"), 10**3),
    _moments("TIMESTAMP_NS", pa.timestamp("ns"), 10**9),
    _moments("TIMESTAMP WITH TIME ZONE", pa.timestamp("us", "Europe/Paris"), 10**6),
    Kind(
        "INTERVAL",
        pa.month_day_nano_interval(),
        pa.month_day_nano_interval(),
        tuple(pa.MonthDayNano(span) for span in _SPANS),
        st.builds(
            lambda months, days, nanos: pa.MonthDayNano((months, days, nanos)),
            st.integers(-(2**31), 2**31 - 1),
            st.integers(-(2**31), 2**31 - 1),
            st.integers(-(2**63), 2**63 - 1),
        ),
    ),
    Kind(
        "GEOMETRY",
        pa.binary(),
        pa.binary(),
        (bytes.fromhex("0101000000000000000000f03f0000000000000040"),),
        st.binary(min_size=5, max_size=21),
        WKB,
    ),
)
BY_TEXT = {kind.text: kind for kind in KINDS}


def _list_of(inner: Kind, *, length: int | None = None) -> Kind:
    field, raw = inner.field("l" if length is None else ""), pa.field("l", inner.raw)
    size = -1 if length is None else length
    longest = 3 if length is None else length
    values = st.lists(inner.values(), min_size=length or 0, max_size=longest)
    some = [*inner.samples, None] * longest
    samples = (some[:longest],) if length else ([], [None], some[:longest])
    suffix = "[]" if length is None else f"[{length}]"
    return Kind(inner.text + suffix, pa.list_(field, size), pa.list_(raw, size), samples, values)


def _struct_of(**parts: Kind) -> Kind:
    sent = pa.struct([kind.field(name) for name, kind in parts.items()])
    raw = pa.struct([pa.field(name, kind.raw) for name, kind in parts.items()])
    first = {name: kind.samples[0] for name, kind in parts.items()}
    values = st.fixed_dictionaries({name: kind.values() for name, kind in parts.items()})
    text = f"STRUCT({', '.join(f'{name} {kind.text}' for name, kind in parts.items())})"
    return Kind(text, sent, raw, (dict.fromkeys(parts), first), values)


def _map_of(key: Kind, value: Kind) -> Kind:
    sent = pa.map_(key.field("key").with_nullable(False), value.field("value"))
    entries = st.lists(st.tuples(st.sampled_from(key.samples), value.values()), max_size=3, unique_by=lambda e: e[0])
    some = [(key.samples[0], value.samples[0]), (key.samples[1], None)]
    return Kind(f"MAP({key.text}, {value.text})", sent, pa.map_(key.raw, value.raw), ([], some), entries)


def nested_kinds(leaves: Sequence[Kind], depth: int) -> st.SearchStrategy[Kind]:
    """Types nested up to this deep, any type inside any other."""
    leaf = st.sampled_from(leaves)
    if depth == 0:
        return leaf
    inner = nested_kinds(leaves, depth - 1)
    keys = st.sampled_from([BY_TEXT["VARCHAR"], BY_TEXT["INTEGER"], BY_TEXT["UUID"], BY_TEXT["UBIGINT"]])
    return (
        leaf
        | inner.map(_list_of)
        | st.builds(lambda kind, length: _list_of(kind, length=length), inner, st.integers(1, 3))
        | st.builds(lambda a, b: _struct_of(a=a, b=b), inner, inner)
        | st.builds(_map_of, keys, inner)
    )


NESTED = (
    _list_of(BY_TEXT["INTEGER"]),
    _list_of(BY_TEXT["UUID"]),
    _list_of(_list_of(BY_TEXT["HUGEINT"])),
    _list_of(BY_TEXT["FLOAT"], length=3),
    _list_of(_list_of(BY_TEXT["TIME"], length=2), length=2),
    _struct_of(u=BY_TEXT["UUID"], h=BY_TEXT["HUGEINT"], i=BY_TEXT["INTERVAL"], g=BY_TEXT["GEOMETRY"]),
    _map_of(BY_TEXT["VARCHAR"], BY_TEXT["UBIGINT"]),
    _list_of(_struct_of(m=_map_of(BY_TEXT["UUID"], BY_TEXT["TIMESTAMP_NS"]), t=BY_TEXT["TIMESTAMP_S"])),
    _struct_of(s=_struct_of(a=_list_of(BY_TEXT["BOOLEAN"], length=2), b=_list_of(BY_TEXT["JSON"]))),
)


def array_of(kind: Kind, values: Sequence[Any]) -> pa.Array:
    """Values as the client in lossless mode transmits them."""
    return pa.array(values, kind.raw).cast(kind.sent)


def exact(array: pa.Array) -> list[Any]:
    """The values of an array by their bits: NaN is NaN, -0.0 is not 0.0, and no time is out of Python's range."""
    if isinstance(array, pa.ExtensionArray):
        return exact(array.storage)
    types, kind = pa.types, array.type
    if types.is_floating(kind):
        bits = array.view(pa.int64() if kind == pa.float64() else pa.int32()).to_pylist()
        return [None if value is None else ("float", bits[index]) for index, value in enumerate(array.to_pylist())]
    if types.is_timestamp(kind) or types.is_time(kind):
        return [None if value is None else int(value) for value in array.cast(pa.int64()).to_pylist()]
    if types.is_date(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if types.is_struct(kind):
        rows = list(zip(*(exact(part) for part in array.flatten()), strict=True))
        return [row if array[index].is_valid else None for index, row in enumerate(rows)]
    if types.is_map(kind):
        return [None if not item.is_valid else _entries(item) for item in array]
    if kind.num_fields:
        return [None if not item.is_valid else exact(item.values) for item in array]
    return list(array.to_pylist())


def _entries(item: pa.MapScalar) -> list[Any]:
    pairs = item.values
    return sorted(zip(*(exact(part) for part in pairs.flatten()), strict=True), key=repr)
