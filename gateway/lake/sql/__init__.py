"""DuckDB's expressions in Spark SQL: checks and defaults."""
