"""Adjacent blocks by one long request, each published as soon as its own bytes have arrived.

Keeps I8: a block is locked before it is requested, and published whole. Locks are taken without
waiting, so that two processes that fetch the same file share the blocks and not the wait.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence

from shardwise.errors import DataError, StorageError
from shardwise.storage.cache.block_format import CHUNK_BYTES, chunk_digests, digest
from shardwise.storage.cache.block_lock import BlockLock, LockDenied
from shardwise.storage.cache.cache import Cache
from shardwise.storage.cache.fetch import MissingBlock
from shardwise.storage.requests.counts import IO_COUNTS

__all__ = ["stream_blocks"]


def stream_blocks(blocks: Sequence[MissingBlock], arrived: Callable[[int, float], None]) -> bool:
    """Fetch blocks of one file before they are asked for, in ascending order.

    Blocks that others fetch are left out. An error ends it: the reader that needs the block meets
    it itself.

    Args:
        blocks: the blocks.
        arrived: called for each that is whole, with its bytes, and the seconds from the request to
            the first of them.

    Returns:
        Whether it came to the end: False where the cache has no more room, or after an error.
    """
    run: list[_Part] = []
    has_room = True
    try:
        for block in blocks:
            if run and run[-1].stop != block.info.offset:
                _stream(run, arrived)
                run = []
            lock = block.cache.lock_block(block.name, block.info)
            if isinstance(lock, BlockLock):
                run.append(_Part(block, lock))
            elif lock is LockDenied.FULL:
                has_room = False
                break
        if run:
            _stream(run, arrived)
    except (DataError, StorageError):
        return False
    finally:
        for part in run:
            part.cache.abandon(part.lock)
    return has_room


def _stream(run: list[_Part], arrived: Callable[[int, float], None]) -> None:
    """Distribute the bytes of one request over the blocks, and publish each that is whole."""
    began, head_s = time.monotonic(), 0.0
    IO_COUNTS.add(misses=len(run))
    at, end = run[0].lock.info.offset, run[-1].stop
    waiting = iter(run)
    part = next(waiting)
    for piece in _pieces(run[0].block, at, end):
        data, head_s = piece, head_s or time.monotonic() - began
        while data:
            taken = data[: part.stop - at]
            part.add(taken)
            at += len(taken)
            data = data[len(taken) :]
            if at == part.stop:
                arrived(part.lock.info.num_bytes, head_s)
                part = next(waiting, part)


def _pieces(block: MissingBlock, start: int, stop: int) -> Iterator[memoryview]:
    """The bytes as they arrive; a file that has no streams is read a block at a time."""
    stream = getattr(block.file, "stream", None)
    if stream is not None:
        yield from stream(start, stop)
        return
    step = block.cache.settings.block_bytes
    for at in range(start, stop, step):
        yield memoryview(block.file.read(at, min(step, stop - at)))


class _Part:
    """A locked block that is being written.

    Attributes:
        block: the block.
        lock: its lock.
        cache: where it belongs.
        stop: where it ends in the file.
    """

    __slots__ = ("_chunk", "_digests", "_num_bytes", "block", "cache", "lock", "stop")

    def __init__(self, block: MissingBlock, lock: BlockLock) -> None:
        self.block = block
        self.lock = lock
        self.cache: Cache = block.cache
        self.stop = block.info.offset + block.info.num_bytes
        self._num_bytes = 0
        self._digests = bytearray()
        # The beginning of a chunk whose end has not arrived.
        self._chunk = bytearray()

    def add(self, data: memoryview) -> None:
        """Write the next bytes; after the last ones, publish the block."""
        if self.lock.is_over or not self.cache.write(self.lock, data, self._num_bytes):
            return  # the disk refused a write: the rest of the reply is of use to other blocks
        self._num_bytes += len(data)
        is_last = self._num_bytes == self.lock.info.num_bytes
        if self._chunk:
            need = CHUNK_BYTES - len(self._chunk)
            self._chunk += data[:need]
            data = data[need:]
            if len(self._chunk) == CHUNK_BYTES or is_last:
                self._digests += struct.pack("<Q", digest(self._chunk))
                self._chunk.clear()
        whole = len(data) if is_last else len(data) // CHUNK_BYTES * CHUNK_BYTES
        self._digests += chunk_digests(data[:whole])
        self._chunk += data[whole:]
        if is_last:
            self.cache.publish_written(self.lock, bytes(self._digests))
