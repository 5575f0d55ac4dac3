"""Counters of the storage layer in this process, and the threads that wait for a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

# One line for each store that this process waits for. For messages only: no result depends on it.
OUTAGES: dict[int, str] = {}
# Functions of a thread's identifier: each cancels the request that the thread waits for.
CANCELLERS: list[Callable[[int], None]] = []


def outages() -> list[str]:
    """One line for each store that this process waits for; for messages about a long wait."""
    return list(OUTAGES.values())


def give_up_reads(thread: int) -> None:
    """Cancel the request that a thread (its identifier) waits for: StorageError there."""
    for cancel in CANCELLERS:
        cancel(thread)


_NAMES = (
    "requests", "bytes", "disk_bytes", "peer_bytes", "retries", "hedges", "hits", "misses",
    "evictions", "damaged", "degraded", "waits", "outage_ms",
)  # fmt: skip


class IoCounts:
    """Counters that only grow; any thread may add to them. A forked child starts with zeros.

    - requests: attempts at a range, a stat or a page of a listing; bytes: of their payloads, with
      an estimate for those that lost against a hedge;
    - disk_bytes, peer_bytes: what readers got from a cache on disk, and from those of other nodes;
    - retries: attempts after a failed one; hedges: duplicates of late requests;
    - hits, misses, evictions: blocks of a cache; damaged: blocks removed because a digest differed;
    - degraded: fall-backs, such as reads past a cache on a full disk;
    - waits: reads that had to wait: not in the page cache, or of a store and not prefetched;
    - outage_ms: milliseconds in which some request to a store was being retried.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sums = dict.fromkeys(_NAMES, 0)

    def add(self, **amounts: int) -> None:
        """Add to some of the counters: `add(requests=1, bytes=4096)`."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    @property
    def waits(self) -> int:
        """The counter of that name."""
        return self._sums["waits"]

    def snapshot(self) -> dict[str, int]:
        """All counters as they are now."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            return dict(self._sums)


# No result depends on it.
IO_COUNTS = IoCounts()
