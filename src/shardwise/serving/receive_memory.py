"""The memory that batches are received into: used again when the last array over it is gone.

A fresh 9.6 MB costs 2,400 page faults, which is as much CPU as receiving it.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.shared_memory import SlotPool

__all__ = ["ReceiveMemory"]

# Below this the allocator reuses memory by itself, and a slot would cost two open files.
_MIN_SLOT_BYTES = 128 << 10
_MAX_IDLE = 16


class ReceiveMemory:
    """Memory for payloads; any thread may take some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: SlotPool | None = None
        self._slot_bytes = 0

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """uint8 `[num_bytes]` that no other batch uses."""
        if num_bytes < _MIN_SLOT_BYTES:
            return np.empty(num_bytes, dtype=np.uint8)
        with self._lock:
            if self._pool is None or not self._slot_bytes / 4 < num_bytes <= self._slot_bytes:
                if self._pool is not None:
                    self._pool.close()
                # Batches of ragged samples differ a little in size.
                self._slot_bytes = num_bytes + num_bytes // 4
                self._pool = SlotPool(self._slot_bytes, max_idle=_MAX_IDLE)
            pool = self._pool
            if pool.scarce:
                return np.empty(num_bytes, dtype=np.uint8)
            return np.asarray(pool.lend(pool.take()))[:num_bytes]

    def close(self) -> None:
        """Give the idle memory back; what is in use stays."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
