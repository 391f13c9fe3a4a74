from __future__ import annotations

import hashlib

import msgpack
import pyarrow as pa

from gateway.wire.listing import encode_contents


def test_contents_carry_the_hash_of_their_bytes() -> None:
    made = encode_contents([b"one", b"two"])
    assert made["sha256"] == hashlib.sha256(made["serialized"]).hexdigest()
    length, payload = msgpack.unpackb(made["serialized"])
    assert msgpack.unpackb(pa.Codec("zstd").decompress(payload, length)) == [b"one", b"two"]
