"""Bytes to values and back: no Spark, no files, no clock, no threads."""
