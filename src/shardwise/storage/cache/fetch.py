"""Blocks that a read lacks: locked and fetched, or waited for while another process fetches them.

Keeps I6: what can't be cached is read directly, so a read ends whole or with an error. A lock
holder never waits for another lock (no deadlock), and every wait times out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.storage.cache.block_format import BlockInfo
from shardwise.storage.cache.block_lock import BlockLock, LockDenied
from shardwise.storage.cache.cache import Cache
from shardwise.storage.cache.open_block import Outcome
from shardwise.storage.protocol import File, ReadRequest
from shardwise.storage.requests.counts import IO_COUNTS
from shardwise.storage.requests.ranges import ByteRange

__all__ = ["MissingBlock", "fetch_blocks", "fetch_or_wait", "read_direct"]

# Memory for the blocks that a call fetches at once.
_ROUND_BYTES = 64 << 20
# How often a block may be evicted between its publication and the read.
_MAX_TRIES = 4
_MAX_WAIT_S = 0.01


@dataclass
class MissingBlock:
    """A block that is not in the cache, and the ranges that a read needs of it.

    Attributes:
        file: its source.
        cache: where it belongs.
        info: its place in the file.
        name: its name in the cache.
        ranges: of the file, within the block.
        tries: how often it was reported as cached and was gone.
    """

    file: File
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
            if block.cache.read(block.name, block.ranges, view) is Outcome.READ:
                hits += 1
            else:
                missing.append(block)
    if hits:
        cache.count_hits(hits)


def fetch_blocks(
    missing: list[MissingBlock], view: memoryview, *, is_late: bool = False
) -> tuple[list[MissingBlock], bool]:
    """Fetch the blocks whose lock is free, and those that the cache has no room for.

    Returns:
        The blocks that others hold or have published, or that exceed this round's memory; and
        whether nothing was fetched.
    """
    locked: list[tuple[MissingBlock, BlockLock]] = []
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
                locked.append((block, lock))
                num_bytes += block.info.num_bytes
                continue
            block.tries += lock is LockDenied.THERE
            if lock is LockDenied.FULL or block.tries > _MAX_TRIES or is_late:
                direct.append(block)
            else:
                left.append(block)
        num_fetched = len(locked) + len(direct)
        if locked:
            _fetch_locked(locked, num_bytes, view)
    except BaseException:
        for block, lock in locked:
            block.cache.abandon(lock)
        raise
    if direct:
        read_direct(_by_file(direct), view)
    if num_fetched:
        IO_COUNTS.add(misses=num_fetched)
    return left, not num_fetched


def _fetch_locked(
    locked: list[tuple[MissingBlock, BlockLock]], num_bytes: int, view: memoryview
) -> None:
    """Fetch whole blocks at once, copy the ranges that were asked for, publish the blocks."""
    buffer = np.empty(num_bytes, np.uint8).data
    requests = []
    begin = 0
    for block, _ in locked:
        start, length = block.info.offset, block.info.num_bytes
        requests.append(ReadRequest(block.file, [ByteRange(start, start + length, begin)]))
        begin += length
    read_direct(requests, buffer)
    while locked:
        block, lock = locked[-1]
        payload = buffer[begin - block.info.num_bytes : begin]
        begin -= block.info.num_bytes
        for start, stop, at in block.ranges:
            first = start - block.info.offset
            view[at : at + stop - start] = payload[first : first + stop - start]
        block.cache.publish(lock, payload)
        locked.pop()


def read_direct(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
    """Read past the cache, with all requests in flight at once."""
    requests[0].file.read_many(requests, buffer)


def _by_file(blocks: Iterable[MissingBlock]) -> list[ReadRequest]:
    ranges: dict[int, tuple[File, list[ByteRange]]] = {}
    for block in blocks:
        ranges.setdefault(id(block.file), (block.file, []))[1].extend(block.ranges)
    return [ReadRequest(file, of_file) for file, of_file in ranges.values()]
