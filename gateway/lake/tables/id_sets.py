"""Sets of row ids, kept as ranges: small in memory and small in a commit's note."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Range = tuple[int, int]  # both ends belong to it


@dataclass(frozen=True, slots=True)
class IdSet:
    """Ranges in order, none touching the next. One that is not exact may hold more ids than were meant."""

    ranges: tuple[Range, ...] = ()
    is_exact: bool = True

    @classmethod
    def of(cls, row_ids: Iterable[int]) -> IdSet:
        return cls(tuple(joined((row_id, row_id) for row_id in row_ids)))

    @classmethod
    def span(cls, first: int, count: int) -> IdSet:
        return cls(((first, first + count - 1),)) if count else cls()

    @classmethod
    def decode(cls, text: str) -> IdSet:
        """Inverse of `encode`; ValueError for any other text."""
        parts = [part.partition(":") for part in text.split(",") if part]
        return cls(tuple((int(low), int(high or low)) for low, _, high in parts))

    def encode(self) -> str:
        return ",".join(str(low) if low == high else f"{low}:{high}" for low, high in self.ranges)

    def __contains__(self, row_id: object) -> bool:
        if not isinstance(row_id, int):
            return False
        place = bisect_right(self.ranges, (row_id, row_id)) - 1
        if place >= 0 and self.ranges[place][1] >= row_id:
            return True
        return place + 1 < len(self.ranges) and self.ranges[place + 1][0] == row_id

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(range(low, high + 1) for low, high in self.ranges)

    def __len__(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)

    def split(self, ordered: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Ids in order, as those that are in the set and the others; searches for the ranges or for the ids,
        whichever are fewer."""
        if len(ordered) <= len(self.ranges):
            inside = [row_id for row_id in ordered if row_id in self]
            return inside, ordered if not inside else [row_id for row_id in ordered if row_id not in self]
        inside, done = [], 0
        outside: list[int] = []
        for low, high in self.ranges:
            start = bisect_left(ordered, low, done)
            end = bisect_right(ordered, high, start)
            if start < end:
                inside += ordered[start:end]
                outside += ordered[done:start]
                done = end
        if not inside:
            return inside, ordered
        outside += ordered[done:]
        return inside, outside

    def overlaps(self, other: IdSet) -> bool:
        few, many = sorted((self, other), key=lambda each: len(each.ranges))
        for low, high in few.ranges:
            place = bisect_right(many.ranges, (high, high)) - 1
            for near in many.ranges[max(place, 0) : place + 2]:
                if near[0] <= high and low <= near[1]:
                    return True
        return False


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same ids in the fewest ranges, in order."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def few_ranges(ranges: Sequence[Range], at_most: int) -> list[Range]:
    """At most as many ranges, that hold all ids of the given ones: split where the gaps are widest."""
    ordered = joined(ranges)
    gaps = sorted(range(1, len(ordered)), key=lambda index: ordered[index - 1][1] - ordered[index][0])
    edges = [0, *sorted(gaps[: at_most - 1]), len(ordered)]
    return [(ordered[start][0], ordered[end - 1][1]) for start, end in itertools.pairwise(edges) if start < end]
