"""Timings, and the order in which competitors are timed.

Competitors take turns, and who begins changes with every round: what else the
machine does then hits them alike. Medians are compared, never single runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.seconds)

    @property
    def p99(self) -> float:
        """Nearest rank: with fewer than a hundred samples, the slowest."""
        return sorted(self.seconds)[math.ceil(0.99 * len(self.seconds)) - 1]

    @property
    def spread(self) -> float:
        """Slowest to fastest, as a multiple: how noisy the rounds were."""
        return max(self.seconds) / min(self.seconds)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def take_turns(rounds: int, *competitors: Callable[[int], float]) -> list[Timing]:
    """Each competitor is given the round's number and tells how long its turn took."""
    seconds: list[list[float]] = [[] for _ in competitors]
    for turn in range(rounds):
        order = list(range(len(competitors)))
        for index in order if turn % 2 == 0 else reversed(order):
            seconds[index].append(competitors[index](turn))
    return [Timing(tuple(each)) for each in seconds]


def repeat(times: int, work: Callable[[], object]) -> Timing:
    return Timing(tuple(timed(work) for _ in range(times)))


def spaced(count: int, below: int) -> Sequence[int]:
    """`count` keys spread over [0, below), no two near each other and none in order."""
    stride = next(step for step in range(int(below * 0.618) or 1, below + 2) if math.gcd(step, below) == 1)
    return [(number * stride + below // 3) % below for number in range(count)]
