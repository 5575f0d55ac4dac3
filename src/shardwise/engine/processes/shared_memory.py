"""Batch memory that crosses processes: anonymous, mapped once, reused, never overwritten in use.

A slot is an anonymous file (`memfd_create`): no name, nothing in /dev/shm, freed by the kernel
when its last holder dies, whatever kills it (I8). Workers write rows into it, the trainer's
arrays are views of it. A slot goes back to its pool when the last of those arrays is gone; a user
who keeps every batch simply gets new slots. Whoever registers a slot's memory with a device says
in `before_unmap` how to undo that: the address may belong to another slot later.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import math
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Layout, make_rows
from shardwise.base.errors import StorageError

# Rows begin where vector instructions and pinned copies like it.
_ALIGNMENT = 64
_MAX_SLOTS = 64
# What to change, by errno.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer workers",
    errno.ENFILE: "the machine has too many open files: close some",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), which holds for memory files too, or "
    "use a smaller batch_size",
    errno.ENOMEM: "raise the limit of memory (ulimit -v), or use a smaller batch_size or "
    "prefetch_factor",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or use fewer workers",
}
# For maps that keep no descriptor.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def max_slots() -> int:
    """How many slots a process should have at a time: each holds a descriptor.

    64, or a sixteenth of the limit of open files (`ulimit -n`) where that is below 1,024.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_SLOTS if soft == resource.RLIM_INFINITY else max(1, min(_MAX_SLOTS, soft // 16))


def explained(error: OSError, what: str) -> StorageError:
    """The library's error for an operating system's, with what to change."""
    remedy = _REMEDIES.get(error.errno or 0)
    return StorageError(f"{what}: {error.strerror}" + (f"; {remedy}" if remedy else ""))


def above_stdio(descriptor: int) -> int:
    """The same file under a number above 2; the descriptor is the caller's no more.

    Where stdin, stdout or stderr is closed, a new file gets its number, and whatever a C library
    prints would be written into it.
    """
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def anonymous_file(num_bytes: int) -> int:
    """Make a file without a name; its descriptor is above 2 and not inherited.

    Raises:
        StorageError: the process's limits do not allow it.
    """
    try:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("shardwise", os.MFD_CLOEXEC)
        else:
            import tempfile

            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        descriptor = above_stdio(descriptor)
        try:
            os.ftruncate(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise explained(error, f"can't make a memory file of {num_bytes} bytes") from error
    return descriptor


def mapped(descriptor: int, num_bytes: int) -> mmap.mmap:
    """Map a memory file.

    Raises:
        StorageError: the process's limits do not allow it.
    """
    try:
        return mmap.mmap(descriptor, num_bytes)
    except OSError as error:
        raise explained(error, f"can't map a memory file of {num_bytes} bytes") from error


def map_without_file(
    descriptor: int, *, before_unmap: Sequence[Callable[[], None]] = ()
) -> NDArray[np.uint8]:
    """Map a memory file, until the last array over it is gone; the descriptor may be closed.

    `mmap.mmap` keeps a descriptor of its own for each map (before Python 3.13 always). The
    functions in `before_unmap` are called first when it is unmapped, but not at the end of the
    interpreter, which leaves the memory to the system.

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
    weakref.finalize(memory, _unmap, address, num_bytes, before_unmap).atexit = False
    return np.frombuffer(memoryview(memory), dtype=np.uint8)


def _unmap(address: int, num_bytes: int, before_unmap: Sequence[Callable[[], None]]) -> None:
    try:
        for call in before_unmap:
            call()
    finally:
        _LIBC.munmap(address, num_bytes)


@dataclass(frozen=True)
class RowLayout:
    """Where the fields of a fixed shape lie in a slot: the same sum in trainer and worker.

    Attributes:
        fields: shape of a row and dtype, by field.
    """

    fields: Mapping[str, Layout]

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of a batch of `num_rows` rows, each field aligned."""
        return sum(
            aligned(num_rows * math.prod(shape) * dtype.itemsize)
            for shape, dtype in self.fields.values()
        )

    def empty(self) -> dict[str, NDArray[Any]]:
        """The fields of a batch without rows."""
        return {name: make_rows(0, layout) for name, layout in self.fields.items()}

    def views(self, memory: Any, num_rows: int) -> dict[str, NDArray[Any]]:
        """The fields of a batch as arrays over `memory`, which they keep alive."""
        flat = np.asarray(memory)
        views = {}
        offset = 0
        for name, layout in self.fields.items():
            size = num_rows * math.prod(layout[0]) * layout[1].itemsize
            views[name] = make_rows(num_rows, layout, flat[offset : offset + size])
            offset += aligned(size)
        return views


def aligned(size: int) -> int:
    """A size in bytes, rounded up so that what follows begins at a good place."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Slot:
    """One anonymous file, mapped.

    Attributes:
        number: names the slot among all that its workers ever see.
        descriptor: the file, to be sent to workers.
        memory: uint8 `[num_bytes]`, its bytes.
        before_unmap: called before its memory is unmapped.
        retired: it must not be lent again: someone who was forgotten may still write into it.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        self.descriptor = descriptor
        self.retired = False
        self.before_unmap: list[Callable[[], None]] = []
        self.memory = map_without_file(descriptor, before_unmap=self.before_unmap)
        # A loader that is dropped without close() drops its idle slots, and an open file keeps
        # its pages.
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False

    def close(self) -> None:
        """Close the file; the mapping goes when the last array over it does."""
        self._close()


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
        numbers: the numbers of new slots. Workers know a slot by its number: pools that follow one
            another, for the same workers, share one count.
    """

    def __init__(
        self, num_bytes: int, *, max_idle: int, numbers: Iterator[int] | None = None
    ) -> None:
        self._num_bytes = num_bytes
        self._max_idle = min(max_idle, max_slots())
        # Arrays may die in any thread, also inside the garbage collector while the lock is held.
        self._lock = threading.RLock()
        self._idle: list[Slot] = []
        self._numbers = itertools.count() if numbers is None else numbers
        self._lent: set[Slot] = set()
        self._closed = False
        _Pools.every.add(self)

    def take(self) -> Slot:
        """A slot that is not in use."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            number = next(self._numbers)
        descriptor = anonymous_file(self._num_bytes)
        try:
            return Slot(number, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def lend(self, slot: Slot) -> Any:
        """The slot's memory for the user: it comes back when the last array over it is gone."""
        lease = Lease(slot.memory)
        with self._lock:
            self._lent.add(slot)
        weakref.finalize(lease, self._give_back, slot).atexit = False
        return lease

    @property
    def scarce(self) -> bool:
        """Whether more than `max_slots()` are lent: batches that are kept should be copied then."""
        return len(self._lent) > max_slots()

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            self._lent.discard(slot)
            if not (self._closed or slot.retired) and len(self._idle) < self._max_idle:
                self._idle.append(slot)
                return
        slot.close()

    def keep_lent(self) -> None:
        """Lend no slot again that is lent now: a process that was forked may read it for ever."""
        for slot in tuple(self._lent):
            slot.retired = True

    def close(self) -> None:
        """Give the idle slots back to the system, and the others as they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for slot in idle:
            slot.close()


class _Pools:
    """The pools of this process: its forks share the memory of the batches that they inherit."""

    every: ClassVar[weakref.WeakSet[SlotPool]] = weakref.WeakSet()

    @classmethod
    def after_fork(cls) -> None:
        """Leave those batches as they are."""
        for pool in tuple(cls.every):
            pool.keep_lent()


os.register_at_fork(after_in_parent=_Pools.after_fork)
