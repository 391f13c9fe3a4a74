"""Rows in files that deletion vectors hide: counted from the log as Spark writes it, at every version."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow import flight

from gateway.lake.tables.deletions import deleted_rows
from gateway.lake.tables.storage import Folder
from gateway.ops.lifecycle import Gateway
from tests.airport import AirportClient
from tests.builders import Lake
from tests.flight.writing import batch

VECTORS = {"delta.enableDeletionVectors": "true"}


def stored_and_there(lake: Lake, version: int) -> tuple[int, int]:
    table = DeltaTable(str(lake.path("t")), version=version)
    counted = QueryBuilder().register("t", table).execute("SELECT count(*) AS n FROM t")
    there = pa.RecordBatchReader.from_stream(counted).read_all().to_pylist()[0]["n"]
    return table.count(), there


def change_often(lake: Lake) -> int:
    """New vectors, larger ones for the same file, a file without any row left, rewritten files; the last version."""
    for statement in (
        "DELETE FROM {t} WHERE k IN (1, 11)",
        "DELETE FROM {t} WHERE k IN (2, 3)",
        "UPDATE {t} SET v = 'x' WHERE k IN (4, 12, 25)",
        "DELETE FROM {t} WHERE k >= 20 AND k < 30",
        "OPTIMIZE {t}",
        "DELETE FROM {t} WHERE k = 14",
    ):
        lake.sql(statement, "t")
    return DeltaTable(str(lake.path("t"))).version()


def test_stored_rows_without_the_deleted_ones_are_those_that_are_there(lake: Lake) -> None:
    lake.numbers("t", 30, files=3, properties={**VECTORS, "delta.checkpointInterval": "3"})
    last = change_often(lake)
    log = Folder.open(str(lake.path("t") / "_delta_log"))
    assert f"{6:020d}.checkpoint.parquet" in log.files()  # the first versions are counted from commits alone
    counted = []
    for version in range(1, last + 1):
        deleted = deleted_rows(log, version)
        assert deleted is not None
        stored, there = stored_and_there(lake, version)
        assert stored - deleted == there, version
        counted.append(deleted)
    assert max(counted) > 4
    assert counted[-1] > 0


def test_a_log_that_cannot_tell_gives_no_number(lake: Lake) -> None:
    lake.numbers("t", 30, properties=VECTORS)
    lake.sql("DELETE FROM {t} WHERE k = 1", "t")
    folder = lake.path("t") / "_delta_log"
    (folder / f"{0:020d}.json").unlink()
    assert deleted_rows(Folder.open(str(folder)), 2) is None


def test_a_client_is_told_how_many_rows_there_are(gateway: Gateway, client: AirportClient, lake: Lake) -> None:
    lake.numbers("t", 30, properties=VECTORS)
    client.delete(lake.schema, "t", [1, 2, 3])
    client.insert(lake.schema, "t", batch(k=[50], v=["x"]))
    with flight.connect(gateway.location) as plain:
        descriptor = flight.FlightDescriptor.for_path("lake", lake.schema, "t")
        assert plain.get_flight_info(descriptor).total_records == 28
