"""Anonymous memory that crosses processes: files without a name, mapped, and rows in them.

An anonymous file (`memfd_create`) has no name, is not in /dev/shm, and is freed by the kernel when
its last holder dies, whatever kills it (I8).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import resource
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Layout, make_rows
from shardwise.base.errors import StorageError

# Rows are aligned for vector instructions and pinned copies.
ALIGNMENT = 64
_MAX_SLOTS = 64
# Remedies by errno.
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
    """The number of slots that a process should have at a time: each holds a descriptor.

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
    """Make a file without a name; its descriptor is above 2 and not inherited."""
    try:
        descriptor = above_stdio(os.memfd_create("shardwise", os.MFD_CLOEXEC))
        try:
            os.ftruncate(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise explained(error, f"can't make a memory file of {num_bytes} bytes") from error
    return descriptor


def map_without_file(
    descriptor: int,
    *,
    before_unmap: Sequence[Callable[[], None]] = (),
    is_private: bool = False,
) -> NDArray[np.uint8]:
    """Map a memory file, until the last array over it is gone; the descriptor may be closed.

    `mmap.mmap` keeps a descriptor for each map (before Python 3.13 always). `before_unmap` is
    called first when it is unmapped, but not at the end of the interpreter. Writes into a private
    map stay here.
    """
    num_bytes = os.fstat(descriptor).st_size
    access = mmap.PROT_READ | mmap.PROT_WRITE
    kind = mmap.MAP_PRIVATE if is_private else mmap.MAP_SHARED
    address = _LIBC.mmap(None, num_bytes, access, kind, descriptor, 0)
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
    """The layout of fixed-shape fields in a slot: computed alike in trainer and worker.

    `fields` has the shape of a row and the dtype, by field.
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
    """A size in bytes, rounded up so that what follows is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


# Smaller rows are as fast in a message.
_MIN_ROW_BYTES = 256


class InSharedMemory(NamedTuple):
    """Stands in a chunk for a column whose rows lie in the batch's memory."""

    num_rows: int


@runtime_checkable
class PackedFiles(Protocol):
    """A column of files in one buffer, which is None where they lie in the batch's memory."""

    buffer: NDArray[np.uint8] | None
    payload: Callable[[], NDArray[np.uint8]]


def learned_layout(data: Mapping[str, Any], known: Mapping[str, Layout]) -> dict[str, Layout]:
    """Shape and dtype of a row for the columns of a batch that could be written in place.

    Those `known` are written in place anyway. Packed files get room for an eighth more bytes.
    """
    learned: dict[str, Layout] = {}
    for name, column in data.items():
        if isinstance(column, np.ndarray):
            if name not in known and column.nbytes >= _MIN_ROW_BYTES * len(column) > 0:
                learned[name] = column.shape[1:], column.dtype
        elif column and isinstance(column, list) and isinstance(column[0], PackedFiles):
            mean = sum(each.payload().nbytes for each in column) // len(column)
            learned[name] = (aligned(mean + mean // 8),), np.dtype(np.uint8)
    return learned


def write_in_place(
    columns: Mapping[str, Sequence[Any]], memory: Mapping[str, NDArray[Any]]
) -> dict[str, Sequence[Any]]:
    """Write the columns that fit into the rows of the batch, `memory`.

    Returns:
        The same columns in the same order, `InSharedMemory` where the rows were written; packed
        files without their buffer.
    """
    return {
        name: InSharedMemory(len(column)) if _is_written(column, memory.get(name)) else column
        for name, column in columns.items()
    }


def _is_written(column: Any, rows: NDArray[Any] | None) -> bool:
    # A chunk without its bad samples has fewer rows than the memory: their positions are unknown.
    if rows is None or not len(column) == len(rows) > 0:
        return False
    if isinstance(column, PackedFiles):
        if column.buffer is not None and column.buffer.nbytes <= rows.nbytes:
            np.copyto(rows.reshape(-1)[: column.buffer.nbytes], column.buffer)
            column.buffer = None
        return False
    if isinstance(column, np.ndarray):
        if (column.shape, column.dtype) != (rows.shape, rows.dtype):
            return False
        np.copyto(rows, column)
        return True
    for value in column:
        if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (
            rows.shape[1:],
            rows.dtype,
        ):
            return False
    for row, value in zip(rows, column, strict=True):
        np.copyto(row, value)
    return True
