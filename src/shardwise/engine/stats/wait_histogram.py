"""A histogram of waits in log-spaced buckets: percentiles within 1 %, from 1 µs to 3 hours.

Source: the buckets of DDSketch (Masson, Rim and Lee, VLDB 2019); there are 1,220 at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# [milliseconds, count] of each bucket that holds waits, ascending.
Pairs = Sequence[Any]
_GAMMA, _LEAST_MS, _LAST = 1.0095 / 0.9905, 0.001, 1219
_BUCKETS_A_LOG = 1 / math.log(_GAMMA)


class WaitHistogram:
    """Counts of waits by their length; one thread adds, any thread reads."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        ratio = seconds * (1000 / _LEAST_MS)
        bucket = min(_LAST, math.ceil(math.log(ratio) * _BUCKETS_A_LOG)) if ratio > 1 else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def to_pairs(self) -> Pairs:
        """The counts, by four digits of the middle of each bucket."""
        middle = _LEAST_MS * 2 / (_GAMMA + 1)
        counts = sorted(self._counts.copy().items())
        return [[float(f"{middle * _GAMMA**bucket:.4g}"), count] for bucket, count in counts]


def subtract(ours: Pairs, theirs: Pairs) -> Pairs:
    """The waits of one histogram that an earlier one does not have."""
    earlier = dict(theirs)
    rest = [[at, count - earlier.get(at, 0)] for at, count in ours]
    return [pair for pair in rest if pair[1] > 0]


def percentiles(pairs: Pairs) -> dict[str, float]:
    """The milliseconds that 50, 95 and 99 % of waits do not exceed; 0 without any."""
    found, total = {"p50": 0.0, "p95": 0.0, "p99": 0.0}, sum(count for _, count in pairs)
    for name in found:
        rank = int(name[1:]) / 100 * (total - 1)
        for found[name], count in pairs:
            rank -= count
            if rank < 0:
                break
    return found
