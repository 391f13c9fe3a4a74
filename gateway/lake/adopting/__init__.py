"""Row ids for tables that others made."""
