"""Our errors to Flight errors, here and nowhere else.

What the DuckDB user sees depends on how an error travels. In actions, only the
plain FlightError arrives at once (the Flight*Error subclasses cost the client
three seconds of retries). In streams, a class and text in the extra information
reach SQL as such. Faults of the gateway are logged with a reference, and the
client is told the reference, never the cause.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from enum import Enum

import structlog
from pyarrow import flight

from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    DeniedError,
    GatewayError,
    InternalError,
    UnavailableError,
)
from gateway.wire.packing import pack

log = structlog.get_logger(__name__)


class Path(Enum):
    """How a call's errors travel to the client."""

    ACTION = "action"
    STREAM = "stream"


class ActionError(flight.FlightError):  # type: ignore[misc]
    """A plain FlightError: the client shows it at once, without its retries."""


@contextlib.contextmanager
def errors_as_flight(path: Path) -> Iterator[None]:
    try:
        yield
    except (GeneratorExit, KeyboardInterrupt, SystemExit, flight.FlightError):
        raise
    except BaseException as error:  # a panic of the native reader is a BaseException
        raise to_flight(error, path) from None


def to_flight(error: BaseException, path: Path) -> Exception:
    known = error if isinstance(error, GatewayError) else _unexpected(error)
    if isinstance(known, InternalError) and isinstance(error, GatewayError):
        log.error("internal_error", error=known.message, cause=_cause(error))
    if isinstance(known, DeniedError):
        return _typed(flight.FlightUnauthorizedError, known, path)
    if path is Path.ACTION:
        return ActionError(known.message)
    # A scan that the gateway ended is told as "unavailable": pyarrow clients turn CANCELLED into a KeyboardInterrupt.
    if isinstance(known, UnavailableError | CancelledError):
        return _typed(flight.FlightUnavailableError, known, path)
    return _typed(flight.FlightServerError, known, path)


def _typed(kind: type[Exception], error: GatewayError, path: Path) -> Exception:
    if path is Path.ACTION:
        return kind(error.message)
    details = pack({"exception_type": _sql_class(error), "message": error.message})
    return kind(error.message, details)


def _sql_class(error: GatewayError) -> str:
    # The client knows these three; any other name turns into "Unknown exception type".
    if isinstance(error, ConstraintError):
        return "ConstraintException"
    if isinstance(error, DeniedError):
        return "PermissionException"
    return "InvalidInputException"


def _unexpected(error: BaseException) -> InternalError:
    reference = secrets.token_hex(4)
    log.error("unexpected_error", reference=reference, error=type(error).__name__, exc_info=error)
    return InternalError(f"internal error (reference {reference})")


def _cause(error: BaseException) -> str:
    cause = error.__cause__
    return "" if cause is None else f"{type(cause).__name__}: {str(cause)[:1000]}"


def outcome_of(error: BaseException | None) -> str:
    """How a call ended, as metrics and log lines say it."""
    match error:
        case None:
            return "ok"
        case GeneratorExit() | CancelledError() | flight.FlightCancelledError():
            return "cancelled"
        case UnavailableError() | ConflictError() | flight.FlightUnavailableError():
            return "retry"
        case InternalError() | flight.FlightInternalError():
            return "fault"
        case GatewayError() | flight.FlightError():
            return "refused"
    return "fault"
