"""The fence of a MERGE: no rows while the head is the head, an error once somebody has committed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions

from gateway.lake.commits.failures import Failure, explain
from gateway.lake.commits.fence import fenced


@pytest.mark.parametrize("name", ["plain", "a,b {c,d} [e] * ? ^ é", "100% \\, {", "a+b #c&d=e;f"])
def test_the_next_commit_of_a_table_in_any_folder_is_met(spark: Any, tmp_path: Path, name: str) -> None:
    log = tmp_path / name / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{7:020}.json").write_text("{}\n")
    head: Any = SimpleNamespace(uri=str(tmp_path / name), version=7)
    rows = spark.range(3).select("id", functions.lit("text").alias("v"), functions.create_map("id", "id").alias("m"))

    assert sorted(row.id for row in fenced(spark, rows, head).collect()) == [0, 1, 2]
    (log / f"{8:020}.json").write_text("{}\n")
    for column in rows.columns:
        with pytest.raises(Exception) as failure:  # noqa: PT011 - Spark's own
            fenced(spark, rows, head).select(column).collect()
        assert explain(failure.value).failure is Failure.CONFLICT
