"""Our errors to Flight errors, here and nowhere else.

What the DuckDB user sees depends on how an error travels. In actions, only the
plain FlightError arrives at once (the Flight*Error subclasses cost the client
three seconds of retries). In streams, a class and text in the extra information
reach SQL as such. In the JSON dialect the gRPC code counts: three codes can only
be sent as plain Python exceptions, and what pyarrow cannot send at all is named
in the extra information. Faults of the gateway are logged with a reference, and
the client is told the reference, never the cause.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import traceback
from collections.abc import Iterator
from enum import Enum
from typing import Any

import structlog
from pyarrow import flight

from gateway.errors import (
    CancelledError,
    ConflictError,
    ConstraintError,
    DeniedError,
    GatewayError,
    InternalError,
    NotFoundError,
    PreconditionError,
    RequestError,
    UnavailableError,
    UnsupportedError,
)
from gateway.wire.packing import pack

log = structlog.get_logger(__name__)


class Path(Enum):
    """How a call's errors travel to the client."""

    ACTION = "action"
    STREAM = "stream"
    JSON = "json"


class ActionError(flight.FlightError):  # type: ignore[misc]
    """A plain FlightError: the client shows it at once, without its retries."""


class CodedError(Exception):
    """An error whose Python class makes pyarrow send a gRPC code. Its traceback never leaves the process."""

    code = "UNKNOWN"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:  # a KeyError would put quotes around it
        return self.message


class CodedNotFoundError(CodedError, KeyError):
    code = "NOT_FOUND"


class CodedArgumentError(CodedError, ValueError):
    code = "INVALID_ARGUMENT"


class CodedUnimplementedError(CodedError, NotImplementedError):
    code = "UNIMPLEMENTED"


@contextlib.contextmanager
def errors_as_flight(path: Path) -> Iterator[None]:
    try:
        yield
    except (GeneratorExit, KeyboardInterrupt, SystemExit, flight.FlightError, CodedError):
        raise
    except BaseException as error:  # a panic of the native reader is a BaseException
        raise to_flight(error, path) from None


def to_flight(error: BaseException, path: Path) -> Exception:
    known = error if isinstance(error, GatewayError) else _unexpected(error)
    if isinstance(known, InternalError) and isinstance(error, GatewayError):
        log.error("internal_error", error=known.message, cause=_cause(error))
    if path is Path.JSON:
        return _coded(known)
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


def _coded(error: GatewayError) -> Exception:
    """The error as the JSON dialect tells it: by gRPC code, exactly or in the extra information."""
    match error:
        case NotFoundError():
            return _with_clean_text(CodedNotFoundError(error.message))
        case RequestError():
            return _with_clean_text(CodedArgumentError(error.message))
        case UnsupportedError():
            return _with_clean_text(CodedUnimplementedError(error.message))
        case DeniedError():
            return _named(flight.FlightUnauthorizedError, error, "PERMISSION_DENIED")
        # As in streams: pyarrow clients turn CANCELLED into a KeyboardInterrupt.
        case UnavailableError() | CancelledError():
            return _named(flight.FlightUnavailableError, error, "UNAVAILABLE")
        case InternalError():
            return _named(flight.FlightInternalError, error, "INTERNAL")
        # pyarrow sends the rest as UNKNOWN.
        case PreconditionError() | ConstraintError():
            return _named(flight.FlightServerError, error, "FAILED_PRECONDITION")
        case ConflictError():
            return _named(flight.FlightServerError, error, "ABORTED")
    return _named(flight.FlightServerError, error, "UNKNOWN")


def _named(kind: type[Exception], error: GatewayError, code: str) -> Exception:
    return kind(error.message, json.dumps({"code": code, "message": error.message}).encode())


def _with_clean_text(error: CodedError) -> CodedError:
    _keep_tracebacks_inside()
    return error


@functools.cache
def _keep_tracebacks_inside() -> None:
    """pyarrow sends what `traceback.format_exception` says of a Python error: of ours, the code and nothing else."""
    original = traceback.format_exception

    def format_exception(*arguments: Any, **options: Any) -> list[str]:
        coded = next((each for each in arguments[:2] if isinstance(each, CodedError)), None)
        return original(*arguments, **options) if coded is None else [coded.code]

    traceback.format_exception = format_exception


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
        case GatewayError() | flight.FlightError() | CodedError():
            return "refused"
    return "fault"
