"""How many requests are on their way at a time, found out from what comes.

A store may be bound by the line, which all replies share, or by the reply, of which several come
quicker than one: no rate tells which. So while a reader has to wait, twice as many are tried, and
kept if much more comes; and half as many, kept if no less does. Pure; imports nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["SHORTEST", "Flow", "Shape"]

# Requests are between these, the shorter the more of them are on their way.
SHORTEST, _LONGEST = 8 << 20, 64 << 20

# What comes in so many times the way there and back is ahead of the reader, and not less than so
# much: the next request begins to come before the one before it is read.
_LATENCIES = 2
_LEAST_LEAD = 32 << 20
# A rate is taken over so many blocks, and more of them where they come side by side.
_BLOCKS, _BLOCKS_EACH = 4, 2
_LEAST_S = 0.25
# Twice as many requests are worth it if so much comes, and half as many.
_MORE, _LESS = 1.25, 0.9
# After a try in vain there is none for so many rates, then for twice as many.
_FIRST_REST, _LONGEST_REST = 4, 256
# Fewer requests only cost less, and a try of that is slow where it is in vain.
_PATIENCE = 4
_HEADS = 64


class Shape(NamedTuple):
    """What should be on its way, or there, before a reader.

    Attributes:
        width: requests on their way at a time, and one more.
        each_bytes: the length of each.
        ahead_bytes: of all of it.
    """

    width: int
    each_bytes: int
    ahead_bytes: int


class Flow:
    """The blocks that come of files that are read in sequence.

    Args:
        most_bytes: may be ahead.
        most_requests: may be on their way.
        clock: gives seconds.
    """

    def __init__(
        self, most_bytes: int, most_requests: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_bytes = most_bytes
        self._most_requests = most_requests
        self._width = 1
        self._clock = clock
        # Seconds to the first byte: the least of them is the way there and back.
        self._heads: deque[float] = deque(maxlen=_HEADS)
        self._rate = 0.0
        # Since the last rate was taken.
        self._begin()
        # For how many rates in turn a reader waited.
        self._num_starved = 0
        # A try: the width and the rate before it.
        self._before: tuple[int, float] | None = None
        # What still comes of requests that were begun before the width was changed.
        self._old_bytes = 0
        self._is_wider_next = True
        # For how many rates there is no try, and for how many after the next one in vain.
        self._rest = 0
        self._next_rest = _FIRST_REST

    @property
    def shape(self) -> Shape:
        """As it is best, for all that is known."""
        latency_s = min(self._heads, default=0.0)
        lead = max(_LEAST_LEAD, int(_LATENCIES * latency_s * self._rate))
        lead = min(lead, self._most_bytes // 2)
        each = max(SHORTEST, (self._most_bytes - lead) // self._width)
        each = min(each, _LONGEST, self._most_bytes // 2)
        return Shape(self._width, each, min(self._most_bytes, lead + self._width * each))

    def starve(self) -> None:
        """Note that a reader waits for a block that is on its way, and no less may be ahead."""
        self._is_starved = True

    def add(self, num_bytes: int, head_s: float) -> None:
        """Count a block that came just now, of a reply whose first byte took so long."""
        self._heads.append(head_s)
        if self._old_bytes > 0:
            self._old_bytes -= num_bytes
            self._begin()
            return
        self._num_bytes += num_bytes
        self._num_blocks += 1
        seconds = self._clock() - self._since
        if seconds < _LEAST_S or self._num_blocks < _BLOCKS + _BLOCKS_EACH * self._width:
            return
        self._rate = self._num_bytes / seconds
        self._num_starved = self._num_starved + 1 if self._is_starved else 0
        self._judge()
        self._begin()

    def _begin(self) -> None:
        self._since, self._num_bytes, self._num_blocks = self._clock(), 0, 0
        self._is_starved = False

    def _judge(self) -> None:
        if self._before is not None:
            (width, rate), self._before = self._before, None
            if self._rate >= rate * (_MORE if self._width > width else _LESS):
                self._next_rest = _FIRST_REST
            else:
                self._change(width)
                self._is_wider_next = not self._is_wider_next
                self._rest = self._next_rest * (1 if self._is_wider_next else _PATIENCE)
                self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        if self._rest:
            self._rest -= 1
        elif self._num_starved > 1:
            # The second rate in turn: the first may be of a beginning.
            self._try()

    def _try(self) -> None:
        most = min(self._most_requests, self._most_bytes // SHORTEST)
        is_wider = self._is_wider_next or self._width == 1
        width = 2 * self._width if is_wider else self._width // 2
        if width <= most:
            self._before = (self._width, self._rate)
            self._change(width)
        else:
            self._is_wider_next = False

    def _change(self, width: int) -> None:
        shape = self.shape
        self._old_bytes = shape.width * shape.each_bytes
        self._width = width
