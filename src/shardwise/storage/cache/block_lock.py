"""The claim to a block, and the file that stands for it while the block is fetched.

Imports this package.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
from dataclasses import dataclass

from shardwise.storage.cache.blocks import BlockInfo

__all__ = ["Claim", "Refusal", "holds_bytes", "make_part", "require_space", "write_at"]


@dataclass
class Claim:
    """The right, and the duty, to fetch a block: end it by `publish` or `abandon`."""

    name: str
    info: BlockInfo
    fd: int
    space: int
    is_over: bool = False


class Refusal(enum.Enum):
    """Why a block can't be claimed."""

    THERE = enum.auto()  # it is in the cache by now
    BUSY = enum.auto()  # somebody is fetching it
    FULL = enum.auto()  # there is no room, or the disk refuses it


def make_part(path: str, num_bytes: int) -> int:
    """Make a part, locked, as long as it will be."""
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
    """Write all of some bytes at a place of a file."""
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def holds_bytes(path: str) -> bool:
    """Whether there is a file that is not empty."""
    try:
        return os.stat(path, follow_symlinks=False).st_size > 0  # noqa: PTH116
    except FileNotFoundError:
        return False


def require_space(folder: str, num_bytes: int) -> None:
    """Refuse before the bytes are fetched what the disk has no room for."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
