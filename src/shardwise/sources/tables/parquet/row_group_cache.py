"""Row groups that are decoded already: as many as fit into so many bytes, each decoded once.

Shared by the threads of a process; a process that was forked or got the source by pickle begins
with none. Imports the standard library only.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from shardwise.sources.per_process import PerProcess

__all__ = ["Decoded"]

T = TypeVar("T")

# However small the budget: a window of rows lies in two row groups, and the next one is begun
# before it is done with. With less, each batch would decode them anew.
_LEAST = 4


class Decoded(Generic[T]):
    """What was made last, up to a number of bytes, and four of them in any case.

    What is asked for by several threads at once is made by the first of them.

    Args:
        max_bytes: the most that is kept; what somebody still uses is not counted.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._here: PerProcess[_Kept[T]] = PerProcess()

    def __len__(self) -> int:
        return len(self._kept.ready)

    @property
    def _kept(self) -> _Kept[T]:
        return self._here.get(_Kept)

    @property
    def num_bytes(self) -> int:
        """The bytes that are kept."""
        return self._kept.num_bytes

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """What is kept under a key, else what `make` gives.

        Args:
            key: its name.
            make: gives the value and how many bytes it takes in memory. What it raises is raised
                to all who wait for it, and is not kept.
        """
        kept = self._kept
        ready = kept.ready.get(key)
        if ready is not None:
            ready.used = next(kept.clock)
            return ready.value
        with kept.lock:
            ready = kept.ready.get(key)
            if ready is not None:
                return ready.value
            future = kept.making.get(key)
            mine = future is None
            if future is None:
                future = kept.making[key] = Future()
        if not mine:
            return future.result()
        try:
            value, num_bytes = make()
        except BaseException as error:
            with kept.lock:
                del kept.making[key]
            future.set_exception(error)
            raise
        with kept.lock:
            del kept.making[key]
            kept.ready[key] = _Ready(value, num_bytes, next(kept.clock))
            kept.num_bytes += num_bytes
            self._let_go(kept)
        future.set_result(value)
        return value

    def _let_go(self, kept: _Kept[T]) -> None:
        """Forget what was used longest ago, until the rest fits."""
        while kept.num_bytes > self.max_bytes and len(kept.ready) > _LEAST:
            oldest = min(kept.ready, key=lambda key: kept.ready[key].used)
            kept.num_bytes -= kept.ready.pop(oldest).num_bytes


class _Ready(Generic[T]):
    """One thing that is kept, and when it was used last."""

    __slots__ = ("num_bytes", "used", "value")

    def __init__(self, value: T, num_bytes: int, used: int) -> None:
        self.value = value
        self.num_bytes = num_bytes
        self.used = used


class _Kept(Generic[T]):
    """What one process keeps; what is ready is looked up without the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clock = itertools.count()
        self.ready: dict[Hashable, _Ready[T]] = {}
        self.making: dict[Hashable, Future[T]] = {}
        self.num_bytes = 0
