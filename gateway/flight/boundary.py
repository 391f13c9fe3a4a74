"""Our errors to Flight errors, here and nowhere else.

What the DuckDB user sees depends on how an error travels. In actions, only the
plain FlightError arrives at once (the Flight*Error subclasses cost the client
three seconds of retries). In streams, a class and text in the extra information
reach SQL as such. For every other client the gRPC code and the text count. Three
codes can only be sent as plain Python exceptions, two cannot be sent at all; the
details, a google.rpc.Status, have the exact text and the true code. Faults of the
gateway are logged with a reference, and the client gets the reference, never
the cause.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import traceback
from collections.abc import Callable, Iterator
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
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from gateway.wire.packing import pack
from gateway.wire.status import TRAILER, encode_status

log = structlog.get_logger(__name__)
AddTrailer = Callable[[str, bytes], None]


class ErrorForm(Enum):
    """How a call's errors travel to the client."""

    ACTION = "action"  # an action of the DuckDB client
    STREAM = "stream"  # any other call of the DuckDB client
    CODED = "coded"  # the JSON dialect, and every other client


class ActionError(flight.FlightError):  # type: ignore[misc]
    """A plain FlightError: the client shows it at once, without its retries."""


class CodedError(Exception):
    """An error whose Python class makes pyarrow send a gRPC code. Its traceback never leaves the process."""

    code, number = "UNKNOWN", 2

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:  # a KeyError would put quotes around it
        return self.message

    @property
    def details(self) -> bytes:
        return encode_status(self.number, self.message, self.code)


class CodedNotFoundError(CodedError, KeyError):
    code, number = "NOT_FOUND", 5


class CodedArgumentError(CodedError, ValueError):
    code, number = "INVALID_ARGUMENT", 3


class CodedUnimplementedError(CodedError, NotImplementedError):
    code, number = "UNIMPLEMENTED", 12


@contextlib.contextmanager
def errors_as_flight(form: ErrorForm, add_trailer: AddTrailer | None = None) -> Iterator[None]:
    """`add_trailer` is for clients that read details: pyarrow sends them only with its own errors."""
    try:
        yield
    except (GeneratorExit, KeyboardInterrupt, SystemExit, flight.FlightError, CodedError):
        raise
    except BaseException as error:  # a panic of the native reader is a BaseException
        sent = to_flight(error, form)
        if isinstance(sent, CodedError) and add_trailer is not None:
            add_trailer(TRAILER, sent.details)
        raise sent from None


def to_flight(error: BaseException, form: ErrorForm) -> Exception:
    known = error if isinstance(error, GatewayError) else _unexpected(error)
    if isinstance(known, InternalError) and isinstance(error, GatewayError):
        log.error("internal_error", error=known.message, cause=_cause(error))
    if form is ErrorForm.CODED:
        return _coded(known)
    # Three seconds of retries, in an action; but a client that knows the code may ask for a token.
    if isinstance(known, UnauthenticatedError):
        return _typed(flight.FlightUnauthenticatedError, known, form)
    if isinstance(known, DeniedError):
        return _typed(flight.FlightUnauthorizedError, known, form)
    if form is ErrorForm.ACTION:
        return ActionError(known.message)
    # A scan that the gateway ended is sent as "unavailable": pyarrow clients turn CANCELLED into a KeyboardInterrupt.
    if isinstance(known, UnavailableError | CancelledError):
        return _typed(flight.FlightUnavailableError, known, form)
    return _typed(flight.FlightServerError, known, form)


def _typed(kind: type[Exception], error: GatewayError, form: ErrorForm) -> Exception:
    if form is ErrorForm.ACTION:
        return kind(error.message)
    details = pack({"exception_type": _sql_class(error), "message": error.message})
    return kind(error.message, details)


def _sql_class(error: GatewayError) -> str:
    # The client knows these three; any other name turns into "Unknown exception type".
    if isinstance(error, ConstraintError):
        return "ConstraintException"
    if isinstance(error, DeniedError | UnauthenticatedError):
        return "PermissionException"
    return "InvalidInputException"


def _coded(error: GatewayError) -> Exception:
    """The error by its gRPC code, as far as pyarrow can send it; the details say the rest."""
    match error:
        case NotFoundError():
            return _with_clean_text(CodedNotFoundError(error.message))
        case RequestError():
            return _with_clean_text(CodedArgumentError(error.message))
        case UnsupportedError():
            return _with_clean_text(CodedUnimplementedError(error.message))
        case UnauthenticatedError():
            return _detailed(flight.FlightUnauthenticatedError, 16, error, "UNAUTHENTICATED")
        case DeniedError():
            return _detailed(flight.FlightUnauthorizedError, 7, error, "PERMISSION_DENIED")
        # As in streams: pyarrow clients turn CANCELLED into a KeyboardInterrupt.
        case UnavailableError() | CancelledError():
            return _detailed(flight.FlightUnavailableError, 14, error, "UNAVAILABLE")
        case InternalError():
            return _detailed(flight.FlightInternalError, 13, error, "INTERNAL")
        # The rest arrives as UNKNOWN: Arrow's server has no other codes, and gRPC overwrites a `grpc-status` that is
        # set as a trailer. A layer in front that walks HTTP/2 frames in Python cut scans to a half and less.
        case PreconditionError() | ConstraintError():
            return _detailed(flight.FlightServerError, 2, error, "FAILED_PRECONDITION")
        case ConflictError():
            return _detailed(flight.FlightServerError, 2, error, "ABORTED")
    return _detailed(flight.FlightServerError, 2, error, "UNKNOWN")


def _detailed(kind: type[Exception], number: int, error: GatewayError, reason: str) -> Exception:
    # A client that finds another code in the details than in the call shows an internal error.
    return kind(error.message, encode_status(number, error.message, reason))


def _with_clean_text(error: CodedError) -> CodedError:
    _keep_tracebacks_inside()
    return error


def as_python_error(error: flight.FlightError) -> CodedError:
    """For GetSchema, where pyarrow knows no Flight errors and would send the traceback with them."""
    return _with_clean_text(CodedError(str(error)))


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
