"""Types without tables: what is encoded is decoded to the same bits, and what does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import PreconditionError, RequestError
from gateway.lake.tables.schemas import read_schema, shape_of
from gateway.lake.values.codec import decode, encode
from gateway.lake.values.types import ANNOTATION_KEY, StoredForm, form_of, stored_form
from gateway.wire.listing import CHECKS_KEY
from tests.lake.typed_values import BY_TEXT, KINDS, NESTED, Kind, array_of, exact, nested_kinds

CAPTURES = [
    json.loads(line) for line in (Path(__file__).parent.parent / "vectors" / "types.jsonl").read_text().splitlines()
]


def kind_named(text: str) -> Kind:
    return next(kind for kind in [*KINDS, *NESTED] if kind.text == text)


def stored_again(form: StoredForm) -> StoredForm:
    """The same form, read back out of a Delta schema."""
    metadata = {} if form.annotation is None else {ANNOTATION_KEY: form.annotation}
    return form_of(form.name, json.loads(json.dumps(form.delta)), metadata)


def assert_round_trip(sent: pa.Array, field: pa.Field) -> None:
    form = stored_again(stored_form(field))
    stored = encode(sent, form)
    stored.validate(full=True)
    assert stored.type == form.arrow
    told = decode(stored, form, form.declared.type)
    told.validate(full=True)
    assert told.type == form.declared.type
    assert exact(told) == exact(sent)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_value_of_any_type_comes_back_to_the_bit(data: st.DataObject) -> None:
    kind = data.draw(nested_kinds(KINDS, 3))
    values = data.draw(st.lists(kind.values(), max_size=4))
    whole = array_of(kind, values)
    assert_round_trip(whole, kind.field("c"))
    assert_round_trip(whole.slice(1), kind.field("c"))


@pytest.mark.parametrize("kind", [*KINDS, *NESTED], ids=lambda kind: kind.text)
def test_the_values_worth_trying_come_back(kind: Kind) -> None:
    assert_round_trip(array_of(kind, [*kind.samples, None, *kind.samples]), kind.field("c"))


def captured(capture: dict[str, Any], mode: str) -> pa.Table:
    return pa.ipc.open_stream(bytes.fromhex(capture[mode]["insert"]["upload_ipc_hex"])).read_all()


UPLOADS = [
    pytest.param(captured(capture, mode), id=f"{mode}: {capture['duckdb_type']} {capture['settings'] or ''}")
    for capture in CAPTURES
    for mode in ("default", "lossless")
    if (capture.get(mode) or {}).get("insert") and not capture["duckdb_type"].startswith("UNION")
]


@pytest.mark.parametrize("upload", UPLOADS)
def test_what_the_real_client_transmits_comes_back(upload: pa.Table) -> None:
    sent, field = upload.column(0).combine_chunks(), upload.schema.field(0)
    form = stored_form(field)
    assert exact(decode(encode(sent, form), form, form.declared.type)) == exact(_as_one_type(sent))


def _as_one_type(array: pa.Array) -> pa.Array:
    """Truths as truths and numbers as numbers, however the client writes them."""
    if array.type == pa.bool8():
        return pa.array([None if value is None else bool(value) for value in array.storage.to_pylist()])
    return pa.array([None] * len(array), pa.int32()) if pa.types.is_null(array.type) else array


@pytest.mark.parametrize(
    ("text", "upload"),
    [
        ("UUID", pa.array(["b975e418-7a6d-4afd-b1a4-1f7174ce1805", None])),
        ("UUID", pa.array(["B975E418-7A6D-4AFD-B1A4-1F7174CE1805", None], pa.string_view())),
        ("BOOLEAN", pa.array([True, None])),
        ("JSON", pa.array(["{}", None])),
        ("BIT", pa.array([b"\x05\xfd", None])),
        ("HUGEINT", pa.array([-1, None], pa.int64())),
        ("UBIGINT", pa.array([1, None], pa.int64())),
        ("TIMESTAMP_S", pa.array([10**6, None], pa.timestamp("us"))),
    ],
)
def test_a_column_takes_what_clients_in_default_mode_write_for_it(text: str, upload: pa.Array) -> None:
    form = stored_form(BY_TEXT[text].field("c"))
    told = decode(encode(upload, form), form, form.declared.type)
    assert told.is_null().to_pylist() == [False, True]
    assert (
        exact(told)[0]
        == {
            "UUID": bytes.fromhex("b975e4187a6d4afdb1a41f7174ce1805"),
            "BOOLEAN": True,
            "JSON": "{}",
            "BIT": b"\x05\xfd",
            "HUGEINT": b"\xff" * 16,
            "UBIGINT": 1,
            "TIMESTAMP_S": 1,
        }[text]
    )


@pytest.mark.parametrize("number", [2**128 - 1, 2**127, 10**38, 0])
def test_a_wide_integer_written_into_a_decimal_keeps_all_its_digits(number: int) -> None:
    raw = number.to_bytes(16, "little")
    upload = pa.Array.from_buffers(pa.decimal128(38, 0), 1, [None, pa.py_buffer(raw)])
    form = stored_form(BY_TEXT["UHUGEINT"].field("c"))
    assert exact(decode(encode(upload, form), form, form.declared.type)) == [raw]


def test_stored_wide_integers_sort_like_the_numbers() -> None:
    numbers = [-(2**127), -(10**30), -1, 0, 1, 2**64, 2**127 - 1]
    sent = array_of(BY_TEXT["HUGEINT"], [number.to_bytes(16, "little", signed=True) for number in numbers])
    stored = encode(sent, stored_form(BY_TEXT["HUGEINT"].field("c"))).to_pylist()
    assert stored == sorted(stored)


@pytest.mark.parametrize(
    ("text", "upload"),
    [
        ("UTINYINT", pa.array([256], pa.int16())),
        ("UTINYINT", pa.array([-1], pa.int16())),
        ("UBIGINT", pa.array([-1], pa.int64())),
        ("UHUGEINT", pa.array([-1], pa.int64())),
        ("HUGEINT", pa.array([b"short"])),
        ("UUID", pa.array(["b975e418-7a6d-4afd-b1a4-1f7174ce180"])),
        ("UUID", pa.array(["g975e418-7a6d-4afd-b1a4-1f7174ce1805"])),
        ("TIME", pa.array([1], pa.int64())),
        ("TIME", pa.array([86_400_000_001], pa.int64()).cast(pa.time64("us"))),
        ("TIME", pa.array([-1], pa.int64()).cast(pa.time64("us"))),
        ("TIMESTAMP_S", pa.array([1], pa.timestamp("us"))),
        ("TIMESTAMP_NS", pa.array([2**60], pa.timestamp("s"))),
        ("TIMESTAMP", pa.array([1], pa.timestamp("us", "UTC"))),
        ("INTERVAL", pa.array([1], pa.int64())),
        ("INTEGER", pa.array(["1"])),
        ("FLOAT[3]", pa.array([[1.0, 2.0]], pa.list_(pa.float32()))),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(text: str, upload: pa.Array) -> None:
    with pytest.raises(RequestError, match=r"column 'c': a value does not fit"):
        encode(upload, stored_form(kind_named(text).field("c")))


def test_a_time_with_zone_that_lost_its_offset_is_refused_with_the_way_out() -> None:
    form = stored_form(pa.field("c", pa.list_(BY_TEXT["TIME WITH TIME ZONE"].field("l"))))
    with pytest.raises(RequestError, match=r"column 'c'.*arrow_lossless_conversion"):
        encode(pa.array([[1]], pa.list_(pa.time64("us"))), form)


def test_a_struct_upload_is_matched_by_name_and_unknown_fields_are_refused() -> None:
    form = stored_form(pa.field("c", pa.struct([("a", pa.uint8()), ("b", pa.string())])))
    turned = pa.array([{"B": "x", "a": 1}, None], pa.struct([("B", pa.string()), ("a", pa.uint8())]))
    assert encode(turned, form).to_pylist() == [{"a": 1, "b": "x"}, None]
    with pytest.raises(RequestError, match=r"column 'c'"):
        encode(pa.array([{"z": 1}], pa.struct([("z", pa.int32())])), form)


@pytest.mark.parametrize("kind", [pa.list_view(pa.uint8()), pa.large_list(pa.uint8()), pa.large_list_view(pa.uint8())])
def test_lists_of_every_layout_keep_their_values(kind: pa.DataType) -> None:
    values = [[1, None], None, [], [4, 5, 6]]
    form = stored_form(pa.field("c", kind))
    assert encode(pa.array(values, kind), form).to_pylist() == values
    assert encode(pa.array(values, kind).slice(2), form).to_pylist() == values[2:]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.sparse_union([pa.field("a", pa.int32())]), "UNION"),
        (pa.list_(pa.sparse_union([pa.field("a", pa.int32())])), "UNION"),
        (pa.struct([("x", pa.map_(pa.map_(pa.int8(), pa.int8()), pa.int8()))]), "MAP"),
        (pa.decimal256(50, 2), r"DECIMAL\(50,2\)"),
        (pa.float16(), "halffloat"),
        (pa.struct([]), "struct"),
        (pa.struct([("a", pa.int8()), ("A", pa.int8())]), "STRUCT"),
        (pa.opaque(pa.binary(), "thing", "Somebody"), "arrow.opaque"),
    ],
)
def test_a_type_that_delta_cannot_keep_is_refused_with_column_and_type(kind: pa.DataType, said: str) -> None:
    with pytest.raises(RequestError, match=rf"column 'c'.*{said}"):
        stored_form(pa.field("c", kind))


def test_an_annotation_that_no_longer_fits_says_nothing() -> None:
    for metadata in ({ANNOTATION_KEY: '"uuid"'}, {ANNOTATION_KEY: "{broken"}, {ANNOTATION_KEY: '{"length": 3}'}):
        form = form_of("c", "long", metadata)
        assert (form.is_plain, form.annotation, form.declared.type) == (True, None, pa.int64())


def test_checks_are_told_only_where_stored_values_say_the_same() -> None:
    fields = [pa.field("u", pa.uuid()), pa.field("n", pa.uint8()), pa.field("t", pa.time64("us"))]
    columns = []
    for form in map(stored_form, fields):
        metadata = {ANNOTATION_KEY: form.annotation}
        columns.append({"name": form.name, "type": form.delta, "nullable": True, "metadata": metadata})
    checks = ("n > 3", "t > 5", "u = 'B975E418-7A6D-4AFD-B1A4-1F7174CE1805'", "t IS NOT NULL")
    properties = {f"delta.constraints.c{index}": check for index, check in enumerate(checks)}
    schema = read_schema(json.dumps({"type": "struct", "fields": columns}), properties, "_rowid")
    told = msgpack.unpackb((shape_of(schema, statistics=False).metadata or {})[CHECKS_KEY])
    assert told == {"constraints": ["n > 3", "NOT t IS NULL"]}


@pytest.mark.parametrize("written", ['{"length": 1099511627776}', '{"length": true}', '{"element": 5}', "[" * 100_000])
def test_an_annotation_that_others_wrote_does_no_harm(written: str) -> None:
    form = form_of("c", {"type": "array", "elementType": "long", "containsNull": True}, {ANNOTATION_KEY: written})
    assert form.is_plain
    assert form.declared.type == pa.list_(pa.field("element", pa.int64()))


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("UUID", "no uuid"),
        ("UUID", "B975E418-7A6D-4AFD-B1A4-1F7174CE1805"),
        ("HUGEINT", b"short"),
        ("UTINYINT", 300),
        ("FLOAT[3]", [1.0]),
    ],
)
def test_a_stored_value_that_others_broke_is_told_with_its_column(text: str, stored: object) -> None:
    form = stored_form(kind_named(text).field("c"))
    with pytest.raises(PreconditionError, match=r"column 'c' holds a value that is no"):
        decode(pa.array([stored], form.arrow), form, form.declared.type)
