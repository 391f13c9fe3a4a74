from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from gateway.errors import MalformedTicketError, RequestError
from gateway.wire import tickets
from gateway.wire.tickets import (
    ScanTicket,
    SchemaStamp,
    Slice,
    TablePath,
    decode_path,
    decode_ticket,
    encode_path,
    encode_ticket,
    stamp_of,
)

SHAPE = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string_view(), metadata={"comment": "c"})]
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
INTS = st.integers(-(2**63) + 1, 2**63 - 1)
SLICES = st.one_of(
    st.none(),
    st.builds(Slice, NAMES, st.none() | INTS, st.none() | INTS),
    st.builds(Slice, NAMES, st.none() | NAMES, st.none() | NAMES),
)
TICKETS = st.builds(
    ScanTicket,
    catalog=NAMES,
    schema=NAMES,
    table=NAMES,
    identity=NAMES,
    version=st.integers(0, 2**63 - 1),
    shape=st.just(SHAPE),
    columns=st.frozensets(NAMES, max_size=5),
    filters=st.binary(max_size=50),
    slice=SLICES,
)


@given(TICKETS)
def test_a_ticket_comes_back_as_it_went_out(ticket: ScanTicket) -> None:
    back = decode_ticket(encode_ticket(ticket))
    assert back == ticket
    assert back.shape.equals(ticket.shape, check_metadata=True)


@given(st.binary(max_size=400))
def test_foreign_bytes_are_a_malformed_ticket(raw: bytes) -> None:
    with pytest.raises(MalformedTicketError):
        decode_ticket(raw)


@given(TICKETS, st.data())
def test_a_cut_ticket_is_a_malformed_ticket(ticket: ScanTicket, data: st.DataObject) -> None:
    raw = encode_ticket(ticket)
    with pytest.raises(MalformedTicketError):
        decode_ticket(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(TICKETS, st.data())
def test_a_changed_ticket_is_read_or_refused_but_never_anything_else(ticket: ScanTicket, data: st.DataObject) -> None:
    raw = bytearray(encode_ticket(ticket))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_ticket(bytes(raw))
    except MalformedTicketError as error:
        assert len(error.message) < 100


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, 99), (1, ["a", "b", "c"]), (1, [1, 2, 3, 4]), (2, -1), (2, "1"), (3, b"no schema"), (4, "k"), (4, [1]),
     (5, b"\xc1"), (5, 7), (5, None), (5, "{}"),
     (6, ["k", 1, "x"]), (6, ["k", 1.5, None]), (6, ["k", 2**63, None]), (6, [1, 2, 3]), (6, "k")],
)  # fmt: skip
def test_each_field_of_a_ticket_is_checked(position: int, value: object) -> None:
    ticket = ScanTicket("c", "s", "t", "id", 3, SHAPE, frozenset({"k"}))
    fields = msgpack.unpackb(encode_ticket(ticket))
    fields[position] = value
    with pytest.raises(MalformedTicketError):
        decode_ticket(msgpack.packb(fields))


def test_a_filter_travels_compressed_and_is_not_let_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = ScanTicket("c", "s", "t", "id", 3, SHAPE, frozenset({"k"}), filters=b'{"filters": []}' * 1000)
    raw = encode_ticket(ticket)
    assert len(raw) < 1000
    monkeypatch.setattr(tickets, "MAX_TICKET_BYTES", 10_000)
    with pytest.raises(MalformedTicketError, match="too large"):
        decode_ticket(raw)


@given(NAMES, NAMES, st.none() | NAMES, st.none() | st.builds(SchemaStamp, st.integers(0, 10**17), st.just("abc123")))
def test_a_path_comes_back_as_it_went_out(
    schema: str, table: str, catalog: str | None, stamp: SchemaStamp | None
) -> None:
    if any(part and part.startswith(".") for part in (schema, table, catalog)):
        return  # not a name
    path = TablePath(schema, table, catalog, stamp)
    assert decode_path(encode_path(path)) == path


@pytest.mark.parametrize(
    "descriptor",
    [
        flight.FlightDescriptor.for_command(b"select 1"),
        flight.FlightDescriptor.for_path("only"),
        flight.FlightDescriptor.for_path("a", "b", "c", "d"),
        flight.FlightDescriptor.for_path("a", "b", ".nonsense"),
        flight.FlightDescriptor.for_path("a", "b", ".-"),
        flight.FlightDescriptor.for_path(b"\xff", b"b"),
    ],
)
def test_other_descriptors_are_refused(descriptor: flight.FlightDescriptor) -> None:
    with pytest.raises(RequestError):
        decode_path(descriptor)


def test_a_stamp_distinguishes_shapes_by_place_name_and_type() -> None:
    stamps = {
        stamp_of(pa.schema(fields), 1).digest
        for fields in (
            [("a", pa.int32()), ("b", pa.int32())],
            [("b", pa.int32()), ("a", pa.int32())],
            [("a", pa.int64()), ("b", pa.int32())],
            [("a", pa.int32())],
        )
    }
    assert len(stamps) == 4
