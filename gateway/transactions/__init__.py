"""Which version of a table a transaction reads."""
