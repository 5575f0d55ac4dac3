"""Memory to read into, used again as soon as nobody holds a view of it.

Memory that is fresh from the system costs more than the bytes that are read into it: each page is
zeroed and mapped when it is first touched. Imports numpy only.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scratch"]

# Larger reads are rare, and their memory is not worth keeping.
_MAX_BYTES = 16 << 20
_MIN_BYTES = 64 << 10


class Scratch(threading.local):
    """One buffer a thread.

    A buffer counts its views: arrays and memoryviews over it hold a reference each. It is given
    out again only when there are none, so that what was read stays as it is for whoever keeps it.
    """

    def __init__(self) -> None:
        self._buffer: NDArray[np.uint8] | None = None

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory of this size, uint8 `[num_bytes]`; what it holds means nothing."""
        if num_bytes > _MAX_BYTES:
            return np.empty(num_bytes, np.uint8)
        buffer = self._buffer
        # The attribute, the variable here and the argument of the call.
        if buffer is None or len(buffer) < num_bytes or sys.getrefcount(buffer) > 3:
            size = max(_MIN_BYTES, 1 << (num_bytes - 1).bit_length())
            buffer = self._buffer = np.empty(size, np.uint8)
        return buffer[:num_bytes]
