"""msgpack as the Airport client writes and reads it.

The client packs every C++ string as msgpack `str`, even when it holds binary
data, so requests are unpacked raw and each field says what it is. The only
array-encoded structure is the compressed envelope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import pyarrow as pa

from gateway.errors import RequestError

_ZSTD = pa.Codec("zstd")


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def unpack_map(what: str, body: bytes) -> dict[str, Any]:
    """One request body to its fields; texts stay bytes until a field asks for them.

    The last of two equal keys wins: `set_not_null` sends one twice.
    """
    try:
        fields = msgpack.unpackb(body, raw=True, strict_map_key=False)
    except Exception as error:  # msgpack raises a dozen unrelated classes on bad bytes
        raise RequestError(f"{what}: the body is not valid msgpack") from error
    if not isinstance(fields, dict):
        raise RequestError(f"{what}: the body must be a msgpack map")
    try:
        return {key.decode("utf-8"): value for key, value in fields.items()}
    except (AttributeError, UnicodeDecodeError) as error:
        raise RequestError(f"{what}: the body's keys must be text") from error


class Fields:
    """Typed access to the fields of one request; every defect names the action and the field."""

    def __init__(self, what: str, fields: Mapping[str, Any]) -> None:
        self._what = what
        self._fields = fields

    @classmethod
    def unpack(cls, what: str, body: bytes) -> Fields:
        return cls(what, unpack_map(what, body))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name)
        if value is None:
            if default is None:
                raise self._error(name, "is missing")
            return default
        if not isinstance(value, bytes):
            raise self._error(name, "must be text")
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(name, "must be UTF-8 text") from error

    def binary(self, name: str) -> bytes:
        value = self._fields.get(name)
        if not isinstance(value, bytes):
            raise self._error(name, "is missing" if value is None else "must be bytes")
        return value

    def map(self, name: str) -> Fields:
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self._error(name, "must be a map")
        return Fields(f"{self._what} {name}", {_key(self._what, key): item for key, item in value.items()})

    def whole_numbers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self._error(name, "must be a list of whole numbers")
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._error(name, "must be true or false")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; a missing one is empty."""
        value = self._fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, bytes) for item in value):
            raise self._error(name, "must be a list of texts")
        try:
            return tuple(item.decode("utf-8") for item in value)
        except UnicodeDecodeError as error:
            raise self._error(name, "must be UTF-8 text") from error

    def schema(self, name: str) -> pa.Schema:
        """An Arrow schema in IPC form."""
        try:
            return pa.ipc.read_schema(pa.py_buffer(self.binary(name)))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._error(name, "must be an Arrow schema") from error

    def _error(self, name: str, rule: str) -> RequestError:
        return RequestError(f"{self._what}: field '{name}' {rule}")


def _key(what: str, key: Any) -> str:
    if not isinstance(key, bytes):
        raise RequestError(f"{what}: keys must be text")
    return key.decode("utf-8", "replace")


def compress(payload: bytes) -> bytes:
    """The envelope `[length, zstd bytes]`; the client allocates exactly `length` bytes."""
    return pack([len(payload), _ZSTD.compress(payload, asbytes=True)])
