"""Numbers the rows of a Delta table's files: finds rows without an id of their own, and rewrites files with ids.

Delta's UPDATE and MERGE cannot tell two equal rows apart, hence files are
rewritten within Delta's own transaction, as its OPTIMIZE does: read these files,
write others, commit one for the other. A row is known by its place in that read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window, functions

from gateway.lake.commits.delta_log import delta_log, read_files, replace_files, seq, start_transaction
from gateway.lake.sql.quoting import quoted
from gateway.lake.tables.internal_names import DUPLICATE, FIRST, LAST, PATH, PLACE, START, TASK
from gateway.lake.tables.snapshots import MARK_APPLICATION

_PLACE_BITS = 33  # Spark's monotonically_increasing_id: the task above, the row's number in the task below


@dataclass(frozen=True, slots=True)
class UnnumberedFile:
    """A file with rows to number, by its name in the log."""

    path: str
    bytes: int
    modified_ms: int
    rows: int


@dataclass(frozen=True, slots=True)
class Unnumbered:
    """What is to be numbered at a version; `kept` holds, for each duplicate id, the file whose row keeps it."""

    highest: int
    files: list[UnnumberedFile]
    kept: Any

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def release(self) -> None:
        if self.kept is not None:
            self.kept.unpersist()


def find_unnumbered(session: Any, uri: str, rowid: str) -> Unnumbered:
    """Look through a table's newest version; the ids of all rows are read, nothing else."""
    snapshot = delta_log(session, uri).startTransaction().snapshot()
    rows = (
        session.read.format("delta")
        .option("versionAsOf", snapshot.version())
        .load(uri)
        .select(
            functions.col(quoted(rowid)).alias("id"),
            functions.col("_metadata.file_path").alias(PATH),
            functions.col("_metadata.file_modification_time").alias("modified"),
        )
    )
    counts = dict(rows.where("id IS NULL").groupBy(PATH).count().collect())
    highest = rows.agg(functions.max("id")).collect()[0][0]
    kept = None if highest is None else _kept(rows)
    if kept is not None:
        own = functions.when(functions.col(PATH) == functions.col("kept"), functions.col("id"))
        more = functions.count("*") - functions.count_distinct(own)
        for path, count in rows.join(kept, "id").groupBy(PATH).agg(more).collect():
            counts[path] = counts.get(path, 0) + count
    wanted = {unquote(path): count for path, count in counts.items() if count}
    files = [
        UnnumberedFile(name, size, modified, wanted[path])
        for path, name, size, modified in (_files(session, uri, snapshot) if wanted else ())
        if path in wanted
    ]
    assert len(files) == len(wanted), "the log and Spark name files differently"
    return Unnumbered(-1 if highest is None else highest, files, kept)


def _kept(rows: Any) -> Any:
    """Each id that several rows have, and the oldest of their files; None where there are none."""
    twice = rows.where("id IS NOT NULL").groupBy("id").count().where("count > 1").select("id")
    if twice.isEmpty():  # the usual case costs but this one look
        return None
    oldest = functions.min(functions.struct("modified", PATH))[PATH]
    return rows.join(twice, "id").groupBy("id").agg(oldest.alias("kept")).persist(StorageLevel.DISK_ONLY)


def _files(session: Any, uri: str, snapshot: Any) -> list[tuple[str, str, int, int]]:
    """Full path, name in the log, bytes and time of each file; paths are compared without their escapes."""
    base = unquote(delta_log(session, uri).dataPath().toUri().toString())
    listed = DataFrame(snapshot.allFiles().toDF(), session).select("path", "size", "modificationTime").collect()
    return [(_full_path(base, path), path, size, modified) for path, size, modified in listed]


def _full_path(base: str, path: str) -> str:
    # A path with a scheme or a leading slash is whole: cloned tables use files of others.
    path = unquote(path)
    if ":/" in path.split("=", 1)[0]:
        return path
    return f"{base.split(':', 1)[0]}:{path}" if path.startswith("/") else f"{base}/{path}"


def rewrite_with_ids(
    session: Any, uri: str, rowid: str, found: Unnumbered, files: Sequence[UnnumberedFile], headroom: int
) -> int:
    """Number the rows of these files in one commit; how many rows. 0, and no commit, when the files are gone.

    With a headroom, the ids begin that far above the mark, and others may give
    ids meanwhile; without, whoever does is a conflict.
    """
    jvm, transaction = session._jvm, start_transaction(session, uri)
    added = list(transaction.snapshot().allFiles().filter(_named(files)).collectAsList())
    start = max(_mark(transaction, watched=headroom == 0), found.highest) + 1 + headroom
    transaction.trackFilesRead(seq(jvm, added))
    rows = _read(session, uri, transaction, added)
    duplicates = _duplicates(rows, rowid, found)
    spans, count, end = _spans(rows, rowid, duplicates, start)
    if count == 0:
        return 0
    numbered = _numbered(session, rows, rowid, duplicates, spans)
    now = jvm.scala.Option.apply(int(time.time() * 1000))
    actions = [
        jvm.org.apache.spark.sql.delta.actions.SetTransaction(MARK_APPLICATION, end - 1, now),
        *replace_files(jvm, transaction, added, numbered),
    ]
    update = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$Update")(jvm.scala.Option.apply(None))
    transaction.commit(seq(jvm, actions), update)
    return count


def _mark(transaction: Any, *, watched: bool) -> int:
    if watched:
        return int(transaction.txnVersion(MARK_APPLICATION))
    known = transaction.snapshot().transactions().get(MARK_APPLICATION)
    return int(known.get()) if known.isDefined() else -1


def _read(session: Any, uri: str, transaction: Any, added: list[Any]) -> Any:
    """The files' rows, each with its place. Spark cuts the same files into the same tasks each time it reads them."""
    rows = read_files(session, uri, transaction, added).select(
        "*",
        functions.monotonically_increasing_id().alias(PLACE),
        functions.col("_metadata.file_path").alias(PATH),
    )
    return rows.withColumn(TASK, functions.shiftright(PLACE, _PLACE_BITS))


def _duplicates(rows: Any, rowid: str, found: Unnumbered) -> Any:
    """The places of rows whose id another row keeps, None where no id has duplicates."""
    if found.kept is None:
        return None
    members = rows.select(functions.col(quoted(rowid)).alias("id"), PLACE, TASK, PATH).join(found.kept, "id")
    nth = functions.row_number().over(Window.partitionBy("id", PATH).orderBy(PLACE))
    others = members.withColumn("nth", nth).where(f"{PATH} != kept OR nth > 1")
    return others.select(functions.col("id").alias(DUPLICATE), PLACE, TASK)


def _spans(rows: Any, rowid: str, duplicates: Any, start: int) -> tuple[pa.Table, int, int]:
    """For each task its first and last place to number and the first's id; how many rows; the first id left over."""
    places = rows.where(functions.col(quoted(rowid)).isNull()).select(PLACE, TASK)
    if duplicates is not None:
        places = places.unionByName(duplicates.select(PLACE, TASK))
    found = places.groupBy(TASK).agg(functions.min(PLACE), functions.max(PLACE), functions.count("*")).collect()
    count = 0
    spans = []
    for task, first, last, size in sorted(found):
        spans.append({TASK: task, FIRST: first, LAST: last, START: start})
        start += last - first + 1
        count += size
    kinds = pa.schema([(name, pa.int64()) for name in (TASK, FIRST, LAST, START)])
    return pa.Table.from_pylist(spans, kinds), count, start


def _numbered(session: Any, rows: Any, rowid: str, duplicates: Any, spans: pa.Table) -> Any:
    names = [name for name in rows.columns if name not in (PLACE, PATH, TASK)]
    rows = rows.join(functions.broadcast(session.createDataFrame(spans)), TASK, "left")
    own, place = functions.col(quoted(rowid)), functions.col(PLACE)
    wanted = own.isNull()
    fits = place.between(functions.col(FIRST), functions.col(LAST))
    if duplicates is not None:
        rows = rows.join(duplicates.drop(TASK), PLACE, "left")
        other = functions.col(DUPLICATE)
        wanted = wanted | other.isNotNull()
        fits = fits & (other.isNull() | other.eqNullSafe(own))
    # A row that is not where it was a moment ago must not get an id that may be another's.
    new = functions.when(fits, functions.col(START) + place - functions.col(FIRST)).otherwise(
        functions.raise_error(functions.lit("rows moved")).cast("long")
    )
    rows = rows.withColumn(rowid, functions.when(wanted, new).otherwise(own))
    return rows.select(*(quoted(name) for name in names))


def _named(files: Sequence[UnnumberedFile]) -> Any:
    return functions.col("path").isin([file.path for file in files])._jc


def leaves_before(session: Any, uri: str, column: str) -> int:
    """How many columns, fields of structs counted one by one, stand before this one."""
    count = 0
    for field in session.read.format("delta").load(uri).schema.jsonValue()["fields"]:
        if field["name"] == column:
            break
        count += _leaves(field["type"])
    return count


def _leaves(kind: Any) -> int:
    if isinstance(kind, dict) and kind["type"] == "struct":
        return sum(_leaves(field["type"]) for field in kind["fields"])
    return 1
