"""Tickets and descriptors: what a client is handed and hands back.

A ticket names one version of one table with the schema declared to the client,
so reading it twice gives the same rows in the same shape whatever was
committed in between. The client's filter document travels in it as it came,
compressed, and is parsed again when it is back. A descriptor's last part is a stamp of the schema it was
listed with. Both come back as untrusted input; whether the table still exists
is for the catalog to say.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgpack
import pyarrow as pa
from pyarrow import flight

from gateway.errors import MalformedTicketError, RequestError

_FORMAT = 2  # the first field of every ticket; raise it when the fields change
MAX_TICKET_BYTES = 64 << 20
_COMPRESSION = "zstd"  # of a filter with a list of 10,000 items it leaves 33 KB of 2 MB
ROWID_COLUMN_ID = 2**64 - 1
# The list of catalogs, which clients read like a table.
DATABASES_TICKET = b"databases"
_DATABASES_PATH = [b"__databases"]

Bound = int | str | None


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows whose `column` is in [low, high); rows without a value belong to the slice without a lower bound."""

    column: str
    low: Bound
    high: Bound


@dataclass(frozen=True, slots=True)
class ScanTicket:
    catalog: str
    schema: str
    table: str
    identity: str
    version: int
    shape: pa.Schema
    columns: frozenset[str]
    filters: bytes = b""
    slice: Slice | None = None


def encode_ticket(ticket: ScanTicket) -> bytes:
    part = ticket.slice
    raw: bytes = msgpack.packb(
        [
            _FORMAT,
            [ticket.catalog, ticket.schema, ticket.table, ticket.identity],
            ticket.version,
            ticket.shape.serialize().to_pybytes(),
            sorted(ticket.columns),
            pa.Codec(_COMPRESSION).compress(ticket.filters, asbytes=True),
            None if part is None else [part.column, part.low, part.high],
        ]
    )
    return raw


def decode_ticket(raw: bytes) -> ScanTicket:
    """Inverse of `encode_ticket`; any defect is a MalformedTicketError."""
    if len(raw) > MAX_TICKET_BYTES:
        raise MalformedTicketError("the ticket is too large")
    try:
        form, names, version, shape, columns, filters, part = msgpack.unpackb(raw, raw=False, use_list=True)
    except Exception as error:  # msgpack raises a dozen unrelated classes on bad bytes
        raise MalformedTicketError("the ticket is not one of this gateway's") from error
    if form != _FORMAT:
        raise MalformedTicketError("the ticket is not of this gateway's version; run the statement again")
    is_version = type(version) is int and 0 <= version < 2**63
    if not (_is_text_list(names) and len(names) == 4 and is_version and _is_text_list(columns)):
        raise MalformedTicketError("the ticket is malformed")
    catalog, schema, table, identity = names
    return ScanTicket(
        catalog=catalog,
        schema=schema,
        table=table,
        identity=identity,
        version=version,
        shape=decode_schema(shape),
        columns=frozenset(columns),
        filters=_decode_filters(filters),
        slice=_decode_slice(part),
    )


def _decode_filters(raw: object) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(raw), _COMPRESSION) as stream:
            document: bytes = stream.read(MAX_TICKET_BYTES + 1)
    except (pa.ArrowException, OSError, TypeError) as error:
        raise MalformedTicketError("the ticket's filter is malformed") from error
    if len(document) > MAX_TICKET_BYTES:
        raise MalformedTicketError("the ticket's filter is too large")
    return document


def _decode_slice(part: object) -> Slice | None:
    if part is None:
        return None
    if not (isinstance(part, list) and len(part) == 3 and isinstance(part[0], str)):
        raise MalformedTicketError("the ticket's slice is malformed")
    bounds = [bound for bound in part[1:] if bound is not None]
    kinds = {type(bound) for bound in bounds}
    if len(kinds) > 1 or not kinds <= {int, str} or any(type(b) is int and abs(b) >= 2**63 for b in bounds):
        raise MalformedTicketError("the ticket's slice is malformed")
    return Slice(part[0], part[1], part[2])


def decode_schema(raw: object) -> pa.Schema:
    try:
        if not isinstance(raw, bytes):
            raise TypeError("schema bytes")
        return pa.ipc.read_schema(pa.py_buffer(raw))
    except Exception as error:  # Arrow raises several classes on bad bytes
        raise MalformedTicketError("the ticket's schema is malformed") from error


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@dataclass(frozen=True, slots=True)
class TablePath:
    """A table as a descriptor names it; `catalog` is None where the call's header decides."""

    schema: str
    table: str
    catalog: str | None = None
    stamp: SchemaStamp | None = None


@dataclass(frozen=True, slots=True)
class SchemaStamp:
    """Which schema was declared to a client: one that the table had at `version`, and its digest."""

    version: int
    digest: str

    def __str__(self) -> str:
        # Names never start with a dot, so a stamp cannot be taken for a name.
        return f".{self.version}-{self.digest}"


def stamp_of(shape: pa.Schema, version: int) -> SchemaStamp:
    """Two shapes with the same digest have the same columns, in the same places, of the same types."""
    text = "\n".join(f"{field.name}\0{field.type}" for field in shape)
    return SchemaStamp(version, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16])


def is_databases(descriptor: flight.FlightDescriptor) -> bool:
    return bool(descriptor.descriptor_type == flight.DescriptorType.PATH and descriptor.path == _DATABASES_PATH)


def encode_path(path: TablePath) -> flight.FlightDescriptor:
    names = [path.schema, path.table] if path.catalog is None else [path.catalog, path.schema, path.table]
    return flight.FlightDescriptor.for_path(*names, *([] if path.stamp is None else [str(path.stamp)]))


def decode_path(descriptor: flight.FlightDescriptor) -> TablePath:
    """A descriptor of the form [catalog,] schema, table [, stamp]; anything else is a RequestError."""
    if descriptor.descriptor_type != flight.DescriptorType.PATH:
        raise RequestError("the descriptor must be a path: schema, table")
    try:
        parts = [part.decode("utf-8") for part in descriptor.path]
    except UnicodeDecodeError as error:
        raise RequestError("the descriptor's path must be UTF-8 text") from error
    stamp = _parse_stamp(parts.pop()) if len(parts) > 2 and parts[-1].startswith(".") else None
    if len(parts) == 2:
        return TablePath(parts[0], parts[1], None, stamp)
    if len(parts) == 3:
        return TablePath(parts[1], parts[2], parts[0], stamp)
    raise RequestError("the descriptor's path must name schema and table")


def _parse_stamp(text: str) -> SchemaStamp:
    version, dash, digest = text[1:].partition("-")
    if not (dash and version.isascii() and version.isdigit() and len(version) < 19 and digest):
        raise RequestError("the descriptor's schema stamp is malformed; attach again")
    return SchemaStamp(int(version), digest)
