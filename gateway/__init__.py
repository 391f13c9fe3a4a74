"""Deltaport: Delta Lake behind one Arrow Flight address, for DuckDB's Airport clients."""

__version__ = "0.1.0"
