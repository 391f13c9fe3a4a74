"""Spark itself: its JVM, its jars, its sessions."""
