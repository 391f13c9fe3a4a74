"""First committer wins: whether rows are still what they were when a statement's values were computed.

The cheap answer comes from what commits touched: the gateway remembers that of
its own, and a commit by others that only added files, or only moved rows
between files, changed no row. Otherwise the rows of both versions are compared.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa

from gateway.catalog.changes import WriteContext
from gateway.errors import ConflictError
from gateway.lake.reading.lookups import rows_by_id, same_rows
from gateway.lake.tables.history import commit_file
from gateway.lake.tables.id_sets import IdSet
from gateway.lake.tables.snapshots import LogSnapshot, Snapshots
from gateway.lake.tables.storage import Folder

_REMEMBERED_COMMITS = 1_000
_REMEMBERED_RANGES = 10_000  # of one commit; one that touched more is looked at again when it matters
_NOTHING = IdSet()


class Conflicts:
    """Knows what the commits of one table touched. Thread-safe: one lock guards what is remembered."""

    def __init__(self, table: str, snapshots: Snapshots, log: Folder) -> None:
        self._table = table
        self._snapshots = snapshots
        self._log = log
        self._lock = threading.Lock()
        self._touched: OrderedDict[tuple[str, int], IdSet] = OrderedDict()

    def remember(self, snapshot: LogSnapshot, version: int, touched: IdSet) -> None:
        """A commit of our own, and all rows it touched."""
        if touched.is_exact and len(touched.ranges) <= _REMEMBERED_RANGES:
            self._keep(snapshot, version, touched)

    def check(self, head: LogSnapshot, context: WriteContext, row_ids: Sequence[int]) -> None:
        """Raise a ConflictError when one of the rows is not what it was, or is gone."""
        base = context.read_version if context.conflict_base is None else context.conflict_base
        if base is None:
            return
        by_base: dict[int, list[int]] = {}
        neighbours: dict[int, list[int]] = {}
        for row_id in row_ids:
            own = next((own for own in reversed(context.own) if row_id in own.row_ids), None)
            by_base.setdefault(base if own is None else own.version, []).append(row_id)
            if own is not None and isinstance(own.row_ids, IdSet) and not own.row_ids.is_exact:
                neighbours.setdefault(own.version, []).append(row_id)
        for since, ids in by_base.items():
            self._check_between(head, since, ids, context.altered)
        for own_version, ids in neighbours.items():
            # Perhaps not the transaction's own rows but others between them: they count from the base on, too.
            self._check_between(self._snapshots.at(own_version - 1), base, ids, context.altered)

    def _check_between(self, head: LogSnapshot, base: int, row_ids: Sequence[int], altered: Sequence[int]) -> None:
        """An ALTER of one's own is no conflict, though it may rewrite every row: what came before and after it is."""
        for version in sorted(version for version in altered if base < version <= head.version):
            self._check_since(self._snapshots.at(version - 1), base, row_ids)
            base = version
        self._check_since(head, base, row_ids)

    def _check_since(self, head: LogSnapshot, base: int, row_ids: Sequence[int]) -> None:
        if base >= head.version:
            return
        suspects = self._touched_since(head, base, row_ids)
        if not suspects:
            return
        before = self._snapshots.at(base)
        suspected = pa.array(suspects, pa.int64())
        if _have_changed(before, head, suspected):
            raise ConflictError(
                f"conflict: rows of table '{self._table}' changed between version {base} and {head.version}; try again"
            )

    def _touched_since(self, head: LogSnapshot, base: int, row_ids: Sequence[int]) -> Sequence[int]:
        """Which of the rows a later commit may have changed."""
        suspects: set[int] = set()
        for version in range(base + 1, head.version + 1):
            touched = self._touched_by(head, version)
            if touched is None:
                return row_ids
            suspects.update(row_id for row_id in row_ids if row_id in touched)
        return sorted(suspects)

    def _touched_by(self, head: LogSnapshot, version: int) -> IdSet | None:
        with self._lock:
            known = self._touched.get((head.table_id, version))
        if known is None and _changed_no_row(self._log, version):
            known = _NOTHING
            self._keep(head, version, known)
        return known

    def _keep(self, snapshot: LogSnapshot, version: int, touched: IdSet) -> None:
        with self._lock:
            self._touched[snapshot.table_id, version] = touched
            while len(self._touched) > _REMEMBERED_COMMITS:
                self._touched.popitem(last=False)


def _have_changed(before: LogSnapshot, head: LogSnapshot, row_ids: pa.Array) -> bool:
    """Whether one of the rows differs, or a column that was there does; one that came since is NULL in old rows."""
    if before.schema.rowid != head.schema.rowid:
        return True
    if not all(column.means_the_same_as(head.schema.column(column.name)) for column in before.schema.columns):
        return True
    old = rows_by_id(before, row_ids, before.schema.columns)
    new = rows_by_id(head, row_ids, head.schema.columns)
    for field in new.schema:
        if field.name not in old.column_names:
            old = old.append_column(field, pa.nulls(old.num_rows, field.type))
    return not same_rows(old.select(new.column_names), new)


def _changed_no_row(log: Folder, version: int) -> bool:
    """Whether a commit is surely without effect on the rows before it; false when its file is gone."""
    if log.stamps([commit_file(version)]) == [None]:
        return False
    with log.open_file(commit_file(version)) as file:
        for line in file.read().splitlines():
            action = json.loads(line)
            if "metaData" in action or "protocol" in action:
                return False
            if "remove" in action and action["remove"].get("dataChange", True):
                return False
    return True
