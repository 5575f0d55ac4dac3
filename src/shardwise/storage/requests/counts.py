"""What the storage layer did in this process: requests, bytes, retries and so on.

One object a process, because a store, a cache and a file know nothing of the loader that they
work for. Imports the standard library only.
"""

from __future__ import annotations

import os
import threading

__all__ = ["IO_COUNTS", "IoCounts"]

_NAMES = (
    "requests",
    "bytes",
    "retries",
    "hedges",
    "hits",
    "misses",
    "evictions",
    "damaged",
    "degraded",
    "waits",
    "outage_ms",
)


class IoCounts:
    """Sums that only grow; any thread may add to them. A forked child begins with zeros.

    - requests: attempts at a range, a stat or a page of a listing; bytes: of their payloads;
    - retries: attempts after a failed one; hedges: second requests because the first was late;
    - hits, misses, evictions: blocks of a cache; damaged: those that were thrown away because their
      bytes were not what was written;
    - degraded: times that something went on without what it should have had, such as a cache on a
      full disk;
    - waits: reads that had to wait, because a file was not in the page cache, or bytes of a store
      were not on their way;
    - outage_ms: milliseconds in which some request to a store failed and was tried again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sums = dict.fromkeys(_NAMES, 0)

    def add(self, **amounts: int) -> None:
        """Add to some of the sums: `add(requests=1, bytes=4096)`."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    @property
    def waits(self) -> int:
        """The sum of that name."""
        return self._sums["waits"]

    def snapshot(self) -> dict[str, int]:
        """All sums as they are now."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            return dict(self._sums)


# Counters, and nothing that a result depends on.
IO_COUNTS = IoCounts()
