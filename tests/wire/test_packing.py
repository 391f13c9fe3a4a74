from __future__ import annotations

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.wire.packing import Fields, compress, unpack_map


def test_the_envelope_says_the_exact_length() -> None:
    length, payload = msgpack.unpackb(compress(b"x" * 777))
    assert length == 777
    assert pa.Codec("zstd").decompress(payload, decompressed_size=777, asbytes=True) == b"x" * 777


@given(st.binary(max_size=300))
def test_any_bytes_are_a_map_or_a_request_error(body: bytes) -> None:
    try:
        fields = unpack_map("action", body)
    except RequestError as error:
        assert error.message.startswith("action: ")
    else:
        assert all(isinstance(key, str) for key in fields)


def test_the_last_of_two_equal_keys_wins() -> None:
    body = b"\x82" + b"\xa1a\x01" + b"\xa1a\x02"
    assert unpack_map("set_not_null", body) == {"a": 2}


def test_binary_inside_a_text_value_survives() -> None:
    raw = bytes(range(256))
    body = b"\x81\xa1d" + b"\xda\x01\x00" + raw
    assert Fields.unpack("endpoints", body).binary("d") == raw


@pytest.mark.parametrize(
    ("fields", "read", "rule"),
    [
        ({}, lambda f: f.text("x"), "'x' is missing"),
        ({"x": 1}, lambda f: f.text("x"), "'x' must be text"),
        ({"x": b"\xff"}, lambda f: f.text("x"), "'x' must be UTF-8 text"),
        ({"x": 1}, lambda f: f.binary("x"), "'x' must be bytes"),
        ({"x": 1}, lambda f: f.map("x"), "'x' must be a map"),
        ({"x": [1, -1]}, lambda f: f.whole_numbers("x"), "'x' must be a list of whole numbers"),
        ({"x": [True]}, lambda f: f.whole_numbers("x"), "'x' must be a list of whole numbers"),
    ],
)
def test_a_defect_names_the_action_and_the_field(fields, read, rule) -> None:
    with pytest.raises(RequestError) as refused:
        read(Fields("act", fields))
    assert refused.value.message == f"act: field {rule}"
