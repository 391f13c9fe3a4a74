"""Captured traffic of the real client: typed access to the files in `vectors/`.

`statements.jsonl` holds, per SQL statement, the RPCs in order of start with
request and accepted reply; `types.jsonl` holds, per DuckDB type, what the client
uploads. Ports are written PORT; ids are opaque. Replies are examples of what the
client accepts, not the only correct ones. `filters.jsonl` holds exact filter
documents with the SQL they came from and the rows DuckDB keeps for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

VECTORS = Path(__file__).parent / "vectors"


@dataclass(frozen=True)
class Rpc:
    """One captured call; `fields` is the line's object, for what has no accessor."""

    statement: str
    fields: Mapping[str, Any]

    @property
    def method(self) -> str:
        return self.fields["method"]

    @property
    def action(self) -> str:
        """The action type; empty for other methods."""
        return self.fields.get("action", "")

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, value) for name, value in self.fields["headers"])

    def header(self, name: str) -> str | None:
        """First value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def body(self) -> bytes:
        """Exact request bytes of an action."""
        return bytes.fromhex(self.fields.get("body_hex", ""))

    @property
    def decoded(self) -> dict[str, Any]:
        """The request of an action, expanded: descriptors, Arrow schemas and IPC as readable objects."""
        return self.fields.get("body", {})

    @property
    def results(self) -> list[Any]:
        """Decoded result bodies of an action."""
        return self.fields.get("results", [])

    @property
    def result_bytes(self) -> list[bytes]:
        """Exact result bodies of an action; captured for short ones only."""
        return [bytes.fromhex(text) for text in self.fields.get("results_hex", [])]

    @property
    def descriptor(self) -> flight.FlightDescriptor | None:
        """The descriptor of the call, or the one packed in an action's body."""
        described = self.fields.get("descriptor")
        for key in ("descriptor", "flight_descriptor"):
            if described is None and self.method == "DoAction" and key in self.decoded:
                described = self.decoded[key]["FlightDescriptor"]
        return None if described is None else decode_descriptor(described)

    @property
    def sequence(self) -> list[str]:
        """Messages of both sides of a DoExchange, in the order they passed."""
        return self.fields.get("sequence", [])

    @property
    def upload(self) -> tuple[pa.Schema, list[pa.RecordBatch]] | None:
        """What a DoExchange uploaded; None where it was too long to be kept."""
        text = self.fields.get("upload_ipc_hex")
        return None if text is None else decode_upload(text)

    @property
    def status(self) -> str:
        return self.fields["status"]


@dataclass(frozen=True)
class Statement:
    id: str
    kind: str
    sql: str
    result: Mapping[str, Any]
    rpcs: tuple[Rpc, ...]


def decode_descriptor(described: Mapping[str, Any]) -> flight.FlightDescriptor:
    if described["type"] == "PATH":
        return flight.FlightDescriptor.for_path(*described["path"])
    return flight.FlightDescriptor.for_command(described["cmd"])


def decode_upload(hex_text: str) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """An upload kept as IPC stream bytes without the end marker."""
    with pa.ipc.open_stream(bytes.fromhex(hex_text)) as stream:
        return stream.schema, list(stream)


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (VECTORS / name).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


@cache
def _all_statements() -> tuple[Statement, ...]:
    return tuple(
        Statement(
            id=line["id"],
            kind=line["kind"],
            sql=line["sql"],
            result=line["result"],
            rpcs=tuple(Rpc(line["id"], fields) for fields in line["rpcs"]),
        )
        for line in _lines("statements.jsonl")
    )


def statements(*kinds: str) -> list[Statement]:
    """Statements in capture order, of all kinds unless some are named; state carries over within a kind."""
    known = {statement.kind for statement in _all_statements()}
    if not known.issuperset(kinds):
        raise KeyError(f"no such kind: {sorted(set(kinds) - known)}")
    return [statement for statement in _all_statements() if not kinds or statement.kind in kinds]


def statement(statement_id: str) -> Statement:
    """The statement with this id, such as `select-3`."""
    for candidate in _all_statements():
        if candidate.id == statement_id:
            return candidate
    raise KeyError(statement_id)


def rpcs(method: str | None = None, action: str | None = None) -> list[Rpc]:
    """Calls of all statements, narrowed by method and action type."""
    return [
        rpc
        for each in _all_statements()
        for rpc in each.rpcs
        if method in (None, rpc.method) and action in (None, rpc.action)
    ]


@cache
def types() -> tuple[Mapping[str, Any], ...]:
    """The lines of `types.jsonl`: per DuckDB type, the Arrow field and values of each upload mode."""
    return tuple(_lines("types.jsonl"))


@cache
def filters() -> tuple[Mapping[str, Any], ...]:
    """The lines of `filters.jsonl`; `json_filters` is the exact text, `expect_rowids` what DuckDB keeps."""
    return tuple(_lines("filters.jsonl"))
