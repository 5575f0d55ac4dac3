"""How quick a store is: what to read in vain, how far to read ahead, when a request is late.

Everything is measured on the requests themselves. Used in the event loop's thread only. Imports
nothing.
"""

from __future__ import annotations

from collections import deque

__all__ = ["LatencyTracker"]

_KEPT = 256
# Until so many of a size were seen, a request is late after half a second.
_ENOUGH = 20
_LATE_S = 0.5
_LEAST_LATE_S = 0.02
# Sizes of replies whose times are like each other.
_SIZES = (16 << 10, 256 << 10, 2 << 20)
# Bodies that are long enough to tell a bandwidth.
_TELLING_BYTES = 256 << 10
_WEIGHT = 0.1
# Many requests are in flight at once, which hides their latency: beyond this, bytes in vain cost
# more than requests.
_LEAST_GAP, _MOST_GAP = 32 << 10, 256 << 10
_LEAST_PART, _MOST_PART = 1 << 20, 8 << 20
# Pieces of a long reply come so often, within bounds; beyond them memory is not used again.
_PIECE_S = 0.05
_LEAST_PIECE, _MOST_PIECE = 256 << 10, 2 << 20
# Second requests may be a fifth of the first ones: a store that is slow for all is not helped.
_HEDGES = 0.2
_MOST_HEDGES = 64.0


class LatencyTracker:
    """Times of replies, by size."""

    def __init__(self) -> None:
        self._times: list[deque[float]] = [deque(maxlen=_KEPT) for _ in (*_SIZES, 0)]
        self._late: list[float] = [_LATE_S for _ in (*_SIZES, 0)]
        self._counts = [0 for _ in (*_SIZES, 0)]
        self._head_s = 0.0
        self._bytes_a_s = 0.0
        self._hedges = _MOST_HEDGES / 2

    def add(self, num_bytes: int, head_s: float, whole_s: float) -> None:
        """Count a reply: the seconds to its first byte, and to its last one."""
        self._hedges = min(_MOST_HEDGES, self._hedges + _HEDGES)
        self._head_s = _blend(self._head_s, head_s)
        if num_bytes >= _TELLING_BYTES and whole_s > head_s:
            self._bytes_a_s = _blend(self._bytes_a_s, num_bytes / (whole_s - head_s))
        size = _class_of(num_bytes)
        times = self._times[size]
        times.append(whole_s)
        self._counts[size] += 1
        if len(times) >= _ENOUGH and self._counts[size] % 16 == 0:
            p95 = sorted(times)[int(len(times) * 0.95)]
            self._late[size] = max(_LEAST_LATE_S, p95 * 1.25)

    def late_s(self, num_bytes: int) -> float:
        """Seconds after which 95 of 100 replies of this size are there, and a little more."""
        return self._late[_class_of(num_bytes)]

    def may_hedge(self) -> bool:
        """Take one second request from what is allowed."""
        if self._hedges < 1:
            return False
        self._hedges -= 1
        return True

    @property
    def gap_bytes(self) -> int:
        """What comes in the time of an empty request: latency times bandwidth, within bounds."""
        return self._within(_LEAST_GAP, _MOST_GAP, times=1)

    @property
    def max_request_bytes(self) -> int:
        """How long a request should be at most, so that long ranges come in several at once."""
        return self._within(_LEAST_PART, _MOST_PART, times=2)

    @property
    def piece_bytes(self) -> int:
        """What a long reply should be handed on in."""
        return int(min(_MOST_PIECE, max(_LEAST_PIECE, self._bytes_a_s * _PIECE_S)))

    def _within(self, least: int, most: int, *, times: int) -> int:
        product = self._head_s * self._bytes_a_s * times
        return most // 2 if not product else int(min(most, max(least, product)))


def _class_of(num_bytes: int) -> int:
    return sum(num_bytes > size for size in _SIZES)


def _blend(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new
