"""From an upload to a durable commit: every change of data is one MERGE."""
