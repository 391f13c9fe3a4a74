"""Calls that are left at one of their frames, and uploads that nobody finishes.

Each function opens a call, sends its frames up to one of them, and goes away:
the call is cancelled as the client's machine would, not closed in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
from pyarrow import flight

# Where a call can be left, in the order of its frames: `batch` comes once for each batch.
EXCHANGE_FRAMES = ("opened", "schema", "server's schema", "batch 1", "batch 2", "half-close")
PUT_FRAMES = ("schema", "batch 1", "batch 2", "half-close")
_GONE = (pa.ArrowException, flight.FlightError, OSError)
_PATIENCE_SECONDS = 0.5


def leave_exchange(
    location: str,
    descriptor: flight.FlightDescriptor,
    headers: Sequence[tuple[bytes, bytes]],
    batches: Sequence[pa.RecordBatch],
    last: str,
) -> None:
    """A DoExchange that is cancelled after this frame."""
    with flight.connect(location) as client:
        writer, reader = client.do_exchange(descriptor, flight.FlightCallOptions(headers=list(headers)))
        frames: list[tuple[str, Callable[[], object]]] = [
            ("opened", lambda: None),
            ("schema", lambda: writer.begin(batches[0].schema)),
            ("server's schema", lambda: reader.schema),
            *((f"batch {number}", partial(writer.write_batch, each)) for number, each in enumerate(batches, 1)),
            ("half-close", writer.done_writing),
        ]
        for name, send in frames:
            send()
            if name == last:
                break
        else:
            raise ValueError(f"there is no frame {last!r}")
        reader.cancel()
        with suppress(*_GONE):
            writer.close()


def leave_put(location: str, command: bytes, batches: Sequence[pa.RecordBatch], last: str) -> None:
    """A DoPut whose time is up after this frame: pyarrow has no other way to cancel one."""
    with flight.connect(location) as client:
        impatient = flight.FlightCallOptions(timeout=_PATIENCE_SECONDS)
        writer, replies = client.do_put(flight.FlightDescriptor.for_command(command), batches[0].schema, impatient)
        frames: list[tuple[str, Callable[[], object]]] = [
            ("schema", lambda: None),
            *((f"batch {number}", partial(writer.write_batch, each)) for number, each in enumerate(batches, 1)),
            ("half-close", writer.done_writing),
        ]
        with suppress(*_GONE):
            for name, send in frames:
                send()
                if name == last:
                    break
            replies.read()  # waits for an answer until the time is up
        with suppress(*_GONE):
            writer.close()
