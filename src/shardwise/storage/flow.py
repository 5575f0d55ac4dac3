"""How many blocks of a file to have on their way: latency times bandwidth, measured as they come.

Fewer would leave the line empty while a request travels. More would not fill it any better, and the
block that is wanted next would share the line with those wanted later. Imports the standard
library only.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Flow"]

_KEPT = 16
_ENOUGH = 4
# What is in flight may grow by so much in the time of one request: a quick start, as TCP has.
_GROWTH = 2
# One that is being read, one behind it.
_LEAST = 2


class Flow:
    """The blocks of a file that came, and when.

    Args:
        like: the flow of a file that was read before this one, to begin with what it knew.
        clock: gives seconds.
    """

    __slots__ = ("_came", "_clock", "_heads", "_rate")

    def __init__(
        self, like: Flow | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._came: deque[tuple[float, int]] = deque(maxlen=_KEPT)
        # Seconds to the first byte: the least of them is the way there and back.
        self._heads: deque[float] = deque(() if like is None else like._heads, maxlen=4 * _KEPT)
        self._rate: float = 0.0 if like is None else like._rate

    def add(self, num_bytes: int, head_s: float) -> None:
        """Count a block that came just now."""
        now = self._clock()
        self._heads.append(head_s)
        self._came.append((now, num_bytes))
        first = self._came[0][0]
        if len(self._came) >= _ENOUGH and now > first:
            came = sum(num_bytes for _, num_bytes in self._came) - self._came[0][1]
            self._rate = came / (now - first)

    def depth(self, block_bytes: int) -> int:
        """Blocks to have on their way, or waiting to be read."""
        latency_s = min(self._heads, default=0.0)
        return _LEAST + math.ceil(_GROWTH * latency_s * self._rate / block_bytes)
