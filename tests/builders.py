"""Builders of Delta tables, as strangers make them: with Spark SQL, by path."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.lake.ddl.spark_alter import forget_log


class Lake:
    """Delta tables in one schema of a warehouse; the schema is named after the test."""

    def __init__(self, spark: Any, warehouse: Path, test: str) -> None:
        self.spark = spark
        self.warehouse = warehouse
        self.schema = f"t{hashlib.sha256(test.encode()).hexdigest()[:10]}"

    def path(self, table: str) -> Path:
        return self.warehouse / self.schema / table

    def ref(self, table: str) -> str:
        """The table as Spark SQL names it."""
        return f"delta.`{self.path(table)}`"

    def create(self, table: str, columns: str, **options: Any) -> str:
        """CREATE TABLE; `partitioned_by` and `comment` are clauses, the rest are properties."""
        clauses = f"PARTITIONED BY ({options.pop('partitioned_by')})" if "partitioned_by" in options else ""
        if "comment" in options:
            clauses += f" COMMENT '{options.pop('comment')}'"
        properties = options.pop("properties", {})
        if properties:
            clauses += " TBLPROPERTIES (" + ", ".join(f"'{key}' = '{value}'" for key, value in properties.items()) + ")"
        assert not options, options
        self.spark.sql(f"CREATE TABLE {self.ref(table)} ({columns}) USING delta {clauses}")
        return table

    def fill(self, table: str, query: str) -> None:
        self.spark.sql(f"INSERT INTO {self.ref(table)} {query}")

    def numbers(self, table: str, rows: int, files: int = 1, **options: Any) -> str:
        """A table with row ids: `_rowid`, `k` (key), `v` (text); one range of keys per file."""
        self.create(table, "_rowid BIGINT, k BIGINT NOT NULL, v STRING", **options)
        frame = self.spark.range(0, rows, 1, files).selectExpr("id AS _rowid", "id AS k", "concat('v', id) AS v")
        frame.write.format("delta").mode("append").save(str(self.path(table)))
        return table

    def sql(self, statement: str, table: str) -> Any:
        """Run SQL in which {t} stands for the table."""
        return self.spark.sql(statement.replace("{t}", self.ref(table)))


def age(lake: Lake, table: str, days: float, renamed: Mapping[str, str] | None = None) -> None:
    """Make all that was written into a table so many days older, in the log's files and inside of them.

    Transaction ids tell their time, too: `renamed` gives those in the log other names.
    """
    shift = int(days * 86_400_000)
    for file in (lake.path(table) / "_delta_log").glob("*.crc"):
        file.unlink()  # Delta's and Hadoop's checksums, of what is about to be changed
    for file in (lake.path(table) / "_delta_log").glob("*.json"):
        text = file.read_text()
        for old, new in (renamed or {}).items():
            text = text.replace(old, new)
        actions = [_aged(json.loads(line), shift) for line in text.splitlines()]
        modified = file.stat().st_mtime - shift / 1000
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(file, (modified, modified))
    for file in lake.path(table).rglob("*"):
        if file.is_file() and file.suffix != ".json":
            os.utime(file, (file.stat().st_mtime - shift / 1000,) * 2)
    forget_log(lake.spark, str(lake.path(table)))


def _aged(action: dict[str, Any], shift: int) -> dict[str, Any]:
    for fields in action.values():
        for name in ("timestamp", "inCommitTimestamp", "modificationTime", "deletionTimestamp", "createdTime"):
            if fields.get(name) is not None:
                fields[name] -= shift
    return action


def column(rows: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]
