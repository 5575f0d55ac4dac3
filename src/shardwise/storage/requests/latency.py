"""Measured latency and bandwidth of a store: when a request is late, which ranges to join.

Used in the event loop's thread only.
"""

from __future__ import annotations

from collections import deque

__all__ = ["LatencyTracker"]

_KEPT = 256
# Before 20 replies of a size class were measured, a request is late after 0.5 s.
_MIN_SAMPLES = 20
_LATE_S = 0.5
_LEAST_LATE_S = 0.02
# Upper bounds of the size classes: replies of one class take about the same time.
_SIZES = (16 << 10, 256 << 10, 2 << 20)
# Shorter replies are no measure of bandwidth.
_MIN_BANDWIDTH_BYTES = 256 << 10
_WEIGHT = 0.1
# Concurrency hides latency: beyond 256 KiB, unneeded bytes cost more than another request.
_LEAST_GAP, _MOST_GAP = 32 << 10, 256 << 10
_LEAST_PART, _MOST_PART = 1 << 20, 8 << 20
# A piece of a stream every 50 ms; above 2 MiB, the allocator does not reuse the memory.
_PIECE_S = 0.05
_LEAST_PIECE, _MOST_PIECE = 256 << 10, 2 << 20
# Hedges are at most 20 % of the requests: more would not help a store that is slow for all.
_HEDGES = 0.2
_MOST_HEDGES = 64.0


class LatencyTracker:
    """Times of a store's replies, by size class, and the budget of hedges."""

    def __init__(self) -> None:
        self._times: list[deque[float]] = [deque(maxlen=_KEPT) for _ in (*_SIZES, 0)]
        self._late: list[float] = [_LATE_S for _ in (*_SIZES, 0)]
        self._counts = [0 for _ in (*_SIZES, 0)]
        self._head_s = 0.0
        self._bytes_a_s = 0.0
        self._hedges = _MOST_HEDGES / 2

    def add(self, num_bytes: int, head_s: float, whole_s: float) -> None:
        """Add a reply: the seconds to its first byte, and to its last one."""
        self._hedges = min(_MOST_HEDGES, self._hedges + _HEDGES)
        self._head_s = _blend(self._head_s, head_s)
        if num_bytes >= _MIN_BANDWIDTH_BYTES and whole_s > head_s:
            self._bytes_a_s = _blend(self._bytes_a_s, num_bytes / (whole_s - head_s))
        size = _class_of(num_bytes)
        times = self._times[size]
        times.append(whole_s)
        self._counts[size] += 1
        if len(times) >= _MIN_SAMPLES and self._counts[size] % 16 == 0:
            p95 = sorted(times)[int(len(times) * 0.95)]
            self._late[size] = max(_LEAST_LATE_S, p95 * 1.25)

    def late_s(self, num_bytes: int) -> float:
        """1.25 times the 95th percentile of the seconds of replies of this size."""
        return self._late[_class_of(num_bytes)]

    def may_hedge(self) -> bool:
        """Take a hedge from the budget; False if it is used up."""
        if self._hedges < 1:
            return False
        self._hedges -= 1
        return True

    @property
    def gap_bytes(self) -> int:
        """Latency times bandwidth, within bounds: reading this much costs as much as a request."""
        return self._within(_LEAST_GAP, _MOST_GAP, times=1)

    @property
    def max_request_bytes(self) -> int:
        """The longest request: longer ranges are read by several at once."""
        return self._within(_LEAST_PART, _MOST_PART, times=2)

    @property
    def piece_bytes(self) -> int:
        """The length of a stream's pieces."""
        return int(min(_MOST_PIECE, max(_LEAST_PIECE, self._bytes_a_s * _PIECE_S)))

    def _within(self, least: int, most: int, *, times: int) -> int:
        product = self._head_s * self._bytes_a_s * times
        return most // 2 if not product else int(min(most, max(least, product)))


def _class_of(num_bytes: int) -> int:
    return sum(num_bytes > size for size in _SIZES)


def _blend(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new
