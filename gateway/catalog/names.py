"""Names of schemas and tables: checked once, here, and nowhere else.

A name that passed may become a directory under a warehouse; nothing else ever
turns a client's text into a path. Names keep the spelling they were given and
are compared without regard to case, as DuckDB does.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from gateway.errors import RequestError

MAX_NAME_BYTES = 255  # what file systems allow for one directory
_SEPARATORS = frozenset("/\\")
# Old Windows device names and the like are harmless here; these two are not names but directions.
_DIRECTIONS = frozenset({".", ".."})


def check_name(kind: str, name: str) -> str:
    """Return the name, or raise a RequestError that says which rule it breaks."""
    defect = _defect(name)
    if defect is not None:
        raise RequestError(f"{kind} name {_printable(name)} {defect}")
    return name


def is_name(name: str) -> bool:
    return _defect(name) is None


def _defect(name: str) -> str | None:
    if not name:
        return "is empty"
    if name in _DIRECTIONS or name[0] in "._":
        return "must not start with a dot or an underscore"
    if any(char in _SEPARATORS for char in name):
        return "must not hold a slash or backslash"
    # Cc control, Cf invisible formatting, Cs lone surrogates, Zl/Zp line separators: none can be typed on purpose.
    if any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in name):
        return "must not hold control characters"
    if name != name.strip():
        return "must not start or end with a space"
    if len(name.encode("utf-8")) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    return None


def _printable(name: str) -> str:
    """The name fit for a message: short, and without anything that could disturb a terminal or a log line."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    return f"'{clean}'" if len(clean) <= 60 else f"'{clean[:60]}…'"


def fold(name: str) -> str:
    """The form in which names are compared."""
    return name.casefold()


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's full name, as written. Equality is exact; use `key` to compare as users do."""

    catalog: str
    schema: str
    table: str

    @property
    def key(self) -> tuple[str, str, str]:
        return fold(self.catalog), fold(self.schema), fold(self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def parse_qualified(text: str) -> tuple[str, str]:
    """`schema.table`, as in the settings, to its two checked parts."""
    schema, dot, table = text.partition(".")
    if not dot:
        raise RequestError(f"table name {_printable(text)} must have the form schema.table")
    return check_name("schema", schema), check_name("table", table)
