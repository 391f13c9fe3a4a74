"""The one error tree.

GatewayError
├── RequestError                 the caller's input is wrong; the same call will fail again
│   ├── MalformedTicketError     a ticket that is not of this gateway, or of another version of it
│   └── MalformedFilterError     a filter document that cannot be parsed
├── NotFoundError                the schema, table, column or version does not exist
├── UnsupportedError             a thing the gateway does not do
├── PreconditionError            the table or transaction is not in a state for this
├── UnauthenticatedError         the caller did not prove who it is
├── DeniedError                  the caller may not do this
├── ConstraintError              a constraint of the table would be broken
├── ConflictError                another writer committed first; start over
├── UnavailableError             not now; the same call may work later
├── CancelledError               the caller went away, or the work was stopped
├── OutcomeUnknownError          a commit that may or may not have landed
└── InternalError                our fault; for an operator to investigate

Branches are by who can act: the caller, a retry, an operator. Messages are
short sentences that name the thing and the rule; they never carry paths, SQL
or tracebacks, because `flight.boundary` sends them to the client as they are.
"""


class GatewayError(Exception):
    """Root of everything the gateway raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(GatewayError):
    """The caller's input is wrong."""


class MalformedTicketError(RequestError):
    """A ticket that cannot be read."""


class MalformedFilterError(RequestError):
    """A filter document that cannot be read."""


class NotFoundError(GatewayError):
    """What the caller named does not exist."""


class UnsupportedError(GatewayError):
    """What the caller asked for is not offered."""


class PreconditionError(GatewayError):
    """The table or the transaction is not in a state that allows this."""


class UnauthenticatedError(GatewayError):
    """The caller did not prove who it is."""


class DeniedError(GatewayError):
    """The caller may not do this."""


class ConstraintError(GatewayError):
    """A constraint of the table would be broken."""


class ConflictError(GatewayError):
    """Another writer committed first; starting over may work."""


class UnavailableError(GatewayError):
    """Not now; the same call may work later."""


class CancelledError(GatewayError):
    """The work was stopped before its end."""


class OutcomeUnknownError(GatewayError):
    """A commit that may or may not have landed; nothing was retried or cleaned up."""


class InternalError(GatewayError):
    """A fault of the gateway or the machinery below it."""
