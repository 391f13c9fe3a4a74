"""What the errors of Spark, Delta and py4j mean for a commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

HEAD_MOVED = "the head has moved"  # what a MERGE raises by itself


class Failure(Enum):
    """Why a MERGE failed, as far as its error tells."""

    CONFLICT = "conflict"
    CONSTRAINT = "constraint"
    SPARK_GONE = "spark gone"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Explained:
    failure: Failure
    detail: str = ""


_CONFLICTS = re.compile(
    r"Concurrent(Append|DeleteRead|DeleteDelete|Write|Transaction)Exception|MetadataChangedException|ProtocolChangedException|DELTA_CONCURRENT|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
)
# The name, and the condition as Delta writes it: in brackets, or as our own are stored.
_CHECK = re.compile(r"CHECK constraint (.+?) (?:coalesce\()?\(")
_NOT_NULL = re.compile(r"NOT NULL constraint violated for column: ([^\n]+?)\.?\s*(?:\n|$)")


def explain(error: BaseException) -> Explained:
    """Walk the Java causes: Spark wraps what failed in a task, in a job, in a Python error."""
    texts = list(causes(error))
    for name, text in texts:
        if "USER_RAISED_EXCEPTION" in text and HEAD_MOVED in text:
            return Explained(Failure.CONFLICT)
        if "InvariantViolation" in name or "DELTA_VIOLATE_CONSTRAINT" in text or "DELTA_NOT_NULL_CONSTRAINT" in text:
            return Explained(Failure.CONSTRAINT, _broken_constraint(text))
        if _CONFLICTS.search(name) or _CONFLICTS.search(text):
            return Explained(Failure.CONFLICT)
    if any(_is_silence(name, text) for name, text in texts):
        return Explained(Failure.SPARK_GONE)
    return Explained(Failure.OTHER, texts[-1][1][:300] if texts else "")


def _is_silence(name: str, text: str) -> bool:
    """Whether the JVM gave no answer at all.

    py4j hides the broken connection from whoever waits for an answer: it raises its general error, which comes
    with a Java exception or a trace wherever Java answered.
    """
    if name == "Py4JError":
        return "Trace:" not in text
    return name.startswith("Py4JNetwork") or name in ("ConnectionRefusedError", "ConnectionResetError")


def causes(error: BaseException) -> Iterator[tuple[str, str]]:
    """Class and text of an error and of all that lies below it."""
    seen: BaseException | None = error
    while seen is not None:
        try:
            yield type(seen).__name__, str(seen)
            java = getattr(seen, "java_exception", None) or getattr(seen, "_origin", None)
            while java is not None:
                yield str(java.getClass().getName()), str(java.getMessage())
                java = java.getCause()
        except Exception as silence:  # these words come from the JVM, which went away while it was asked
            yield type(silence).__name__, ""
            return
        seen = seen.__cause__ or seen.__context__


def _broken_constraint(text: str) -> str:
    if match := _NOT_NULL.search(text):
        return f"NOT NULL constraint failed: column '{match[1]}'"
    if match := _CHECK.search(text):
        return f"CHECK constraint failed: {match[1]}"
    return "a constraint of the table failed"
