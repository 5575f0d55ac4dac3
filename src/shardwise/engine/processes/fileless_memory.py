"""A memory file that is mapped without a descriptor: a worker keeps many, whatever the limit is."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.shared_memory import explained

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_without_file(descriptor: int) -> NDArray[np.uint8]:
    """Map a memory file, until the last array over it is gone; the descriptor may be closed.

    `mmap.mmap` keeps a descriptor of its own for each map (before Python 3.13 always).

    Raises:
        StorageError: the process's limits do not allow it.
    """
    num_bytes = os.fstat(descriptor).st_size
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, num_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number))
        raise explained(error, f"can't map a memory file of {num_bytes} bytes") from error
    memory = (ctypes.c_uint8 * num_bytes).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, num_bytes).atexit = False
    return np.frombuffer(memoryview(memory), dtype=np.uint8)
