"""Hedging: a late request is sent again, and the first reply wins.

The store's measured latency and bandwidth decide when a request is late, and which ranges to join.
Used in the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from shardwise.base.counters import IO_COUNTS
from shardwise.extensions.remote.requests.event_loop import cancel
from shardwise.storage.client import AttemptError

_KEPT = 256
# Before 20 replies of a size class were measured, a request is late after 0.5 s.
_MIN_SAMPLES = 20
_LATE_S = 0.5
_LEAST_LATE_S = 0.02
# Upper bounds of the size classes: replies of one class take about the same time.
_SIZES = (16 << 10, 256 << 10, 2 << 20)
# Shorter replies do not measure bandwidth.
_MIN_BANDWIDTH_BYTES = 256 << 10
_WEIGHT = 0.1
_LEAST_PART, _MOST_PART = 1 << 20, 8 << 20
# A piece of a stream every 50 ms; above 2 MiB, the allocator does not reuse the memory.
_PIECE_S = 0.05
_LEAST_PIECE, _MOST_PIECE = 256 << 10, 2 << 20
# Hedges are at most 20 % of the replies, and 8 at the start: more would not help a store that is
# slow for all. A quarter of them is kept for requests that are very late.
_HEDGES, _VERY_LATE_HEDGES = 0.15, 0.05
_FIRST_HEDGES, _MOST_HEDGES = 4.0, 64.0


class LatencyTracker:
    """Times of a store's replies, by size class, and the budget of hedges."""

    def __init__(self) -> None:
        self._times: list[deque[float]] = [deque(maxlen=_KEPT) for _ in (*_SIZES, 0)]
        self._late: list[float] = [_LATE_S for _ in (*_SIZES, 0)]
        self._counts = [0 for _ in (*_SIZES, 0)]
        self.num_in_flight = 0
        self._head_s = 0.0
        self._bytes_a_s = 0.0
        self._hedges = self._very_late_hedges = _FIRST_HEDGES

    def add(self, num_bytes: int, head_s: float, whole_s: float) -> None:
        """Add a reply: the seconds to its first byte, and to its last one."""
        self._hedges = min(_MOST_HEDGES, self._hedges + _HEDGES)
        self._very_late_hedges = min(_MOST_HEDGES, self._very_late_hedges + _VERY_LATE_HEDGES)
        self._head_s = _blend(self._head_s, head_s)
        if num_bytes >= _MIN_BANDWIDTH_BYTES and whole_s > head_s:
            self._bytes_a_s = _blend(self._bytes_a_s, num_bytes / (whole_s - head_s))
        size = bisect_left(_SIZES, num_bytes)
        times = self._times[size]
        times.append(whole_s)
        self._counts[size] += 1
        if len(times) >= _MIN_SAMPLES and self._counts[size] % 16 == 0:
            p95 = sorted(times)[int(len(times) * 0.95)]
            self._late[size] = max(_LEAST_LATE_S, p95 * 1.25)

    def late_s(self, num_bytes: int) -> float:
        """1.25 times the 95th percentile of the seconds of replies of this size.

        Before enough were measured, twice their time at a bandwidth that those in flight share.
        """
        size = bisect_left(_SIZES, num_bytes)
        late = self._late[size]
        if self._bytes_a_s and len(self._times[size]) < _MIN_SAMPLES:
            alone_s = self._head_s + num_bytes / self._bytes_a_s
            late = max(late, 2 * alone_s * (1 + self.num_in_flight))
        return late

    def may_hedge(self, *, is_very_late: bool = False) -> bool:
        """Take a hedge from the budget, or from what is kept for very late requests."""
        if self._hedges >= 1:
            self._hedges -= 1
        elif is_very_late and self._very_late_hedges >= 1:
            self._very_late_hedges -= 1
        else:
            return False
        return True

    def received(self, num_bytes: int, seconds: float) -> int:
        """An estimate of the bytes of a reply that arrived before it was cancelled."""
        return int(min(num_bytes, max(0.0, seconds - self._head_s) * self._bytes_a_s))

    @property
    def max_request_bytes(self) -> int:
        """The longest request: longer ranges are read by several at once."""
        product = 2 * self._head_s * self._bytes_a_s
        return int(min(_MOST_PART, max(_LEAST_PART, product))) if product else _MOST_PART // 2

    @property
    def piece_bytes(self) -> int:
        """The length of a stream's pieces."""
        return int(min(_MOST_PIECE, max(_LEAST_PIECE, self._bytes_a_s * _PIECE_S)))


def _blend(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new


T = TypeVar("T")

# Duplicate a late request, then again at doubling delays, with at most 3 duplicates in flight.
_MAX_HEDGES = 3
_MAX_DELAY_S = 1.0
# A delay of 0.4 s is not a fluctuation of the store, but may be a full link: such a request has a
# separate budget of duplicates.
VERY_LATE_S = 0.4


async def hedged(
    once: Callable[[], Awaitable[T]], late_s: float | None, latency: LatencyTracker
) -> T:
    """One attempt, duplicated while it is late; the first success is the result.

    A failure counts only when no attempt is left that may succeed. With `late_s` None, no attempt
    is late.
    """
    running = {_start(once)}
    delay_s = late_s
    try:
        while True:
            # A failed attempt has left `running`, so it may be replaced.
            may_hedge = late_s is not None and len(running) <= _MAX_HEDGES
            done, running = await asyncio.wait(
                running,
                timeout=delay_s if may_hedge else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            # Every exception is retrieved: asyncio logs those that are not.
            ended = [(task, task.exception()) for task in done]
            for task, error in ended:
                if error is None:
                    return task.result()
            for _, error in ended:
                is_final = not isinstance(error, AttemptError) or error.kind != "passing"
                if error is not None and (is_final or not running):
                    raise error
            if done:
                # A failed attempt is replaced as soon as a late one would be.
                delay_s = late_s
            elif delay_s is not None:
                if latency.may_hedge(is_very_late=delay_s > VERY_LATE_S):
                    IO_COUNTS.add(hedges=1)
                    running.add(_start(once))
                delay_s = max(delay_s, min(2 * delay_s, _MAX_DELAY_S))
    finally:
        if running:
            await cancel(running)


def _start(once: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
    IO_COUNTS.add(requests=1)
    return asyncio.ensure_future(once())


class StallTimer:
    """Ends a streamed reply if `num_pieces` does not rise for some seconds (None: for no time).

    The rest is a separate request, so the budget of hedges has to allow it.

    Checks at intervals, which costs nothing per piece. A check that comes late itself ends nothing:
    the loop was busy, and pieces may have arrived unseen.
    """

    def __init__(
        self, limit: asyncio.Timeout, interval_s: float | None, latency: LatencyTracker
    ) -> None:
        self.num_pieces = 0
        self._latency = latency
        self._limit = limit
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._interval_s is not None:
            now = self._loop.time()
            latest = now + 1.5 * self._interval_s
            self._timer = self._loop.call_at(
                now + self._interval_s, self._check, latest, self.num_pieces
            )

    def _check(self, latest: float, num_before: int) -> None:
        now = self._loop.time()
        is_stalled = self.num_pieces == num_before and now < latest
        if is_stalled and self._latency.may_hedge(is_very_late=True):
            self._limit.reschedule(now)
        else:
            self._arm()
