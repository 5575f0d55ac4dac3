"""Counts of remote storage since the last look.

The storage layer counts for the process as a whole; a worker process sends its counts with each
chunk, and the trainer adds its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from shardwise.storage import IO_COUNTS

__all__ = ["StorageCounts"]


class StorageCounts:
    """Differences of the process's counts; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._before = IO_COUNTS.snapshot()

    def take(self) -> dict[str, int]:
        """What was counted since the last `take`, where it is not 0."""
        with self._lock:
            now = IO_COUNTS.snapshot()
            own = self._own(now)
            self._pid, self._before = os.getpid(), now
        return {name: count for name, count in own.items() if count}

    def since(self, others: Mapping[str, int]) -> dict[str, int]:
        """What was counted since the last `take`, and by others beside."""
        with self._lock:
            own = self._own(IO_COUNTS.snapshot())
        return {name: count + others.get(name, 0) for name, count in own.items()}

    def _own(self, now: Mapping[str, int]) -> dict[str, int]:
        # Another process's counts, after a fork or a pickle, say nothing of this one's.
        before = self._before if self._pid == os.getpid() else {}
        return {name: count - before.get(name, 0) for name, count in now.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"_pid": self._pid, "_before": self._before}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_lock": threading.Lock()}
