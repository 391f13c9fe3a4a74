"""Names and texts as SQL reads them, whatever is in them; no name or text becomes SQL any other way.

Spark quotes names with backticks and reads backslashes in texts as escapes;
DataFusion keeps to standard SQL.
"""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name for Spark SQL and `functions.col`."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """A text for Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def table_at(location: str) -> str:
    """A Delta table by its place, as Spark SQL names it."""
    return f"delta.{quoted(location)}"


def double_quoted(name: str) -> str:
    """A name for DataFusion."""
    return '"' + name.replace('"', '""') + '"'


def standard_literal(text: str) -> str:
    """A text for DataFusion."""
    return "'" + text.replace("'", "''") + "'"
