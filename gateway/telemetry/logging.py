"""structlog set-up and redaction.

Each call logs one line when it ends. Tokens, tickets and row values are never
handed to the logger; the redacting processor is the second line of defence.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from gateway.settings import LogSettings

_SECRET_KEYS = re.compile(r"authorization|token|secret|password|ticket|credential", re.IGNORECASE)
_BEARER = re.compile(r"(?i)\b(bearer\s+)\S+")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if _SECRET_KEYS.search(key):
            event[key] = "[redacted]"
        elif isinstance(value, str):
            event[key] = _BEARER.sub(r"\1[redacted]", value)
    return event


def configure_logging(settings: LogSettings) -> None:
    """Log to standard error, so that standard output stays free for what a command prints."""
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            redact,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
