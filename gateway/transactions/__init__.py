"""Transactions: the versions they read, what they wrote, and how they ended."""
