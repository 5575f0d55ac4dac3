"""Hedging: a late request is sent again, and the first reply wins.

Used in the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from shardwise.storage.requests.counts import IO_COUNTS
from shardwise.storage.requests.failures import AttemptError
from shardwise.storage.requests.latency import LatencyTracker

__all__ = ["VERY_LATE_S", "StallTimer", "hedged"]

T = TypeVar("T")

# Duplicate a late request, then again at doubling delays, with at most 3 duplicates in flight.
_MAX_HEDGES = 3
_MAX_DELAY_S = 1.0
# 0.4 s late is no fluctuation of the store: such a request is duplicated whatever the budget.
VERY_LATE_S = 0.4


async def hedged(
    once: Callable[[], Awaitable[T]], late_s: float | None, latency: LatencyTracker
) -> T:
    """One attempt, duplicated while it is late; the first success is the result.

    A failure counts only when no attempt is left that may succeed.

    Args:
        once: makes an attempt.
        late_s: seconds until an attempt is late; None never duplicates it.
        latency: holds the budget of duplicates.
    """
    running = {_start(once)}
    delay_s = late_s
    try:
        while True:
            # A failed attempt is no longer in `running`, so it may be replaced.
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
                if latency.may_hedge() or delay_s > VERY_LATE_S:
                    IO_COUNTS.add(hedges=1)
                    running.add(_start(once))
                delay_s = max(delay_s, min(2 * delay_s, _MAX_DELAY_S))
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)


def _start(once: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
    IO_COUNTS.add(requests=1)
    return asyncio.ensure_future(once())


class StallTimer:
    """Ends a streamed reply if no piece arrives for some seconds.

    Checks at intervals, which costs nothing per piece. A check that comes late itself ends nothing:
    the loop was busy, and pieces may have arrived unseen.

    Args:
        limit: made to expire.
        interval_s: seconds between two checks; None for no limit.

    Attributes:
        num_pieces: the pieces so far.
    """

    def __init__(self, limit: asyncio.Timeout, interval_s: float | None) -> None:
        self.num_pieces = 0
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
        if self.num_pieces == num_before and now < latest:
            self._limit.reschedule(now)
        else:
            self._arm()
