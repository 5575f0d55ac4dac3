"""A cache of decoded row groups within a bound of bytes; each is decoded once.

Shared by the threads of a process; a forked or unpickled one starts empty. And the window shuffle
for which few row groups need to be in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np

from shardwise.plan import WindowShape
from shardwise.sources.manifest import Manifest
from shardwise.sources.per_process import PerProcess

T = TypeVar("T")

# Row groups kept whatever the bound: a window of rows lies in two, and the next window starts
# before it ends. With fewer, each batch would decode them again.
_MIN_GROUPS = 4


def window_within(max_bytes: int, manifest: Manifest, *, max_lanes: int) -> WindowShape:
    """As many lanes, a power of two, as fit into memory with two row groups each."""
    num_filled = np.count_nonzero(manifest.sizes)
    if not num_filled:
        return WindowShape()
    mean_bytes = max(1.0, int(manifest.shard_bytes[manifest.sizes > 0].sum()) / num_filled)
    most = max(1, min(max_lanes, int(max_bytes / (2 * mean_bytes))))
    return WindowShape(1 << (most.bit_length() - 1), WindowShape().window)


class RowGroupCache(Generic[T]):
    """The row groups that were used last, up to a number of bytes, and at least four.

    Of several threads that need the same one, the first decodes it. Row groups that are evicted
    while in use do not count.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._process: PerProcess[_Cache[T]] = PerProcess()

    def __len__(self) -> int:
        return len(self._cache.entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._cache.entries

    @property
    def num_bytes(self) -> int:
        """The bytes that are kept."""
        return self._cache.num_bytes

    @property
    def _cache(self) -> _Cache[T]:
        return self._process.get(_Cache)

    def get(self, key: Hashable, decode: Callable[[], tuple[T, int]]) -> T:
        """A row group from the cache, else by `decode`; its errors go to all waiting threads."""
        cache = self._cache
        try:
            # Without the lock: another thread may evict it now.
            cache.entries.move_to_end(key)
            return cache.entries[key][0]
        except KeyError:
            pass
        with cache.lock:
            if key in cache.entries:
                return cache.entries[key][0]
            future = cache.in_flight.get(key)
            is_first = future is None
            if future is None:
                future = cache.in_flight[key] = Future()
        if not is_first:
            return future.result()
        try:
            value, num_bytes = decode()
        except BaseException as error:
            with cache.lock:
                del cache.in_flight[key]
            future.set_exception(error)
            raise
        with cache.lock:
            del cache.in_flight[key]
            cache.entries[key] = value, num_bytes
            cache.num_bytes += num_bytes
            while cache.num_bytes > self.max_bytes and len(cache.entries) > _MIN_GROUPS:
                _, (_, freed_bytes) = cache.entries.popitem(last=False)
                cache.num_bytes -= freed_bytes
        future.set_result(value)
        return value


class _Cache(Generic[T]):
    """The cache of one process: values and their bytes, the least recently used first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self.in_flight: dict[Hashable, Future[T]] = {}
        self.num_bytes = 0
