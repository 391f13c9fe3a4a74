"""DuckDB sealed within this process: it computes, and reaches nothing.

No file, no network and no extension, and no statement can change that. One thread,
so that rows keep their order. The zone of its session is UTC wherever it runs.
Memory is bounded as far as DuckDB counts it, which leaves out lists that are being
made: a process that evaluates others' expressions bounds its own as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

MEMORY_BYTES = 1 << 30
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
    "memory_limit": f"{MEMORY_BYTES >> 20}MiB",
    "arrow_lossless_conversion": "true",
}
_IN_UTC = "SET TimeZone = 'UTC'"
_LOCKED = "SET lock_configuration = true"
# A long IN list would become a join, and nobody promises the order of its rows.
_IN_ORDER = "SET disabled_optimizers = 'in_clause'"
# The optimizer computes what is constant, however long that takes.
_UNCOMPUTED = "PRAGMA disable_optimizer"


def sealed_connection(*, only_binds: bool = False) -> duckdb.DuckDBPyConnection:
    """A database of its own, empty; for one thread at a time, and to be closed."""
    import duckdb  # a tenth of a second that a process without such work need not spend

    connection = duckdb.connect(":memory:", config=_CONFIG)
    for setting in (_IN_UTC, _UNCOMPUTED if only_binds else _IN_ORDER, _LOCKED):
        connection.execute(setting)
    return connection


def version() -> str:
    import duckdb

    return duckdb.__version__
