"""DuckDB's expressions, judged by DuckDB itself."""
