"""What every read by the native reader shares: its batch sizes, and its errors in our words."""

from __future__ import annotations

from gateway.errors import GatewayError, InternalError
from gateway.lake.tables.snapshots import BATCH_ROWS, LogSnapshot


def engine_rows(wanted: int) -> int:
    """Rows per batch that the engine can be asked for, no more than wanted."""
    return next((rows for rows in BATCH_ROWS if rows <= wanted), BATCH_ROWS[-1])


class Explained:
    """The engine's errors in our words; what it said itself, with its paths, goes to the log only."""

    def __init__(self, snapshot: LogSnapshot) -> None:
        self._snapshot = snapshot

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, GatewayError | StopIteration | GeneratorExit | KeyboardInterrupt):
            return
        self._snapshot.check_in_place()
        table, version, text = self._snapshot.table, self._snapshot.version, str(error).lower()
        if "not found" in text or "no such file" in text:
            raise InternalError(f"table '{table}': a data file of version {version} is missing") from error
        raise InternalError(f"table '{table}': version {version} cannot be read") from error
