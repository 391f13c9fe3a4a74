"""The soak in short: clients at work, a killed gateway, a killed Spark, and the proof from the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.system.soak import run
from tests.system.workload import SCHEMA, Ledger, Outcome, judge, make_tables


@pytest.mark.timeout(900)
def test_nothing_is_lost_doubled_or_half_written_when_gateway_and_spark_are_killed(spark: Any, tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    (warehouse / SCHEMA).mkdir(parents=True)
    make_tables(spark, warehouse)
    ledger = run(warehouse, tmp_path, clients=4, rounds=["gateway", "spark"], statements=12, seed=7)
    assert judge(ledger, warehouse) == []
    assert ledger.done >= 3 * 12


def test_the_judge_sees_what_is_wrong(spark: Any, tmp_path: Path) -> None:
    (tmp_path / SCHEMA).mkdir()
    make_tables(spark, tmp_path)
    assert judge(Ledger(), tmp_path) == []
    ledger = Ledger(appended={1: Outcome.DONE}, keyed={5: Outcome.DONE})
    ledger.added[0, Outcome.DONE] = 1
    for table, values in {"log": "(7, 2, 2), (7, 2, 2)", "accounts": "(9, 9, 1)"}.items():
        spark.sql(f"INSERT INTO delta.`{tmp_path / SCHEMA / table}` VALUES {values}")
    wrong = "; ".join(judge(ledger, tmp_path))
    for text in ("doubled", "key 1 was appended and is lost", "nobody appended", "counter 0", "add up", "keyed: 5"):
        assert text in wrong
