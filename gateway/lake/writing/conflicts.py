"""First committer wins: whether rows are still what they were when a statement's values were computed.

The cheap answer comes from what commits touched: the gateway remembers that of
its own, and a commit by others that only added files, or only moved rows
between files, changed no row. Otherwise the rows of both versions are compared.
"""

from __future__ import annotations

import json
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence

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
        left: Sequence[int] = sorted(row_ids)
        since: dict[int, list[int]] = {}
        neighbours: dict[int, list[int]] = {}
        for own in reversed(context.own):  # the newest write of a row counts
            if not left:
                break
            mine, left = _split(own.row_ids, left)
            if mine:
                since.setdefault(own.version, []).extend(mine)
                if isinstance(own.row_ids, IdSet) and not own.row_ids.is_exact:
                    neighbours.setdefault(own.version, []).extend(mine)
        if left:
            since.setdefault(base, []).extend(left)
        self._check_between(head, since, context.altered)
        for own_version, ids in neighbours.items():
            # Perhaps not the transaction's own rows but others between them: they count from the base on, too.
            self._check_between(self._snapshots.at(own_version - 1), {base: ids}, context.altered)

    def _check_between(self, head: LogSnapshot, since: Mapping[int, list[int]], altered: Sequence[int]) -> None:
        """An ALTER of one's own is no conflict, though it may rewrite every row: what came before and after it is."""
        for version in sorted(version for version in altered if version <= head.version):
            earlier = {base: ids for base, ids in since.items() if base < version}
            if earlier:
                self._check_since(self._snapshots.at(version - 1), earlier)
                since = {base: ids for base, ids in since.items() if base > version} | {
                    version: [row_id for ids in (*earlier.values(), since.get(version, ())) for row_id in ids]
                }
        self._check_since(head, since)

    def _check_since(self, head: LogSnapshot, since: Mapping[int, list[int]]) -> None:
        """Rows by the version from which on they must not have changed."""
        for base, suspects in self._touched_since(head, since).items():
            if _have_changed(self._snapshots.at(base), head, pa.array(suspects, pa.int64())):
                raise ConflictError(
                    f"conflict: rows of table '{self._table}' changed between version {base} and {head.version}; "
                    "try again"
                )

    def _touched_since(self, head: LogSnapshot, since: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Which of the rows a later commit may have changed; one walk over the commits for all bases."""
        base_of = {row_id: base for base, ids in since.items() for row_id in ids}
        suspects: dict[int, list[int]] = {}
        left: Sequence[int] = []
        for version in range(min(since, default=head.version) + 1, head.version + 1):
            left = _with(left, since.get(version - 1, ()))
            if not left:
                continue
            touched = self._touched_by(head, version)
            found, left = (left, []) if touched is None else touched.split(left)
            for row_id in found:
                suspects.setdefault(base_of[row_id], []).append(row_id)
        return suspects

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


def _with(ordered: Sequence[int], more: Sequence[int]) -> Sequence[int]:
    """All of them in order; a few find their places one by one, since a merge looks at every id."""
    if not more:
        return ordered
    if len(more) * 16 > len(ordered):
        return sorted([*ordered, *more])
    whole = list(ordered)
    for row_id in more:
        insort(whole, row_id)
    return whole


def _split(own: Container[int], ordered: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    if isinstance(own, IdSet):
        return own.split(ordered)
    return [row_id for row_id in ordered if row_id in own], [row_id for row_id in ordered if row_id not in own]


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
