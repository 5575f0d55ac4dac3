"""Blocking calls to a foreign library: a bounded number at a time, each with state of its own.

Most libraries do not stand two threads on one connection, so a call has a lane to itself: what it
opened stays there for the next call. A call that is given up keeps its thread until the library
returns, if ever; these threads are bounded as well. Used in the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from shardwise.storage.requests.blocking import in_thread
from shardwise.storage.requests.failures import AttemptError

__all__ = ["BlockingPool"]

S = TypeVar("S")
T = TypeVar("T")

# Connections to one server: OpenSSH lets ten be under way to a login at a time.
_MOST_LANES = 8
_MOST_STUCK = 64


class BlockingPool(Generic[S]):
    """Calls to one server.

    Args:
        name: of the server's kind, for messages.
        make: makes the state of a lane; called in a lane's thread.
    """

    def __init__(self, name: str, make: Callable[[], S]) -> None:
        self._name = name
        self._make = make
        self._free: list[S] = []
        self._turns = asyncio.Semaphore(_MOST_LANES)
        self._num_stuck = 0

    async def call(self, work: Callable[[S], T], *, timeout_s: float) -> T:
        """The result of `work(state)`, in a thread; after an error, the lane's state is dropped.

        Args:
            work: blocks.
            timeout_s: seconds for it, after which it is given up.

        Raises:
            TimeoutError: it has not returned in time.
            AttemptError: too many calls have not returned at all.
        """
        async with self._turns:
            if self._num_stuck >= _MOST_STUCK:
                raise AttemptError(
                    f"{self._num_stuck} calls to {self._name} have not returned: the server, or "
                    "fsspec's plug-in for it, does not answer",
                    "refused",
                )
            lane = self._free.pop() if self._free else None

            def call() -> tuple[S, T]:
                state = self._make() if lane is None else lane
                return state, work(state)

            self._num_stuck += 1
            async with asyncio.timeout(timeout_s):
                state, result = await in_thread(call, finally_=self._returned)
            self._free.append(state)
            return result

    def _returned(self) -> None:
        self._num_stuck -= 1
