"""Delta Lake itself: the only room that imports pyspark, delta or deltalake."""
