"""A client that does everything the protocols allow and a kind client would not do.

`disguises` sends the same rows in other batches, types and columns: whatever a
statement is dressed in, it must do the same. `frames` leaves a call at any of
its frames. Both work with the DuckDB client's frames and with the JSON dialect:

    AirportClient(location, "lake", disguise=DISGUISES["empty batches"])
    JsonClient(location, schema, disguise=DISGUISES["empty batches"])

A test marked `also_disguised` runs twice: its client is once the DuckDB client and once a nasty one.
"""

import pytest

from tests.nasty.disguises import DISGUISES, EVERYTHING, Disguise, then

also_disguised = pytest.mark.parametrize("client", [None, EVERYTHING], ids=["plain", "disguised"], indirect=True)

__all__ = ["DISGUISES", "EVERYTHING", "Disguise", "also_disguised", "then"]
