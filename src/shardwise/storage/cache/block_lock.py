"""The lock of a block that is being fetched: a part file, locked until the block is whole."""

from __future__ import annotations

import enum
import errno
import fcntl
import os
from dataclasses import dataclass

from shardwise.storage.cache.block_format import BlockInfo

__all__ = ["BlockLock", "LockDenied", "holds_bytes", "make_part", "require_space", "write_at"]


@dataclass
class BlockLock:
    """The right to fetch a block; its holder must end it by `publish` or `abandon`.

    Attributes:
        name: the block's name.
        info: its place in the file.
        fd: the part file, locked.
        num_bytes_on_disk: counted against the cache's limit.
        is_over: whether it was published or abandoned.
    """

    name: str
    info: BlockInfo
    fd: int
    num_bytes_on_disk: int
    is_over: bool = False


class LockDenied(enum.Enum):
    """Why a block can't be locked."""

    THERE = enum.auto()  # it is in the cache by now
    BUSY = enum.auto()  # another thread or process is fetching it
    FULL = enum.auto()  # there is no room, or the disk refuses it


def make_part(path: str, num_bytes: int) -> int:
    """Create a part file, locked, already of its final length."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, num_bytes)
    except BaseException:
        os.unlink(path)  # noqa: PTH108
        os.close(fd)
        raise
    return fd


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of some bytes at an offset of a file."""
    while data:
        num_written = os.pwrite(fd, data, offset)
        data, offset = data[num_written:], offset + num_written


def holds_bytes(path: str) -> bool:
    """Whether a file exists and is not empty."""
    try:
        return os.stat(path, follow_symlinks=False).st_size > 0  # noqa: PTH116
    except FileNotFoundError:
        return False


def require_space(folder: str, num_bytes: int) -> None:
    """Raise ENOSPC, before the bytes are fetched, if the disk has no room for them."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
