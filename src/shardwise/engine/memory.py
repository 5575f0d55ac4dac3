"""Batch memory that crosses processes: anonymous, mapped once, reused, never overwritten in use.

A slot is an anonymous file (`memfd_create`): no name, nothing in /dev/shm, freed by the kernel
when its last holder dies, whatever kills it (I8). Workers write rows into it, the trainer's
arrays are views of it. A slot goes back to its pool when the last of those arrays is gone; a user
who keeps every batch simply gets new slots.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lease", "RowLayout", "Slot", "SlotPool", "aligned", "anonymous_file"]

# Rows begin where vector instructions and pinned copies like it.
_ALIGNMENT = 64
# Each slot holds two descriptors; a process may often have no more than 1,024.
_MAX_LENT = 64


def anonymous_file(num_bytes: int) -> int:
    """Make a file without a name and give its descriptor, which is not inherited."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("shardwise", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


@dataclass(frozen=True)
class RowLayout:
    """Where the fields of a fixed shape lie in a slot: the same sum in trainer and worker.

    Attributes:
        fields: shape of a row and dtype, by field.
    """

    fields: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of a batch of so many rows."""
        return sum(
            aligned(num_rows * math.prod(shape) * dtype.itemsize)
            for shape, dtype in self.fields.values()
        )

    def empty(self) -> dict[str, NDArray[Any]]:
        """The fields of a batch without rows."""
        return {
            name: np.empty((0, *shape), dtype=dtype) for name, (shape, dtype) in self.fields.items()
        }

    def views(self, memory: Any, num_rows: int) -> dict[str, NDArray[Any]]:
        """The fields of a batch as arrays over `memory`, which they keep alive."""
        flat = np.asarray(memory)
        views = {}
        offset = 0
        for name, (shape, dtype) in self.fields.items():
            size = num_rows * math.prod(shape) * dtype.itemsize
            views[name] = flat[offset : offset + size].view(dtype).reshape(num_rows, *shape)
            offset += aligned(size)
        return views


def aligned(size: int) -> int:
    """A size in bytes, rounded up so that what follows begins at a good place."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Slot:
    """One anonymous file, mapped.

    Attributes:
        number: names the slot among all of its pool, for ever.
        descriptor: the file, to be sent to workers.
        memory: uint8 `[num_bytes]`, its bytes.
        retired: it must not be lent again: someone who was forgotten may still write into it.
    """

    def __init__(self, number: int, descriptor: int, num_bytes: int) -> None:
        self.number = number
        self.descriptor = descriptor
        self.retired = False
        self.memory: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(descriptor, num_bytes), dtype=np.uint8
        )

    def close(self) -> None:
        """Close the file; the mapping goes when the last array over it does."""
        os.close(self.descriptor)


class Lease:
    """Stands between a slot and the arrays over it: it dies with the last of them."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory


class SlotPool:
    """Slots of one size, given out and taken back.

    Args:
        num_bytes: bytes of each slot.
        max_idle: slots that are kept for reuse; more are given back to the system.
    """

    def __init__(self, num_bytes: int, *, max_idle: int) -> None:
        self._num_bytes = num_bytes
        self._max_idle = max_idle
        # Arrays may die in any thread, also inside the garbage collector while the lock is held.
        self._lock = threading.RLock()
        self._idle: list[Slot] = []
        self._next = 0
        self._num_lent = 0
        self._closed = False

    def take(self) -> Slot:
        """Give out a slot that nobody else has."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            number = self._next
            self._next += 1
        return Slot(number, anonymous_file(self._num_bytes), self._num_bytes)

    def lend(self, slot: Slot) -> Any:
        """The slot's memory for the user: it comes back when the last array over it is gone."""
        lease = Lease(slot.memory)
        with self._lock:
            self._num_lent += 1
        weakref.finalize(lease, self._give_back, slot).atexit = False
        return lease

    @property
    def scarce(self) -> bool:
        """Whether so many slots are lent that batches which are kept should be copied."""
        return self._num_lent > _MAX_LENT

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            self._num_lent -= 1
            if not (self._closed or slot.retired) and len(self._idle) < self._max_idle:
                self._idle.append(slot)
                return
        slot.close()

    def close(self) -> None:
        """Give the idle slots back to the system, and the others as they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for slot in idle:
            slot.close()
