"""A histogram of waits, for their percentiles: log-spaced buckets, so that memory is bounded.

Source: the buckets of DDSketch (Masson, Rim and Lee, VLDB 2019). A percentile is within 1 % of the
exact one, between 1 µs and 3 hours, in at most 1,220 buckets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# [milliseconds, count] of each bucket that holds waits, ascending.
Pairs = Sequence[Any]
_GAMMA = 1.0095 / 0.9905
_LOG_GAMMA = math.log(_GAMMA)
# Buckets are numbered from 1 µs = 0.001 ms on; the first and the last one hold what is beyond.
_LEAST_MS, _LAST = 0.001, 1219
_MIDDLE_MS = _LEAST_MS * 2 / (_GAMMA + 1)


class WaitHistogram:
    """Counts of waits by their length; one thread adds, any thread reads.

    >>> waits = WaitHistogram()
    >>> for milliseconds in range(1, 101):
    ...     waits.add(milliseconds / 1000)
    >>> [round(at) for at in percentiles(waits.to_pairs()).values()]
    [50, 96, 100]
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count a wait."""
        ratio = seconds * (1000 / _LEAST_MS)
        bucket = min(_LAST, math.ceil(math.log(ratio) / _LOG_GAMMA)) if ratio > 1 else 0
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def to_pairs(self) -> list[list[float]]:
        """The buckets that hold waits, ascending: `[milliseconds, count]`."""
        counts = sorted(self._counts.copy().items())
        # Four digits: these numbers stand in each line of metrics.
        return [[float(f"{_MIDDLE_MS * _GAMMA**bucket:.4g}"), count] for bucket, count in counts]


def subtract(ours: Pairs, theirs: Pairs) -> list[list[float]]:
    """The waits of one histogram that an earlier one does not have.

    >>> subtract([[1.0, 5], [2.0, 1]], [[1.0, 3], [2.0, 1]])
    [[1.0, 2]]
    """
    earlier = dict(theirs)
    rest = [[at, count - earlier.get(at, 0)] for at, count in ours]
    return [pair for pair in rest if pair[1] > 0]


def percentiles(pairs: Pairs) -> dict[str, float]:
    """The milliseconds that 50, 95 and 99 % of waits do not exceed; 0 without any."""
    found = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        rank = share * (sum(count for _, count in pairs) - 1)
        found[name] = 0.0
        for milliseconds, count in pairs:
            found[name], rank = milliseconds, rank - count
            if rank < 0:
                break
    return found
