"""Batch memory that crosses processes: anonymous, mapped once, reused, never overwritten in use.

A slot is an anonymous file (`memfd_create`): no name, nothing in /dev/shm, freed by the kernel
when its last holder dies, whatever kills it (I8). Workers write rows or messages into it, the
trainer's arrays are views of it. Its last bytes say whether it is free: in the process of its pool
or in the one that got it, the end of the last of those arrays frees it. A user who keeps every
batch simply gets new slots. Whoever registers a slot's memory with a device says in `before_unmap`
how to undo that: the address may belong to another slot later.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    fields: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of a batch of `num_rows` rows, each field aligned."""
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


# What the last bytes of a slot say, to its owner and whoever has it mapped.
_FREE, _IN_USE, _ABANDONED = range(3)
_STATE_BYTES = _ALIGNMENT


class _Forks:
    """Counts the forks of this process: a child has copies of the arrays that it inherits."""

    count = 0

    @classmethod
    def add(cls) -> None:
        """Count one, in parent and child."""
        cls.count += 1


os.register_at_fork(before=_Forks.add)


class Lease:
    """Stands between a slot's memory and the arrays over it: it dies with the last of them."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory


def lend(memory: NDArray[np.uint8], then: Callable[[], None] | None = None) -> NDArray[np.uint8]:
    """The bytes of a mapped slot: it is free again when the last array over them is gone.

    Args:
        memory: all of the slot's file, here or in the process that got it in a message.
        then: called after that.
    """
    lease = Lease(memory[:-_STATE_BYTES])
    state = memory[-_STATE_BYTES:]
    weakref.finalize(lease, _give_back, state, _Forks.count, then).atexit = False
    return np.asarray(lease)


def _give_back(state: NDArray[np.uint8], num_forks: int, then: Callable[[], None] | None) -> None:
    if state[0] == _IN_USE:
        # What a fork has inherited is never written again.
        state[0] = _FREE if num_forks == _Forks.count else _ABANDONED
    if then is not None:
        then()


class Slot:
    """One anonymous file, mapped.

    Attributes:
        number: names the slot among all of its pool.
        descriptor: the file, to be sent to other processes.
        memory: uint8 `[num_bytes]`, its bytes, without the state behind them.
        before_unmap: called before its memory is unmapped.
    """

    def __init__(self, number: int, num_bytes: int) -> None:
        self.number = number
        self.descriptor = anonymous_file(num_bytes + _STATE_BYTES)
        # A loader that is dropped without close() drops its idle slots, and an open file keeps
        # its pages.
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self._close.atexit = False
        self.before_unmap: list[Callable[[], None]] = []
        self._whole = map_without_file(self.descriptor, before_unmap=self.before_unmap)
        self.memory = self._whole[:-_STATE_BYTES]
        self.state = _IN_USE

    @property
    def state(self) -> int:
        """Whether the slot is free, in use, or never to be used again."""
        return int(self._whole[-_STATE_BYTES])

    @state.setter
    def state(self, state: int) -> None:
        self._whole[-_STATE_BYTES] = state

    def lend(self, then: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        """Its memory for the user; see `lend`."""
        return lend(self._whole, then)

    def free(self) -> None:
        """Let it be used again: nobody got it."""
        self.state = _FREE

    def abandon(self) -> None:
        """Never use it again: someone who was forgotten may still write into it."""
        self.state = _ABANDONED

    def close(self) -> None:
        """Close the file; the mapping goes when the last array over it does."""
        self._close()


class SlotPool:
    """Slots that are used again and again, by one process and those that it sends them to.

    Args:
        max_idle: free slots that are kept; more are given back to the system.
        headroom: new slots are larger than asked for by this share, where sizes differ a little.
    """

    def __init__(self, *, max_idle: int, headroom: float = 0.0) -> None:
        self._max_idle = min(max_idle, max_slots())
        self._headroom = headroom
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._numbers = itertools.count()

    def take(self, num_bytes: int) -> Slot:
        """A slot of `num_bytes` or more that nobody uses."""
        with self._lock:
            self._trim()
            free = [slot for slot in self._slots if slot.state == _FREE]
            fitting = [slot for slot in free if slot.memory.nbytes >= num_bytes]
            if fitting:
                slot = min(fitting, key=lambda slot: slot.memory.nbytes)
                slot.state = _IN_USE
                return slot
            if free:  # batches have grown
                self._drop(free[:1])
            slot = Slot(next(self._numbers), num_bytes + int(num_bytes * self._headroom))
            # One of more is used once: a user who keeps all batches must not use up all files.
            if len(self._slots) < max_slots():
                self._slots.append(slot)
            return slot

    def lend(self, slot: Slot) -> NDArray[np.uint8]:
        """The slot's memory for the user: it is free when the last array over it is gone."""
        return slot.lend(self._came_back)

    @property
    def is_scarce(self) -> bool:
        """Whether `max_slots()` are in use: batches that are kept should be copied then."""
        return sum(slot.state == _IN_USE for slot in self._slots) >= max_slots()

    def close(self) -> None:
        """Give the idle slots back to the system, and the others as they come back."""
        with self._lock:
            self._max_idle = 0
            self._trim()

    def _came_back(self) -> None:
        # Arrays die in any thread, also inside the garbage collector while the lock is held: who
        # has it trims.
        if self._lock.acquire(blocking=False):
            try:
                self._trim()
            finally:
                self._lock.release()

    def _trim(self) -> None:
        """Give back to the system the slots that will not be used again."""
        free = [slot for slot in self._slots if slot.state == _FREE]
        abandoned = [slot for slot in self._slots if slot.state == _ABANDONED]
        self._drop([*abandoned, *free[self._max_idle :]])

    def _drop(self, slots: Sequence[Slot]) -> None:
        if slots:
            self._slots = [slot for slot in self._slots if slot not in slots]
        for slot in slots:
            slot.close()
