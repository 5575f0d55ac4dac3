"""The threads of a process that fetch blocks before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["FetchThreads"]

_MAX_THREADS = 16


class FetchThreads:
    """At most 16 threads, each for one call."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(_MAX_THREADS)

    def start(self, fetch: Callable[[], None]) -> None:
        """Call `fetch` in another thread, unless 16 are at work."""
        if self._free.acquire(blocking=False):
            # A daemon: prefetching must not delay the interpreter's exit.
            threading.Thread(
                target=self._run, args=(fetch,), name="shardwise-cache", daemon=True
            ).start()

    def _run(self, fetch: Callable[[], None]) -> None:
        try:
            fetch()
        finally:
            self._free.release()
