"""Missing blocks: locked and fetched, or waited for while another process fetches them.

Keeps I6: what can't be cached is read directly, so a read ends whole or with an error. Keeps I8: a
block is locked before it is requested, and published whole. A lock holder never waits for another
lock (no deadlock), and every wait times out. Blocks before a reader are fetched by long requests,
and published one by one as their bytes arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.base.errors import DataError, StorageError
from shardwise.extensions.remote.cache.block_file import (
    CHUNK_BYTES,
    BlockInfo,
    BlockLock,
    LockDenied,
    chunk_digests,
    digest,
)
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.remote_file import RemoteFile
from shardwise.storage.counts import IO_COUNTS
from shardwise.storage.protocol import ByteRange, ReadRequest

# Memory for the blocks that a call fetches at once.
_ROUND_BYTES = 64 << 20
# How often a block may be evicted between its publication and the read.
_MAX_TRIES = 4
_MAX_WAIT_S = 0.01


@dataclass
class MissingBlock:
    """A block that is not in the cache.

    Attributes:
        info: its place in the file.
        ranges: what a read needs of it.
        tries: how often it was reported as cached and was gone.
    """

    file: RemoteFile
    cache: Cache
    info: BlockInfo
    name: str
    ranges: Sequence[ByteRange]
    tries: int = 0


def fetch_or_wait(missing: list[MissingBlock], view: memoryview) -> None:
    """Read missing blocks: from the store, or from the cache once another process fetched them."""
    cache = missing[0].cache
    pause_s, hits, waited_s = 1e-3, 0, 0.0
    while missing:
        left, is_idle = fetch_blocks(missing, view, is_late=waited_s > cache.settings.wait_s)
        if left and is_idle:
            began = time.monotonic()
            cache.wait(pause_s)
            waited_s += time.monotonic() - began
            pause_s = min(2 * pause_s, _MAX_WAIT_S)
        missing = []
        for block in left:
            if block.cache.read(block.name, block.ranges, view):
                hits += 1
            else:
                missing.append(block)
    if hits:
        cache.hits.add(hits)


def fetch_blocks(
    missing: list[MissingBlock], view: memoryview, *, is_late: bool = False
) -> tuple[list[MissingBlock], bool]:
    """Fetch the blocks whose lock is free, and those that the cache has no room for.

    Returns:
        The blocks that others hold or have published, or that exceed this round's memory; and
        whether nothing was fetched.
    """
    locked: list[_PartialBlock] = []
    left: list[MissingBlock] = []
    direct: list[MissingBlock] = []
    num_bytes = 0
    try:
        for block in missing:
            if num_bytes >= _ROUND_BYTES:
                left.append(block)
                continue
            lock = block.cache.lock_block(block.name, block.info)
            if isinstance(lock, BlockLock):
                locked.append(_PartialBlock(block, lock))
                num_bytes += block.info.num_bytes
                continue
            block.tries += lock is LockDenied.THERE
            if lock is LockDenied.FULL or block.tries > _MAX_TRIES or is_late:
                direct.append(block)
            else:
                left.append(block)
        if locked:
            _fetch_locked(locked, num_bytes, view)
    except BaseException:
        for part in locked:
            part.abandon()
        raise
    if direct:
        direct[0].file.read_many(_by_file(direct), view)
    num_fetched = len(locked) + len(direct)
    if num_fetched:
        IO_COUNTS.add(misses=num_fetched)
    return left, not num_fetched


def _fetch_locked(locked: Sequence[_PartialBlock], num_bytes: int, view: memoryview) -> None:
    """Fetch whole blocks at once, copy the ranges that were asked for, publish the blocks."""
    buffer = np.empty(num_bytes, np.uint8).data
    requests, payloads = [], []
    begin = 0
    for part in locked:
        end = begin + part.stop - part.start
        requests.append(ReadRequest(part.block.file, [ByteRange(part.start, part.stop, begin)]))
        payloads.append(buffer[begin:end])
        begin = end
    locked[0].block.file.read_many(requests, buffer)
    for part, payload in zip(locked, payloads, strict=True):
        for start, stop, at in part.block.ranges:
            view[at : at + stop - start] = payload[start - part.start : stop - part.start]
        part.add(payload)


def _by_file(blocks: Iterable[MissingBlock]) -> list[ReadRequest]:
    ranges: dict[int, tuple[RemoteFile, list[ByteRange]]] = {}
    for block in blocks:
        ranges.setdefault(id(block.file), (block.file, []))[1].extend(block.ranges)
    return [ReadRequest(file, of_file) for file, of_file in ranges.values()]


def stream_blocks(blocks: Sequence[MissingBlock], arrived: Callable[[int, float], None]) -> bool:
    """Fetch blocks of one file before they are asked for, in ascending order.

    Blocks that others fetch are left out. An error ends it: the reader that needs the block meets
    it itself. `arrived` is called for each block that is whole, with its bytes, and the seconds
    from the request to the first of them.

    Returns:
        Whether it came to the end: False where the cache has no more room, or after an error.
    """
    run: list[_PartialBlock] = []
    has_room = True
    try:
        for block in blocks:
            if run and run[-1].stop != block.info.offset:
                _stream(run, arrived)
                run = []
            lock = block.cache.lock_block(block.name, block.info)
            if isinstance(lock, BlockLock):
                run.append(_PartialBlock(block, lock))
            elif lock is LockDenied.FULL:
                has_room = False
                break
        if run:
            _stream(run, arrived)
    except (DataError, StorageError):
        return False
    finally:
        for part in run:
            part.abandon()
    return has_room


def _stream(run: Sequence[_PartialBlock], arrived: Callable[[int, float], None]) -> None:
    """Distribute the bytes of one request over the blocks, and publish each that is whole."""
    began, head_s = time.monotonic(), 0.0
    IO_COUNTS.add(misses=len(run))
    at = run[0].start
    waiting = iter(run)
    part = next(waiting)
    for data in part.block.file.stream(at, run[-1].stop):
        head_s = head_s or time.monotonic() - began
        while data:
            taken = data[: part.stop - at]
            part.add(taken)
            at += len(taken)
            data = data[len(taken) :]
            if at == part.stop:
                arrived(part.stop - part.start, head_s)
                part = next(waiting, part)


class _PartialBlock:
    """A locked block, bytes [start, stop) of its file, that is being written."""

    __slots__ = ("_at", "_chunk", "_digests", "_lock", "block", "start", "stop")

    def __init__(self, block: MissingBlock, lock: BlockLock) -> None:
        self.block = block
        self.start = self._at = block.info.offset
        self.stop = self.start + block.info.num_bytes
        self._lock = lock
        self._digests: list[int] = []
        # The beginning of a chunk whose end has not arrived.
        self._chunk = bytearray()

    def add(self, data: memoryview) -> None:
        """Write the next bytes; after the last ones, publish the block."""
        cache = self.block.cache
        if self._lock.is_over or not cache.write(self._lock, data, self._at - self.start):
            return  # the disk refused a write: the rest of the reply is of use to other blocks
        self._at += len(data)
        is_last = self._at == self.stop
        if self._chunk:
            need = CHUNK_BYTES - len(self._chunk)
            self._chunk += data[:need]
            data = data[need:]
            if len(self._chunk) == CHUNK_BYTES or is_last:
                self._digests.append(digest(self._chunk))
                self._chunk.clear()
        whole = len(data) if is_last else len(data) // CHUNK_BYTES * CHUNK_BYTES
        self._digests += chunk_digests(data[:whole])
        self._chunk += data[whole:]
        if is_last:
            cache.publish(self._lock, self._digests)

    def abandon(self) -> None:
        """Release the lock, unless the block was published."""
        self.block.cache.abandon(self._lock)
