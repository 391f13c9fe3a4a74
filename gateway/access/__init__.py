"""Who calls, and what they may do. Knows nothing of tables, Flight or HTTP."""
