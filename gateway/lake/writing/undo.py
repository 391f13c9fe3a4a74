"""Undo: what a transaction wrote into a table, taken back as one more change of it.

Rows that the transaction inserted are deleted, rows that it updated get their
old values back, rows that it deleted are inserted again under their ids. That
works inside commits shared with others and touches nobody else's rows; where
somebody changed one of the rows since, nothing is undone. Which rows they were
is read from the notes in the log, and for statements too large to be noted by
comparing the versions before and after them. All of it is undone or nothing: where
the log or the files that it needs are gone, the undo is refused.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pyspark.sql import functions

from gateway.catalog.changes import Footprint, Operation
from gateway.errors import (
    ConflictError,
    GatewayError,
    InternalError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from gateway.lake.commits.failures import Failure, causes, explain
from gateway.lake.commits.notes import StatementNote, noted_in
from gateway.lake.spark.columns import comparable, differs, lies_in
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.history import changes_metadata
from gateway.lake.tables.id_sets import IdSet, Range, joined
from gateway.lake.tables.internal_names import IS_THERE, OPERATION, ROWID_FIELD, STILL_THERE, WAS_THERE
from gateway.lake.tables.schemas import TableSchema
from gateway.lake.tables.snapshots import LogSnapshot
from gateway.lake.tables.storage import Folder
from gateway.lake.writing.change_sets import CODES, ChangeSet, Span
from gateway.lake.writing.pending import Committed, Undoing
from gateway.lake.writing.preparation import mark_of
from gateway.lake.writing.rowids import highest_row_id

log = structlog.get_logger(__name__)

_COLLECTED_IDS = 1_000_000
_APPEND_ONLY = "delta.appendOnly"
# What Spark and Delta say of a version whose data files, deletion vectors or log entries are not there any more.
_GONE = re.compile(
    r"FileNotFoundException|FILE_NOT_EXIST|DELTA_VERSION_NOT_FOUND|DELTA_FILE_NOT_FOUND|DELTA_LOG_FILE_NOT_FOUND"
    r"|DELTA_NO_RECREATABLE_HISTORY_FOUND|DELTA_DELETION_VECTOR_NOT_FOUND|VersionNotFoundException|DELTA_TRUNCATED_TRANSACTION_LOG"
)


@dataclass(frozen=True, slots=True)
class Written:
    """What a transaction wrote into a table, oldest first, and the commit that took it back, if one did."""

    statements: tuple[tuple[int, StatementNote], ...]
    undone: tuple[int, StatementNote] | None


def find_written(table: str, commits: Folder, newest: int, transaction: str, footprint: Footprint) -> Written:
    """All that the log holds of a transaction; a PreconditionError where that may not be all there was."""
    statements: list[tuple[int, StatementNote]] = []
    missing, reverted = set(footprint.versions), set[int]()
    for version in range(newest, footprint.since, -1):
        if (noted := noted_in(commits, version)) is None:
            missing.add(version)
            break
        for note in noted.statements:
            if note.reverts is not None:
                reverted.add(note.reverts)
            if version in reverted:
                missing.discard(version)
            elif note.undoes == transaction:
                return Written((), (version, note))
            elif note.transaction == transaction:
                statements.append((version, note))
                missing.discard(version)
    if missing:
        raise PreconditionError(
            f"table '{table}': not all that transaction {transaction} wrote is in its log any more, so it cannot be"
            " undone; nothing was changed in it"
        )
    return Written(tuple(reversed(statements)), None)


def spans_of(statements: Sequence[tuple[int, IdSet]]) -> list[Span]:
    """Each row once: from before the first of the statements that changed it to after the last."""
    edges = sorted({edge for _, ids in statements for low, high in ids.ranges for edge in (low, high + 1)})
    by_versions: dict[tuple[int, int], list[Range]] = {}
    for low, after in itertools.pairwise(edges):
        versions = [version for version, ids in statements if low in ids]
        if versions:
            by_versions.setdefault((versions[0], versions[-1]), []).append((low, after - 1))
    return [Span(first - 1, last, IdSet(tuple(joined(ranges)))) for (first, last), ranges in by_versions.items()]


def prepare_undo(
    session: Any, head: LogSnapshot, commits: Folder, undoing: Undoing, schema_at: Callable[[int], TableSchema]
) -> ChangeSet:
    """The compensating change as of this head; nothing where there is nothing to undo, or it was undone before."""
    change = ChangeSet()
    written = find_written(head.table, commits, head.version, undoing.transaction, undoing.footprint)
    if written.undone is not None:
        version, note = written.undone
        change.settled[undoing] = Committed(note.rows, version)
        return change
    if not written.statements:
        change.settled[undoing] = Committed(0, None)
        return change
    if head.schema.rowid is None:
        raise PreconditionError(f"table '{head.table}' has no row ids: what was written into it cannot be undone")
    if head.configuration.get(_APPEND_ONLY, "false").lower() == "true":
        raise PreconditionError(f"table '{head.table}' is append-only: what was written into it cannot be undone")
    with _explained(head):
        _check_columns(head, commits, written, schema_at)
        spans = _plan(session, head, written)
        bounds, rows = check_undo(session, head, spans)
    if not rows:
        change.settled[undoing] = Committed(0, None)
        return change
    highest = highest_row_id(head)
    # Which rows lie in the range is not said, so whoever read one of them before has it compared.
    change.members[undoing] = Committed(rows, None, IdSet((bounds,), is_exact=False))
    change.rows = spans
    change.operations = frozenset(Operation)
    change.inserted = tuple(column.name for column in head.schema.columns)
    change.updated = tuple(column.name for column in head.schema.columns)
    change.named = [bounds]
    change.mark = mark_of(head, highest, highest)
    return change


@contextlib.contextmanager
def _explained(head: LogSnapshot) -> Iterator[None]:
    """Old versions are read here, and they may be gone."""
    try:
        yield
    except NotFoundError as error:
        raise _gone(head) from error
    except GatewayError:
        raise
    except Exception as error:  # py4j, Spark and Delta each raise their own
        if any(_GONE.search(name) or _GONE.search(text) for name, text in causes(error)):
            raise _gone(head) from error
        explained = explain(error)
        if explained.failure is Failure.SPARK_GONE:
            raise UnavailableError("Spark stopped during the undo; nothing was changed, try again") from error
        log.error("undo_failed", table=head.table, error=type(error).__name__, detail=explained.detail)
        raise InternalError(f"table '{head.table}': Spark could not read what is to be undone") from error


def _gone(head: LogSnapshot) -> PreconditionError:
    return PreconditionError(
        f"table '{head.table}': files of the versions before and after the transaction are gone, so it cannot be"
        " undone; nothing was changed in it"
    )


def _check_columns(
    head: LogSnapshot, commits: Folder, written: Written, schema_at: Callable[[int], TableSchema]
) -> None:
    versions = [version for version, _ in written.statements]
    if not any(changes_metadata(commits, version) for version in range(versions[0], head.version + 1)):
        return  # the usual case, without a look at every version
    for version in versions:
        if not all(has_same_columns(schema_at(edge), head.schema) for edge in (version - 1, version)):
            raise PreconditionError(
                f"table '{head.table}': its columns were altered since the transaction wrote, so that cannot be undone;"
                " nothing was changed in it"
            )


def has_same_columns(one: TableSchema, other: TableSchema) -> bool:
    """Whether a value of one version may be put into the other: not into a column that only has the same name."""
    columns = [
        [(column.name, column.physical_name, column.form) for column in (*schema.columns, schema.rowid) if column]
        for schema in (one, other)
    ]
    return columns[0] == columns[1]


def _plan(session: Any, head: LogSnapshot, written: Written) -> list[Span]:
    """Which rows go back to which version."""
    noted = [(version, None if note.ids is None else IdSet.decode(note.ids)) for version, note in written.statements]
    if len(noted) == 1:
        version, ids = noted[0]
        return [Span(version - 1, version, ids)]
    known = [(version, _differing(session, head, version) if ids is None else ids) for version, ids in noted]
    return spans_of(known)


def _differing(session: Any, head: LogSnapshot, version: int) -> IdSet:
    """The rows that a statement changed which had a commit of its own."""
    rows = _both_states_of(session, head, Span(version - 1, version, None)).select(ROWID_FIELD)
    found = [row[0] for row in rows.limit(_COLLECTED_IDS + 1).collect()]
    if len(found) > _COLLECTED_IDS:
        raise PreconditionError(
            f"table '{head.table}': the transaction changed more than {_COLLECTED_IDS:,} rows in several statements;"
            " that cannot be undone at once"
        )
    return IdSet.of(found)


def undo_source(session: Any, head: LogSnapshot, spans: Sequence[Span]) -> Any:
    """The rows of the compensating change."""
    codes = {kind: functions.lit(code).cast("byte") for kind, code in CODES.items()}
    operation = (
        functions.when(~functions.col(WAS_THERE), codes[Operation.DELETE])
        .when(~functions.col(IS_THERE), codes[Operation.INSERT])
        .otherwise(codes[Operation.UPDATE])
    )
    return _both_states(session, head, spans).select(
        operation.alias(OPERATION),
        ROWID_FIELD,
        *(functions.col(f"b{place}").alias(column.name) for place, column in enumerate(head.schema.columns)),
    )


def _both_states(session: Any, head: LogSnapshot, spans: Sequence[Span]) -> Any:
    """Each row as it was before (columns b0, b1, ...) and as the transaction left it (a0, a1, ...)."""
    parts = [_both_states_of(session, head, span) for span in spans]
    return functools.reduce(lambda one, other: one.unionByName(other), parts)


def _both_states_of(session: Any, head: LogSnapshot, span: Span) -> Any:
    before = _at(session, head, span.before, span.row_ids, "b", WAS_THERE)
    after = _at(session, head, span.after, span.row_ids, "a", IS_THERE)
    rows = before.join(after, ROWID_FIELD, "full_outer").na.fill(False, [WAS_THERE, IS_THERE])
    if span.row_ids is not None:
        return rows
    is_new_or_gone = functions.col(WAS_THERE) != functions.col(IS_THERE)
    return rows.where(is_new_or_gone | _has_changed(head.schema, "b", "a"))


def _has_changed(schema: TableSchema, one: str, other: str) -> Any:
    changed = functions.lit(False)
    for column in comparable(schema.columns):
        place = schema.columns.index(column)
        changed |= differs(f"{one}{place}", f"{other}{place}", column.type)
    return changed


def _at(session: Any, head: LogSnapshot, version: int, row_ids: IdSet | None, prefix: str, is_there: str) -> Any:
    """The rows of a version, their columns by place, and a mark that survives an outer join."""
    assert head.schema.rowid is not None
    stored = quoted(head.schema.rowid.name)
    table = session.read.format("delta").option("versionAsOf", version).load(head.uri)
    if row_ids is not None:
        table = table.where(lies_in(stored, row_ids.ranges))
    return table.select(
        functions.col(stored).alias(ROWID_FIELD),
        functions.lit(True).alias(is_there),
        *(
            functions.col(quoted(column.name)).alias(f"{prefix}{place}")
            for place, column in enumerate(head.schema.columns)
        ),
    )


def check_undo(session: Any, head: LogSnapshot, spans: Sequence[Span]) -> tuple[Range, int]:
    """The range that the rows' ids lie in, and their number; a ConflictError when others changed one of them since."""
    current = _at(session, head, head.version, None, "c", STILL_THERE)
    still = functions.col(STILL_THERE).isNotNull()
    clash = functions.when(functions.col(IS_THERE), ~still | _has_changed(head.schema, "c", "a")).otherwise(still)
    low, high, rows, has_clash = (
        _both_states(session, head, spans)
        .join(current, ROWID_FIELD, "left")
        .agg(
            functions.min(ROWID_FIELD),
            functions.max(ROWID_FIELD),
            functions.count(functions.lit(1)),
            functions.max(clash.cast("int")),
        )
        .collect()[0]
    )
    if has_clash:
        raise ConflictError(
            f"table '{head.table}': rows of the transaction were changed by others since; nothing was undone"
        )
    return (low, high), rows
