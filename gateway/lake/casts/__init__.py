"""Values of one type as another, in Spark SQL that gives what DuckDB's CAST gives."""
