"""Names to tables, and what each table can do."""
