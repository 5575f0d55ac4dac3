"""A block's file: bytes of one version of one file, with digests; a locked part until it is whole.

    payload | a digest of each 64 KiB of it | BlockInfo as JSON | footer of 32 bytes

Keeps I8: a file that is cut, damaged, or under another name is not a block. The footer's digest
covers everything after the payload, and the name.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error

CHUNK_BYTES = 64 << 10
BLOCK_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{8}\.block")

_MAGIC = b"swblock1"
# Magic, bytes of the payload, bytes of the JSON, bytes of a chunk, digest.
_FOOTER = struct.Struct("<8sQIIQ")
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_PAGE = 4096
# Roughly the size of a directory's entry.
_ENTRY_BYTES = 128


def _find_digest() -> tuple[str, Callable[[Any], int]]:
    """The fastest digest that is installed: finds damage, not malice."""
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError:
        return "crc32", zlib.crc32
    return "xxh3", xxh3_64_intdigest


DIGEST_NAME, digest = _find_digest()


class BlockInfo(NamedTuple):
    """The origin of a block's payload: file, version and offset.

    Attributes:
        url: of the file, without a query, which may hold secrets.
        version: its ETag, or its time where the store has none.
    """

    url: str
    version: str
    file_bytes: int
    offset: int
    num_bytes: int


def version_id(url: str, version: str, file_bytes: int, block_bytes: int) -> str:
    """The prefix of the names of a file version's blocks: 32 hexadecimal digits.

    The first 16 are those of its URL. Blocks of another size, or with another kind of digest, have
    other names.
    """
    parts = (url, version, str(file_bytes), str(block_bytes), DIGEST_NAME)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return text_digest(url) + text_digest(text)


def text_digest(text: str) -> str:
    """The digest of an URL, or of all that names a version: 16 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def block_name(version: str, number: int) -> str:
    """The file name of a block, from `version_id` and its number in the file."""
    return f"{version}-{number:08x}.block"


def space_of(num_bytes: int) -> int:
    """The disk space of a file of `num_bytes`, with its entry in the directory."""
    return -(-num_bytes // _PAGE) * _PAGE + _ENTRY_BYTES


def chunk_digests(payload: memoryview) -> list[int]:
    """The digests of a payload's chunks."""
    starts = range(0, len(payload), CHUNK_BYTES)
    return [digest(payload[start : start + CHUNK_BYTES]) for start in starts]


def trailer_bytes(info: BlockInfo) -> int:
    """The length of a block's trailer."""
    return -(-info.num_bytes // CHUNK_BYTES) * 8 + len(_json(info)) + _FOOTER.size


def trailer(name: str, info: BlockInfo, digests: Sequence[int]) -> bytes:
    """Everything after a payload: digests, info, footer."""
    text = _json(info)
    footer = _FOOTER.pack(_MAGIC, info.num_bytes, len(text), CHUNK_BYTES, 0)
    head = struct.pack(f"<{len(digests)}Q", *digests) + text + footer[:-8]
    return head + struct.pack("<Q", digest(name.encode() + head))


def parse_trailer(
    name: str, num_bytes: int, read: Callable[[int, int], bytes]
) -> tuple[BlockInfo, tuple[int, ...]] | None:
    """The info and the chunk digests of a file; None if it is not a block.

    `read(length, offset)` returns bytes of it.
    """
    begin = max(0, num_bytes - _PAGE)
    tail = read(num_bytes - begin, begin)
    if len(tail) != num_bytes - begin or len(tail) < _FOOTER.size:
        return None
    footer = _FOOTER.unpack(tail[-_FOOTER.size :])
    magic, payload_bytes, text_bytes, chunk_bytes, tail_digest = footer
    digests_bytes = -(-payload_bytes // CHUNK_BYTES) * 8
    length = num_bytes - payload_bytes
    if (
        magic != _MAGIC
        or chunk_bytes != CHUNK_BYTES
        or length != digests_bytes + text_bytes + _FOOTER.size
    ):
        return None
    if length > len(tail):
        tail = read(length, payload_bytes)
    tail = tail[-length:]
    if len(tail) != length or digest(name.encode() + tail[:-8]) != tail_digest:
        return None
    info = _parse_info(tail[digests_bytes : digests_bytes + text_bytes])
    if info is None or info.num_bytes != payload_bytes:
        return None
    return info, struct.unpack(f"<{digests_bytes // 8}Q", tail[:digests_bytes])


def _parse_info(text: bytes) -> BlockInfo | None:
    with suppress(DataError), as_data_error("it is not a block", url=""):
        info = BlockInfo(**json.loads(text))
        if {*map(type, info[:2])} == {str} and all(map(is_length, info[2:])):
            return info
    return None


def is_length(value: object) -> bool:
    """Whether a value from a file is a number of bytes, or another count."""
    return type(value) is int and 0 <= value < 1 << 63


def _json(info: BlockInfo) -> bytes:
    return _ENCODER.encode(info._asdict()).encode()


@dataclass
class BlockLock:
    """The right to fetch a block; its holder must end it by `publish` or `abandon`.

    Attributes:
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
    """The reason why a block can't be locked."""

    THERE = enum.auto()  # it is in the cache by now
    BUSY = enum.auto()  # another thread or process is fetching it
    FULL = enum.auto()  # the cache has no room, or the disk refuses it


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


def remove_block(path: str) -> int:
    """Remove a block or a part; returns its disk space, 0 if it stays.

    It stays while a reader or a writer locks it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        return 0  # gone, or another user's
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return 0
    try:
        status = os.fstat(fd)
        # A part may have become a block, and a block may have been replaced.
        if not status.st_nlink or not _is_at(path, status):
            return 0
        os.ftruncate(fd, 0)
        os.unlink(path)  # noqa: PTH108 - names are joined as text: a thousand a second
        return space_of(status.st_size)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _is_at(path: str, status: os.stat_result) -> bool:
    try:
        current = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return (current.st_dev, current.st_ino) == (status.st_dev, status.st_ino)
