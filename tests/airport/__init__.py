"""An Airport client for tests: on the wire what DuckDB's Airport extension is, and stricter about replies.

    with AirportClient(location, "db") as client:
        people = client.table("demo", "people")
        rows = client.scan("demo", "people", ["name"], [people.ref("id").eq(1)]).rows()

What would crash, hang or mislead the real client raises `ProtocolViolation`; errors
the server sends arrive as pyarrow's own. `client.calls` is what was sent.
"""

from tests.airport.arrow_types import duckdb_type, upload_type
from tests.airport.catalog import UnknownNameError
from tests.airport.client import AirportClient
from tests.airport.connection import Call
from tests.airport.exchange import Changed
from tests.airport.packing import ProtocolViolation
from tests.airport.replies import ROWID, Flight, decode_exception
from tests.airport.scan import Chunk, Scan, Scanned
from tests.airport.steps import Transaction

__all__ = [
    "ROWID",
    "AirportClient",
    "Call",
    "Changed",
    "Chunk",
    "Flight",
    "ProtocolViolation",
    "Scan",
    "Scanned",
    "Transaction",
    "UnknownNameError",
    "decode_exception",
    "duckdb_type",
    "upload_type",
]
