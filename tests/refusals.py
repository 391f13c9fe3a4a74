"""A refused call as a pyarrow client sees it: gRPC code, whole text and details, each checked against the others.

Arrow adds to every text: `. Detail: …` at the server, and in streams the whole
again at the client. What it adds follows from the error's class, so that a text
which leaks anything, or lacks anything, fails here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgpack
import pyarrow as pa
import pytest
from pyarrow import flight

# The class that a pyarrow client raises: the gRPC code, its number, and what the server adds to the text.
_KINDS: dict[type[Exception], tuple[str, int, str]] = {
    pa.ArrowKeyError: ("NOT_FOUND", 5, ". Detail: Python exception: NOT_FOUND"),
    pa.ArrowInvalid: ("INVALID_ARGUMENT", 3, ". Detail: Python exception: INVALID_ARGUMENT"),
    pa.ArrowNotImplementedError: ("UNIMPLEMENTED", 12, ". Detail: Python exception: UNIMPLEMENTED"),
    flight.FlightServerError: ("UNKNOWN", 2, ". Detail: Failed"),
    flight.FlightUnavailableError: ("UNAVAILABLE", 14, ". Detail: Unavailable"),
    flight.FlightUnauthorizedError: ("PERMISSION_DENIED", 7, ". Detail: Unauthorized"),
    flight.FlightInternalError: ("INTERNAL", 13, ". Detail: Internal"),
    pa.ArrowException: ("UNKNOWN", 2, ". Detail: Python exception: UNKNOWN. Detail: Failed"),  # GetSchema alone
}
# What Arrow itself refuses, before the gateway hears of the call, has no addition.
_OF_ARROW = ("Invalid flatbuffers message.",)
_OF_ACTIONS = "Flight error: "  # in front of the texts that DuckDB's client gets from actions
_CLIENTS_PART = re.compile(r"(?P<sent>.*?)(?:\. gRPC client debug context: (?P<context>.*))?", re.DOTALL)
# A quoted name is one that the caller gave.
_LEAKS = re.compile(
    r"Traceback|File \"|\.py\b|line \d|SELECT |MERGE |org\.apache|java\.|(?<![_'])_+deltaport|(?<!grpc:/)/"
)


@dataclass(frozen=True)
class Refusal:
    """`text` is ours alone; `reason` the true code, where the details have one; `sql_class` what DuckDB raises."""

    code: str
    text: str
    reason: str | None = None
    sql_class: str | None = None


def refusal_of(work: Callable[[], object]) -> Refusal:
    with pytest.raises((flight.FlightError, pa.ArrowException)) as failure:
        work()
    return read_refusal(failure.value)


def read_refusal(error: Exception) -> Refusal:
    code, number, addition = _KINDS[type(error)]
    parts = _CLIENTS_PART.fullmatch(str(error))
    assert parts is not None
    sent, context = parts["sent"], parts["context"]
    if type(error) is pa.ArrowException:
        sent = sent.removeprefix("Unknown error: ")
    if sent.startswith(_OF_ACTIONS):
        assert code == "UNKNOWN", repr(error)
        return Refusal(code, _checked(sent.removeprefix(_OF_ACTIONS)))
    assert sent.endswith(addition) or sent in _OF_ARROW, repr(error)
    assert context is None or context.startswith(f"{code}:{sent}. Client context: "), repr(error)
    text = _checked(sent.removesuffix(addition))
    details = getattr(error, "extra_info", b"")
    if not details:
        return Refusal(code, text)
    if details[0] == 0x08:  # a google.rpc.Status begins with its code, a msgpack map never does
        sent_number, sent_text, reason = decode_status(details)
        assert (sent_number, sent_text) == (number, text), repr(error)
        return Refusal(code, text, reason=reason)
    known = msgpack.unpackb(details)
    assert known["message"] == text, repr(error)
    return Refusal(code, text, sql_class=known["exception_type"])


def _checked(text: str) -> str:
    assert text
    assert not _LEAKS.search(text), text
    return text


def decode_status(raw: bytes) -> tuple[int, str, str]:
    """Code, message and reason of a google.rpc.Status with one ErrorInfo."""
    status = dict(_fields(raw))
    details = dict(_fields(status[3]))
    assert details[1] == b"type.googleapis.com/google.rpc.ErrorInfo"
    info = dict(_fields(details[2]))
    assert info[2] == b"deltaport"
    return status[1], status[2].decode(), info[1].decode()


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            at += value
            yield tag >> 3, raw[at - value : at]
        else:
            assert tag & 7 == 0, tag
            yield tag >> 3, value
