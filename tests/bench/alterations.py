"""ALTER … TYPE, which DuckDB computes in Spark's Python workers, against the same rewrite with Spark's own cast.

The table has nothing but the numbers that are cast, so nothing hides what the way to Python and back costs.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from gateway.lake.spark.engine import Profile
from gateway.lake.sql.quoting import table_at
from tests.airport import AirportClient
from tests.bench.data import Data
from tests.bench.report import Duel, Results
from tests.bench.timing import take_turns, timed
from tests.bench.writes import PROPERTIES, running
from tests.system.process import CATALOG

_ROUNDS = 3
_FILES = 8


def measure_alterations(data: Data, folder: Path, results: Results) -> None:
    with running(folder / "alterations") as (spark, gateway, warehouse):
        root = warehouse / "w"
        with spark.session(Profile.THROUGHPUT) as session:
            _make(session, root / "numbers", data.rows)

            def through_gateway(turn: int) -> float:
                table = _copy(root, f"gateway_{turn}")
                with AirportClient(gateway.location, CATALOG) as client:
                    return timed(lambda: client.ddl.change_column_type("w", table, pa.field("x", pa.string())))

            def by_hand(turn: int) -> float:
                path = str(root / _copy(root, f"spark_{turn}"))
                rows = session.read.format("delta").load(path).selectExpr("_rowid", "CAST(x AS STRING) AS x")
                writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
                return timed(lambda: writer.save(path))

            take_turns(1, lambda _: through_gateway(_ROUNDS), lambda _: by_hand(_ROUNDS))
            mine, theirs = take_turns(_ROUNDS, through_gateway, by_hand)
    title = f"ALTER of {data.rows:,} BIGINTs to VARCHAR"
    results.add(Duel("alter.cast", title, "cast", mine, theirs, data.rows))


def _make(session: Any, path: Path, rows: int) -> None:
    session.sql(f"CREATE TABLE {table_at(str(path))} (_rowid BIGINT, x BIGINT) USING delta {PROPERTIES}")
    numbers = session.range(0, rows, 1, _FILES).selectExpr("id AS _rowid", "xxhash64(id) AS x")
    numbers.write.format("delta").mode("append").save(str(path))


def _copy(root: Path, name: str) -> str:
    shutil.copytree(root / "numbers", root / name, copy_function=os.link)
    return name
