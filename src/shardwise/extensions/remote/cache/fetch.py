"""Missing blocks: fetched by their readers, or ahead of them once they are announced.

A reader waits for a block that another process fetches. Announced blocks are fetched in order, by a
few threads, which end when nothing is announced.

Keeps I6: what can't be cached is read directly, so a read ends whole or with an error. Keeps I8: a
block is locked before it is requested, and published whole. A lock holder never waits for another
lock (no deadlock), and every wait times out.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from shardwise.base.counters import IO_COUNTS, give_up_reads
from shardwise.base.errors import DataError, StorageError
from shardwise.extensions.remote.cache.block_file import (
    BlockInfo,
    BlockLock,
    LockDenied,
    block_name,
    chunk_digests,
)
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.remote_file import RemoteFile
from shardwise.storage.byte_ranges import ByteRange, num_bytes_of
from shardwise.storage.protocol import ReadRequest

# Memory for the blocks that a call fetches at once.
_ROUND_BYTES = 64 << 20
# Tries for a block that is evicted between its publication and the read.
_MAX_TRIES = 4
_MAX_WAIT_S = 0.01


@dataclass
class MissingBlock:
    """A block that is not in the cache.

    Attributes:
        info: its file, version and offset.
        name: of its file in the cache.
        version: the id of the file's version.
        number: of the block in the file.
        ranges: what a read needs of it.
        tries: how often it was reported as cached and was gone.
        for_peer: whether another node, which takes this one for its holder, waits for it.
        nodes: that hold it, once they are known.
    """

    file: RemoteFile
    cache: Cache
    info: BlockInfo
    name: str
    version: str
    number: int
    ranges: Sequence[ByteRange]
    tries: int = 0
    for_peer: bool = False
    nodes: Any = None

    @property
    def next_name(self) -> str:
        return block_name(self.version, self.number + 1)


_Locked: TypeAlias = tuple[MissingBlock, BlockLock]


def fetch_or_wait(missing: list[MissingBlock], view: memoryview) -> None:
    """Read missing blocks: from the store, or from the cache once another process fetched them."""
    cache = missing[0].cache
    pause_s, hits, num_bytes, waited_s = 1e-3, 0, 0, 0.0
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
                num_bytes += num_bytes_of(block.ranges)
            else:
                missing.append(block)
    if hits:
        cache.hits.add(hits, num_bytes)


def fetch_blocks(
    missing: list[MissingBlock], view: memoryview, *, is_late: bool = False
) -> tuple[list[MissingBlock], bool]:
    """Fetch the blocks whose lock is free, and those that the cache has no room for.

    Returns:
        The blocks that others hold or have published, or that exceed this round's memory; and
        whether nothing was fetched.
    """
    locked: list[_Locked] = []
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
        if locked:
            _fetch_locked(locked, view)
    except BaseException:
        _abandon(locked)
        raise
    if direct:
        _read_missing([(block, block.ranges) for block in direct], view, by_file=True)
    num_fetched = len(locked) + len(direct)
    if num_fetched:
        IO_COUNTS.add(misses=num_fetched)
    return left, not num_fetched


def _fetch_locked(locked: Sequence[_Locked], view: memoryview) -> None:
    """Fetch whole blocks at once, copy the requested ranges, publish the blocks."""
    cache = locked[0][0].cache
    peers = cache.peers
    waits = peers.ask_holders([block for block, _ in locked]) if peers is not None else []
    if 0 < sum(waits) < len(waits):
        # The holder of a block may wait for one that this node holds: that one is not kept locked.
        _fetch_locked([each for each, late in zip(locked, waits, strict=True) if not late], view)
        locked = [each for each, late in zip(locked, waits, strict=True) if late]
    memory = cache.take_memory(sum(block.info.num_bytes for block, _ in locked))
    buffer = memory.data
    wanted, begin = [], 0
    for block, _ in locked:
        start = block.info.offset
        wanted.append((block, [ByteRange(start, start + block.info.num_bytes, begin)]))
        begin += block.info.num_bytes
    _read_missing(wanted, buffer)
    for (block, lock), (_, [whole]) in zip(locked, wanted, strict=True):
        payload = buffer[whole.begin : whole.begin + block.info.num_bytes]
        for start, stop, at in block.ranges:
            view[at : at + stop - start] = payload[start - whole.start : stop - whole.start]
        if block.cache.write(lock, payload, 0):
            block.cache.publish(lock, chunk_digests(payload))
    cache.spare_memory(memory)


def _read_missing(
    wanted: Sequence[tuple[MissingBlock, Sequence[ByteRange]]],
    buffer: memoryview,
    *,
    by_file: bool = False,
) -> None:
    """Read ranges of blocks: from the nodes that hold them, and what these lack from the store.

    There each block is a request, or with `by_file` ranges of a file share some.
    """
    peers = wanted[0][0].cache.peers
    if peers is not None:
        wanted = peers.read(wanted, buffer)
    parts: dict[object, tuple[RemoteFile, list[ByteRange]]] = {}
    for block, ranges in wanted:
        key = id(block.file) if by_file else block.name
        parts.setdefault(key, (block.file, []))[1].extend(ranges)
    if parts:
        requests = [ReadRequest(file, ranges) for file, ranges in parts.values()]
        requests[0].file.read_many(requests, buffer)


def fetch_ahead(blocks: Sequence[MissingBlock]) -> None:
    """Fetch blocks before they are requested, except those that others have or that don't fit.

    Raises:
        DataError, StorageError: see `File`.
    """
    locked: list[_Locked] = []
    try:
        for block in blocks:
            lock = block.cache.lock_block(block.name, block.info)
            if isinstance(lock, BlockLock):
                locked.append((block, lock))
        if locked:
            _fetch_locked(locked, memoryview(b""))
            IO_COUNTS.add(misses=len(locked))
    finally:
        _abandon(locked)


def _abandon(locked: Sequence[_Locked]) -> None:
    for block, lock in locked:
        block.cache.abandon(lock)  # unless the block was published


# Blocks per request: 16 MiB with blocks of 4 MiB.
_MAX_RUN = 4
_MAX_THREADS = 8
# Blocks fetched ahead must not evict blocks that were fetched ahead before.
_SHARE_AHEAD = 4
# Interval at which fetches without a reader are given up.
_POLL_S = 0.05


class CacheAhead:
    """The announced blocks of a cache in one process; `most_blocks` is how many it has room for."""

    def __init__(self, most_blocks: int) -> None:
        self._most_ahead = max(1, most_blocks // _SHARE_AHEAD)
        # The blocks that no thread has taken yet, by name, in order.
        self._queue: OrderedDict[str, MissingBlock] = OrderedDict()
        # The newest owner of each announced block, by name.
        self._owners: dict[str, Hashable] = {}
        self._names: dict[Hashable, list[str]] = {}
        # What each thread fetches.
        self._runs: dict[threading.Thread, Sequence[MissingBlock]] = {}
        self._lock = threading.Condition()

    def add(self, owner: Hashable, blocks: Iterable[MissingBlock]) -> bool:
        """Announce blocks; returns whether some of them have to be fetched."""
        is_any_missing = False
        with self._lock:
            names = self._names.setdefault(owner, [])
            for block in blocks:
                if block.name not in self._owners:
                    if len(self._owners) >= self._most_ahead:
                        break
                    if not block.cache.holds(block.name):
                        self._queue[block.name] = block
                is_any_missing |= block.name in self._queue
                self._owners[block.name] = owner
                names.append(block.name)
            while len(self._runs) < min(_MAX_THREADS, len(self._queue)):
                # A daemon: read-ahead must not delay the interpreter's exit.
                thread = threading.Thread(target=self._run, name="shardwise-cache", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    break  # the interpreter is ending: readers fetch what they lack
                self._runs[thread] = ()
        return is_any_missing

    def withdraw(self, owner: Hashable) -> None:
        """Forget what an owner announced, and end fetches of blocks that no other one announced."""
        with self._lock:
            for name in self._names.pop(owner, ()):
                if self._owners.get(name) == owner:
                    del self._owners[name]
                    self._queue.pop(name, None)
            while useless := [
                thread
                for thread, run in self._runs.items()
                if run and thread is not threading.current_thread() and thread.is_alive()
                if not any(block.name in self._owners for block in run)
            ]:
                for thread in useless:
                    # Its request would be retried for minutes, or is about to be sent.
                    give_up_reads(thread.ident or 0)
                self._lock.wait(_POLL_S)

    def _run(self) -> None:
        while run := self._take():
            try:
                fetch_ahead(run)
            except (DataError, StorageError):
                continue  # the reader that needs the block meets the error itself

    def _take(self) -> Sequence[MissingBlock]:
        """The next block, and announced ones that follow it in its file; empty ends the thread."""
        with self._lock:
            self._lock.notify_all()
            if not self._queue:
                self._runs.pop(threading.current_thread(), None)
                return ()
            _, block = self._queue.popitem(last=False)
            run = [block]
            while len(run) < _MAX_RUN and run[-1].next_name in self._queue:
                run.append(self._queue.pop(run[-1].next_name))
            self._runs[threading.current_thread()] = run
            return run
