"""Delta tables where they lie: files, logs, versions and schemas."""
