"""Memory to read into, reused once nothing refers to it any more.

Fresh memory costs more than reading into it: the system zeroes and maps each page at first touch.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReusedBuffer"]

# Above 16 MiB reads are rare, and each gets memory of its own.
_MAX_BYTES = 16 << 20
_MIN_BYTES = 64 << 10


class ReusedBuffer(threading.local):
    """One buffer a thread.

    Arrays and memoryviews over a buffer hold a reference to it each. It is reused only when there
    are none, so that columns that a caller keeps do not change.
    """

    def __init__(self) -> None:
        self._buffer: NDArray[np.uint8] | None = None

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory of this size, uint8 `[num_bytes]`, with undefined content."""
        if num_bytes > _MAX_BYTES:
            return np.empty(num_bytes, np.uint8)
        buffer = self._buffer
        # Three references: the attribute, the local variable and the argument of getrefcount.
        if buffer is None or len(buffer) < num_bytes or sys.getrefcount(buffer) > 3:
            size = max(_MIN_BYTES, 1 << (num_bytes - 1).bit_length())
            buffer = self._buffer = np.empty(size, np.uint8)
        return buffer[:num_bytes]
