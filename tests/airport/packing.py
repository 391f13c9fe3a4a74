"""msgpack as the Airport client writes it, and the compressed envelope it reads.

The client is C++: every `std::string` goes out as msgpack `str`, also when it
holds protobuf or Arrow bytes, and a map may repeat a key. Python's packer can do
neither, so the few headers it lacks are written by hand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import pyarrow as pa

_headers = msgpack.Packer()


class ProtocolViolation(AssertionError):  # noqa: N818 - a verdict on the server, not an error of this client
    """The server sent what would crash, hang or mislead the real client."""


class Pairs(list[tuple[Any, Any]]):
    """A msgpack map as key/value pairs: keeps the order and repeated keys."""


def pack(value: object) -> bytes:
    """Pack as the client does; `str` and `bytes` both become msgpack `str`."""
    match value:
        case str():
            return _pack_text(value.encode())
        case bytes():
            return _pack_text(value)
        case Pairs():
            return _headers.pack_map_header(len(value)) + b"".join(pack(k) + pack(v) for k, v in value)
        case Mapping():
            return pack(Pairs(value.items()))
        case list() | tuple():
            return _headers.pack_array_header(len(value)) + b"".join(map(pack, value))
        case _:
            return _headers.pack(value)


def _pack_text(raw: bytes) -> bytes:
    size = len(raw)
    if size < 32:
        header = bytes([0xA0 | size])
    elif size < 1 << 8:
        header = bytes([0xD9, size])
    elif size < 1 << 16:
        header = b"\xda" + size.to_bytes(2, "big")
    else:
        header = b"\xdb" + size.to_bytes(4, "big")
    return header + raw


def unpack_request(body: bytes) -> Pairs:
    """Inverse of `pack` for a request map: strings come back as bytes, maps as `Pairs`."""
    return msgpack.unpackb(body, raw=True, object_pairs_hook=Pairs, strict_map_key=False)


def unpack_reply(raw: bytes, what: str) -> Any:
    """One msgpack value with nothing after it; strings stay bytes, `str` and `bin` alike."""
    try:
        return msgpack.unpackb(raw, raw=True, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolViolation(f"{what}: not one msgpack value: {error}") from error


def unpack_map(raw: bytes, what: str) -> dict[str, Any]:
    """A reply map with its keys as text."""
    return text_keys(unpack_reply(raw, what), what)


def text_keys(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolViolation(f"{what}: a map is needed, not {value!r}")
    return {text(key, f"{what} key"): item for key, item in value.items()}


def text(value: object, what: str) -> str:
    """A string field, distinct from nil and absence."""
    if not isinstance(value, bytes):
        raise ProtocolViolation(f"{what}: a string is needed, not {value!r}")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"{what}: not UTF-8: {value!r}") from error


def optional_text(value: object, what: str) -> str | None:
    return None if value is None else text(value, what)


def uint(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ProtocolViolation(f"{what}: an unsigned integer is needed, not {value!r}")
    return value


def boolean(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise ProtocolViolation(f"{what}: a boolean is needed, not {value!r}")
    return value


def open_envelope(raw: bytes, what: str) -> bytes:
    """Contents of `[length, zstd bytes]`; the client allocates exactly that length."""
    value = unpack_reply(raw, what)
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], bytes):
        raise ProtocolViolation(f"{what}: the envelope is [length, zstd bytes]")
    length = uint(value[0], f"{what} length")
    try:
        data = pa.CompressedInputStream(pa.BufferReader(value[1]), "zstd").read()
    except (OSError, pa.ArrowException) as error:
        raise ProtocolViolation(f"{what}: not a zstd frame: {error}") from error
    if len(data) != length:
        raise ProtocolViolation(f"{what}: {length} bytes promised, {len(data)} in the frame")
    return data
