"""The cache of one machine: its blocks' locks, publication and removal.

Keeps I6 and I8. A block is locked, under the lock of the usage file, by creating its part file: it
has its final length at once, so the limit covers blocks in flight, and only one process fetches a
block. A whole block is published by a rename. A process that dies leaves an unlocked part, which
the next process sweeps. If the disk refuses anything, reads go past the cache; see `Bypass`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import IO_COUNTS
from shardwise.base.plugins import find
from shardwise.extensions.remote.cache.block_file import (
    BlockInfo,
    BlockLock,
    LockDenied,
    chunk_digests,
    holds_bytes,
    make_part,
    remove_block,
    require_space,
    space_of,
    text_digest,
    trailer,
    trailer_bytes,
    write_at,
)
from shardwise.extensions.remote.cache.eviction import Eviction, sweep_parts
from shardwise.extensions.remote.cache.homes import block_keys
from shardwise.extensions.remote.cache.open_block import DamagedError, OpenBlock
from shardwise.extensions.remote.cache.usage import (
    Bypass,
    Hits,
    LoaderFile,
    Usage,
    UsageFile,
    read_usage,
)
from shardwise.storage.byte_ranges import ByteRange
from shardwise.storage.local import max_open_files
from shardwise.storage.options import CacheSettings

FOLDER = "shardwise-cache-v1"

_logger = logging.getLogger("shardwise")

_OVERHEAD = 16 << 10  # of the folders and of the usage file
# Memory that is kept for the next fetches, mostly of four blocks.
_MAX_SPARE, _MAX_SPARE_BYTES = 4, 32 << 20


class Cache:
    """The blocks of a directory, for this process; any thread may use it.

    Nothing is touched before the first use. After a fork the child starts with fresh state.
    `make_ahead` makes the `CacheAhead` of a process for so many blocks.
    """

    def __init__(self, settings: CacheSettings, make_ahead: Callable[[int], Any]) -> None:
        self.settings = settings
        self._make_ahead = make_ahead
        self.folder = f"{settings.directory}/{FOLDER}"
        self._blocks = f"{self.folder}/blocks"
        self._parts = f"{self.folder}/parts"
        # Adding up files while they change is inexact.
        headroom = min(settings.max_bytes // 16, 16 * settings.block_bytes)
        self._limit = settings.max_bytes - _OVERHEAD - headroom
        self._max_open = max_open_files()
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._open_blocks: OrderedDict[str, OpenBlock] = OrderedDict()
        # Blocks that this process is fetching: others of its threads need not ask the disk.
        self._locked: set[str] = set()
        self._spare: deque[NDArray[np.uint8]] = deque(maxlen=_MAX_SPARE)
        self._ahead = self._make_ahead(self._limit // self.settings.block_bytes)
        self._eviction = Eviction(self.folder)
        self._usage_file: UsageFile | None = None
        self._peers: Any = None
        self.bypass = Bypass(self.settings.directory)
        self.hits = Hits(self.folder)
        # A cache that is dropped, and the interpreter's end, add the last hits to the usage file.
        weakref.finalize(self, self.hits.flush)
        # Last: another thread of a forked child must not use a lock that was held at the fork.
        self._pid = os.getpid()

    @property
    def peers(self) -> Any:
        """This process's part in a cache that nodes share: a `Sharing`; None unless they do."""
        if self.settings.share and self._peers is None:
            with self._lock:
                self._peers = self._peers or find("caches", "share")(self)
        return self._peers

    @property
    def ahead(self) -> Any:
        if self._pid != os.getpid():
            self._start()
        return self._ahead

    def expect(
        self,
        urls: Sequence[str],
        files: NDArray[np.int64],
        numbers: NDArray[np.int64],
        steps: NDArray[np.int64],
    ) -> LoaderFile | None:
        """Expect a read of block `numbers[i]` of file `urls[files[i]]` at step `steps[i]`.

        Returns None if the disk refuses the list.
        """
        used, files = np.unique(files, return_inverse=True)
        digests = [int(text_digest(urls[file]), 16) for file in used.tolist()]
        keys = block_keys(np.array(digests, np.uint64)[files], numbers)
        order = np.lexsort((steps, keys))
        try:
            expected = LoaderFile(self.folder, "uses", self.usage_file().lock)
            contents = keys[order].tobytes() + steps[order].tobytes()
            expected.fill(contents, int(steps.min(initial=0)), len(keys))
        except OSError as error:
            self._degrade(error)
            return None
        return expected

    @property
    def changes(self) -> tuple[int, int, int]:
        """Counts that differ once any process has missed, evicted or removed a block."""
        usage = read_usage(self.folder)
        return usage.misses, usage.evictions, usage.damaged

    @property
    def room(self) -> int:
        """The number of blocks that its disk can hold beside those in flight."""
        disk, used = os.statvfs(self.folder), read_usage(self.folder).num_bytes
        num_bytes = min(self._limit, used + disk.f_bavail * disk.f_frsize)
        return num_bytes // space_of(self.settings.block_bytes + 4096) * 15 // 16

    def read(self, name: str, ranges: Sequence[ByteRange], buffer: memoryview) -> bool:
        """Read parts of a block into a buffer, if it is cached; whether it is.

        A damaged block is removed, and counts as a missing one, as an unreadable disk does.
        """
        if self._pid != os.getpid():
            self._start()
        block = self._open_blocks.get(name)
        try:
            if block is not None:
                if block.read(ranges, buffer):
                    return True
                self._forget(name)
            # Not open, or evicted: there may be a new file under the name.
            block = OpenBlock.open(f"{self._blocks}/{name}", name)
            if block is not None and block.read(ranges, buffer):
                self._keep(block)
                return True
        except DamagedError:
            self._remove_damaged(name)
        except OSError as error:
            self._degrade(error)
        return False

    def take_memory(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory for a fetch; spared memory has pages that the system need not clear again."""
        with suppress(IndexError):  # none is left
            if (spare := self._spare.pop()).nbytes >= num_bytes:
                return spare
        return np.empty(num_bytes, np.uint8)

    def spare_memory(self, memory: NDArray[np.uint8]) -> None:
        if memory.nbytes <= _MAX_SPARE_BYTES:
            self._spare.append(memory)

    def put(self, name: str, info: BlockInfo, payload: bytes) -> None:
        """Cache a block of bytes, in place of what it was."""
        self.drop(name)
        lock = self.lock_block(name, info)
        if isinstance(lock, BlockLock) and self.write(lock, memoryview(payload), 0):
            self.publish(lock, chunk_digests(memoryview(payload)))

    def holds(self, name: str) -> bool:
        return name in self._open_blocks or os.path.lexists(f"{self._blocks}/{name}")

    def lock_block(self, name: str, info: BlockInfo) -> BlockLock | LockDenied:
        if self._pid != os.getpid():
            self._start()
        if name in self._locked:
            return LockDenied.BUSY
        if time.monotonic() < self.bypass.resume_at:
            IO_COUNTS.add(degraded=1)
            return LockDenied.FULL
        num_bytes = info.num_bytes + trailer_bytes(info)
        if space_of(num_bytes) > self._limit:
            return LockDenied.FULL
        try:
            with self.usage_file().lock() as usage:
                return self._lock_block(usage, name, info, num_bytes)
        except OSError as error:
            self._degrade(error)
            return LockDenied.FULL

    def _lock_block(
        self, usage: Usage, name: str, info: BlockInfo, num_bytes: int
    ) -> BlockLock | LockDenied:
        part = f"{self._parts}/{name}.part"
        is_begun = os.path.lexists(part)
        # Keep this order: a part is renamed to the block without the usage file's lock.
        if holds_bytes(f"{self._blocks}/{name}"):
            return LockDenied.THERE
        if is_begun:
            freed = remove_block(part)
            if not freed:
                return LockDenied.BUSY
            usage.num_bytes -= freed
        space = space_of(num_bytes)
        if usage.num_bytes + space > self._limit:
            IO_COUNTS.add(evictions=self._eviction.make_room(usage, space, self._limit, name=name))
            if usage.num_bytes + space > self._limit:
                return LockDenied.FULL
        require_space(self._parts, num_bytes)
        lock = BlockLock(name, info, make_part(part, num_bytes), space)
        self._locked.add(name)
        usage.num_bytes += space
        usage.misses += 1
        usage.hits += self.hits.take()
        usage.max_bytes = self.settings.max_bytes
        return lock

    def write(self, lock: BlockLock, data: memoryview, offset: int) -> bool:
        """Write a part of a block's payload; False, and the lock is over, if the disk refuses."""
        try:
            write_at(lock.fd, data, offset)
        except OSError as error:
            self.abandon(lock)
            self._degrade(error)
            return False
        return True

    def publish(self, lock: BlockLock, digests: Sequence[int]) -> None:
        """Rename a block whose payload is written, with its chunks' digests, to its name."""
        part = f"{self._parts}/{lock.name}.part"
        try:
            end = trailer(lock.name, lock.info, digests)
            write_at(lock.fd, memoryview(end), lock.info.num_bytes)
            now = time.time_ns()
            os.utime(lock.fd, ns=(now, now))
            # Before other processes can see it, and write to it.
            checked_ns = os.fstat(lock.fd).st_mtime_ns
            os.rename(part, f"{self._blocks}/{lock.name}")  # noqa: PTH104
        except OSError as error:
            self.abandon(lock)
            self._degrade(error)
            return
        lock.is_over = True
        self._locked.discard(lock.name)
        fcntl.flock(lock.fd, fcntl.LOCK_UN)
        self._keep(OpenBlock(lock.name, lock.fd, lock.info, digests, checked_ns=checked_ns))
        with self._changed:
            self._changed.notify_all()

    def abandon(self, lock: BlockLock) -> None:
        if lock.is_over:
            return
        lock.is_over = True
        self._locked.discard(lock.name)
        part = f"{self._parts}/{lock.name}.part"
        try:
            with self.usage_file().lock() as usage:
                os.ftruncate(lock.fd, 0)
                os.unlink(part)  # noqa: PTH108
                usage.num_bytes -= lock.num_bytes_on_disk
        except OSError as error:
            self._degrade(error)
        finally:
            fcntl.flock(lock.fd, fcntl.LOCK_UN)
            os.close(lock.fd)
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until this process publishes or abandons a block, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def drop(self, name: str) -> bool:
        """Remove a block with useless bytes; False if it stays or is not cached."""
        if self._pid != os.getpid():
            self._start()
        self._forget(name)
        try:
            with self.usage_file().lock() as usage:
                freed = remove_block(f"{self._blocks}/{name}")
                usage.num_bytes -= freed
        except OSError as error:
            self._degrade(error)
            return False
        return freed > 0

    def usage_file(self) -> UsageFile:
        """The usage file; the first use creates the folders and sweeps parts of dead processes."""
        with self._lock:
            usage_file = self._usage_file
            if usage_file is None:
                os.makedirs(os.path.dirname(self.folder), 0o700, exist_ok=True)  # noqa: PTH103, PTH120
                for folder in (self.folder, self._blocks, self._parts):
                    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
                usage_file = UsageFile(self.folder)
                with usage_file.lock() as usage:
                    sweep_parts(self.folder, usage)
                self._usage_file = usage_file
            return usage_file

    def _keep(self, block: OpenBlock) -> None:
        with self._lock:
            self._open_blocks[block.name] = block
            while len(self._open_blocks) > self._max_open:
                self._open_blocks.popitem(last=False)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._open_blocks.pop(name, None)

    def _remove_damaged(self, name: str) -> None:
        """Remove a damaged block, unless another process has replaced it already."""
        self._forget(name)
        path = f"{self._blocks}/{name}"
        freed = 0
        try:
            with self.usage_file().lock() as usage:
                try:
                    block = OpenBlock.open(path, name)
                    if block is not None:
                        block.check()
                except DamagedError:
                    # 0 while another reader locks it, who will find the damage as well.
                    freed = remove_block(path)
                    usage.num_bytes -= freed
                    usage.damaged += freed > 0
        except OSError as error:
            self._degrade(error)
        if freed:
            IO_COUNTS.add(damaged=1)
            _logger.warning("a block of the cache was damaged and is fetched once more: %s", path)

    def _degrade(self, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self._usage_file = None  # the cache was removed: create it again
        self.bypass.note_disk(error)
