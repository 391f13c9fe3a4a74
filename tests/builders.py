"""Builders of Delta tables, as strangers make them: with Spark SQL, by path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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


def column(rows: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]
