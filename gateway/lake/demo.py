"""The demo warehouse: three small tables that show what the gateway serves.

Made by Spark in a hidden folder and moved into place at the end, so that a
half-made demo is never seen. An existing schema of that name is left alone.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from gateway.errors import GatewayError, InternalError, RequestError
from gateway.lake.spark.engine import Profile, Spark
from gateway.lake.sql.quoting import table_at

log = structlog.get_logger(__name__)

SCHEMA = "demo"
ORDERS = 100_000
_HOUR = 3600
_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.checkpointInterval": "100",
}


def has_demo(warehouse: Path) -> bool:
    return (warehouse / SCHEMA).exists()


def make_demo(spark: Spark, warehouse: Path, rowid_column: str, report: Callable[[str], None]) -> None:
    """Make the demo schema under a local warehouse, once. What `report` raises between tables ends it."""
    if has_demo(warehouse):
        return
    if not rowid_column.isidentifier():
        raise RequestError("the demo needs rowids.column to be a plain name")
    staging = warehouse / ".demo-in-the-making"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        with spark.session(Profile.LATENCY) as session:
            for name, make in {"customers": _customers, "orders": _orders, "events": _events}.items():
                report(f"{SCHEMA}.{name}")
                make(session, str(staging / name), rowid_column)
        staging.rename(warehouse / SCHEMA)
    except GatewayError:
        raise
    except Exception as error:  # Spark's own, or the disk's
        log.error("demo_failed", error=type(error).__name__, detail=str(error)[:500])
        raise InternalError("Spark could not make them; see the gateway's log") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _customers(session: Any, path: str, rowid: str) -> None:
    _create(
        session,
        path,
        "People and companies that order",
        f"""
        {rowid} BIGINT,
        customer_id BIGINT NOT NULL COMMENT 'Key',
        name STRING NOT NULL,
        country STRING COMMENT 'ISO 3166 code',
        since DATE,
        vip BOOLEAN DEFAULT false""",
    )
    _fill(
        session,
        path,
        f"""
        SELECT id AS {rowid}, id + 1 AS customer_id, concat('Customer ', id + 1) AS name,
               element_at(array('DE', 'FR', 'JP', 'BR', 'US', 'KE'), cast(id % 6 AS INT) + 1) AS country,
               date_add(DATE'2015-01-01', cast(id * 3 % 3650 AS INT)) AS since, id % 50 = 0 AS vip
        FROM range(1000)""",
        999,
    )


def _orders(session: Any, path: str, rowid: str) -> None:
    _create(
        session,
        path,
        "One line per order",
        f"""
        {rowid} BIGINT,
        order_id BIGINT NOT NULL COMMENT 'Key',
        customer_id BIGINT NOT NULL,
        ordered_at TIMESTAMP NOT NULL,
        status STRING,
        amount DECIMAL(12, 2) COMMENT 'In EUR',
        discount DOUBLE,
        note STRING COMMENT 'Mostly empty'""",
    )
    session.sql(f"ALTER TABLE {table_at(path)} ADD CONSTRAINT amount_not_negative CHECK (amount >= 0)")
    _fill(
        session,
        path,
        f"""
        SELECT id AS {rowid}, id + 1 AS order_id, id * 7919 % 1000 + 1 AS customer_id,
               timestamp_seconds(1672531200 + id * 631) AS ordered_at,
               element_at(array('new', 'paid', 'shipped', 'returned'), cast(id * 31 % 4 AS INT) + 1) AS status,
               cast(cast(id * 104729 % 5000000 AS DECIMAL(20, 2)) / 100 AS DECIMAL(12, 2)) AS amount,
               CASE WHEN id % 10 = 0 THEN 0.1D END AS discount,
               CASE WHEN id % 97 = 0 THEN concat('Gift for customer ', id % 1000) END AS note
        FROM range(0, {ORDERS}, 1, 4)""",
        ORDERS - 1,
    )


def _events(session: Any, path: str, rowid: str) -> None:
    _create(
        session,
        path,
        "What happened, by day; has versions and deleted rows to look at",
        f"""
        {rowid} BIGINT,
        event_id BIGINT NOT NULL,
        kind STRING NOT NULL,
        at TIMESTAMP_NTZ,
        tags ARRAY<STRING>,
        payload STRUCT<page: STRING, ms: INT>,
        day DATE""",
        "PARTITIONED BY (day)",
    )
    for day in range(3):
        first = day * 2000
        _fill(
            session,
            path,
            f"""
            SELECT id + {first} AS {rowid}, id + {first} AS event_id,
                   element_at(array('view', 'click', 'buy'), cast(id % 3 AS INT) + 1) AS kind,
                   TIMESTAMP_NTZ'2024-03-01 00:00:00' + make_dt_interval({day}, 0, 0, id * 40) AS at,
                   array(concat('t', id % 5), 'web') AS tags,
                   named_struct('page', concat('/p/', id % 20), 'ms', cast(id % 700 AS INT)) AS payload,
                   date_add(DATE'2024-03-01', {day}) AS day
            FROM range(0, 2000, 1, 1)""",
            first + 1999,
        )
    session.sql(f"DELETE FROM {table_at(path)} WHERE event_id % 100 = 7")
    _backdate(Path(path))


def _backdate(table: Path) -> None:
    """A day between two versions, the newest of an hour ago: time travel has somewhere to go at once."""
    commits = sorted((table / "_delta_log").glob("*.json"), reverse=True)
    for age, commit in enumerate(commits):
        moment = time.time() - _HOUR - age * 24 * _HOUR
        os.utime(commit, (moment, moment))


def _create(session: Any, path: str, comment: str, columns: str, partitioning: str = "") -> None:
    properties = {**_PROPERTIES, "delta.feature.allowColumnDefaults": "supported"}
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    table = f"CREATE TABLE {table_at(path)} ({columns}) USING delta {partitioning}"
    session.sql(f"{table} COMMENT '{comment}' TBLPROPERTIES ({listed})")


def _fill(session: Any, path: str, query: str, mark: int) -> None:
    """Append rows, and keep the highest row id where later writers look for it."""
    writer = session.sql(query).write.format("delta").mode("append")
    writer.option("txnAppId", "deltaport.rowid").option("txnVersion", str(mark)).save(path)
