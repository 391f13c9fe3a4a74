"""The JSON dialect of DML: what a DoPut command and a `delete` body say, and how they are answered.

Requests are read strictly: an unknown or duplicate field, a wrong type or a list
that is too long is a RequestError that names the field and the rule. Replies to
DoPut are msgpack maps, replies to `delete` JSON; returned rows travel in both as
one Arrow IPC stream. Whether tables, columns and rows exist is not known here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from gateway.errors import RequestError
from gateway.wire.packing import pack

MAX_DOCUMENT_BYTES = 16 << 20
MAX_ROW_IDS = 1_000_000
MAX_RETURNING_COLUMNS = 10_000
MAX_TEXT_CHARACTERS = 1_000
INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What all three operations say. `catalog` None means the caller's; no `returning_columns` means all of them."""

    schema: str
    table: str
    catalog: str | None = None
    returning: bool = False
    returning_columns: tuple[str, ...] = ()
    read_version: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertCommand(Command):
    """The rows follow in the upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCommand(Command):
    """Row i of the upload holds the new values of `row_ids[i]`."""

    row_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCommand(Command):
    row_ids: tuple[int, ...]


def decode_put(raw: bytes) -> InsertCommand | UpdateCommand:
    """The command of a DoPut descriptor."""
    document = _Document("command", raw)
    match document.text("operation"):
        case "insert":
            document.allow_only("operation", *_COMMON)
            return InsertCommand(**document.common())
        case "update":
            document.allow_only("operation", "row_ids", *_COMMON)
            return UpdateCommand(**document.common(), row_ids=document.row_ids("UPDATE"))
    raise RequestError("command: field 'operation' must be 'insert' or 'update'; DELETE is the action 'delete'")


def decode_delete(raw: bytes) -> DeleteCommand:
    """The body of the action `delete`."""
    document = _Document("delete", raw)
    document.allow_only("row_ids", *_COMMON)
    return DeleteCommand(**document.common(), row_ids=document.row_ids("DELETE"))


def is_json(raw: bytes) -> bool:
    """Whether an action that has two encodings was called in this one: an object, or nothing at all."""
    return not raw or raw.lstrip()[:1] == b"{"


def decode_create_transaction(raw: bytes) -> bool:
    """Whether the first statement ends the transaction."""
    document = _Document("create_transaction", raw or b"{}")
    document.allow_only("auto_commit", "catalog_name")
    return document.truth("auto_commit", default=True)


def decode_transaction(action: str, raw: bytes) -> str | None:
    """The id in the body of an action on a transaction; None when there is no body."""
    if not raw:
        return None
    document = _Document(action, raw)
    document.allow_only("transaction_id")
    return document.text("transaction_id")


def encode_put_reply(affected_rows: int, returned: bytes | None = None) -> bytes:
    """The metadata of a PutResult; `returned` is what `encode_rows` made."""
    reply: dict[str, Any] = {"status": "success", "affected_rows": affected_rows}
    return pack(reply if returned is None else {**reply, "returning_data": returned})


def encode_delete_reply(affected_rows: int, returned: bytes | None = None) -> bytes:
    reply: dict[str, Any] = {"status": "success", "affected_rows": affected_rows}
    if returned is not None:
        reply["returning_data"] = base64.b64encode(returned).decode("ascii")
    return json.dumps(reply).encode("utf-8")


def encode_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Returned rows as one Arrow IPC stream; without any row, the schema alone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def printable(name: str) -> str:
    """A client-supplied name, fit for a message."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:60])


_COMMON = (
    "schema_name",
    "table_name",
    "catalog_name",
    "returning",
    "returning_columns",
    "read_version",
    "idempotency_key",
)


class _Document:
    """Typed access to one JSON object. A null counts as absent: that is how Go writes an empty list."""

    def __init__(self, what: str, raw: bytes) -> None:
        self._what = what
        if len(raw) > MAX_DOCUMENT_BYTES:
            raise RequestError(f"{what}: the JSON is larger than {MAX_DOCUMENT_BYTES} bytes")
        self._fields = self._parse(raw)

    def _parse(self, raw: bytes) -> Mapping[str, Any]:
        try:
            # Python reads NaN, UTF-16 and duplicate keys; JSON has none of them.
            fields = json.loads(raw.decode("utf-8"), object_pairs_hook=self._object, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{self._what}: the request is not valid JSON") from error
        if not isinstance(fields, dict):
            raise RequestError(f"{self._what}: the request must be a JSON object")
        return fields

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if name in fields:
                raise self._error(name, "is given twice")
            fields[name] = value
        return fields

    def allow_only(self, *names: str) -> None:
        for name in self._fields:
            if name not in names:
                raise self._error(name, "is unknown")

    def common(self) -> dict[str, Any]:
        return {
            "schema": self.text("schema_name"),
            "table": self.text("table_name"),
            "catalog": self._optional_text("catalog_name"),
            "returning": self.truth("returning", default=False),
            "returning_columns": self._texts("returning_columns"),
            "read_version": self._version("read_version"),
            "idempotency_key": self._optional_text("idempotency_key"),
        }

    def text(self, name: str) -> str:
        value = self._optional_text(name)
        if value is None:
            raise self._error(name, "is missing")
        if not value:
            raise self._error(name, "must not be empty")
        return value

    def row_ids(self, verb: str) -> tuple[int, ...]:
        value = self._list("row_ids", MAX_ROW_IDS)
        if not value:
            raise RequestError(f"row_ids cannot be empty for {verb}")
        if not all(type(item) is int and item in INT64 for item in value):
            raise self._error("row_ids", "must hold whole numbers of 64 bits")
        return tuple(value)

    def _optional_text(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None else self._checked_text(name, value)

    def _texts(self, name: str) -> tuple[str, ...]:
        texts = tuple(self._checked_text(name, item) for item in self._list(name, MAX_RETURNING_COLUMNS))
        if len(set(texts)) < len(texts):
            raise self._error(name, "must not hold a name twice")
        return texts

    def truth(self, name: str, *, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(name, "must be true or false")
        return value

    def _version(self, name: str) -> int | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if type(value) is not int or value < 0 or value not in INT64:
            raise self._error(name, "must be a whole number of 64 bits, not below 0")
        return value

    def _list(self, name: str, max_items: int) -> list[Any]:
        value = self._fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._error(name, "must be a list")
        if len(value) > max_items:
            raise self._error(name, f"must not hold more than {max_items} items")
        return value

    def _checked_text(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self._error(name, "must be text")
        if len(value) > MAX_TEXT_CHARACTERS:
            raise self._error(name, f"must not be longer than {MAX_TEXT_CHARACTERS} characters")
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise self._error(name, "must be Unicode text")
        return value

    def _error(self, name: str, rule: str) -> RequestError:
        return RequestError(f"{self._what}: field '{printable(name)}' {rule}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
