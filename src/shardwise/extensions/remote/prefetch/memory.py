"""Prefetched blocks of remote files in memory, within a bound: the memory of prefetching.

A request covers several adjacent blocks, and each can be read as soon as its own bytes have
arrived: long requests cost less at both ends, short blocks are freed sooner. Runs in the event
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shardwise.base.errors import StorageError
from shardwise.extensions.remote.requests.ranges import ReceivedBytes
from shardwise.storage.client import Reply
from shardwise.storage.protocol import ByteRange

# A file's name and the number of a block in it.
Key = tuple[str, int]
# Reads the bytes between two offsets of a file, and passes them on in order as they arrive.
Fetch = Callable[[int, int, Callable[[Reply], None]], Awaitable[None]]

_WEIGHT = 0.1


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """Bytes [start, stop) of a file.

    Attributes:
        unread: bytes of it that were not read yet.
        num_readers: readers that wait for it now.
        is_needed: False once it was dropped while no reader waited.
        error: why it could not be fetched.
    """

    key: Key
    request: _Request
    start: int
    stop: int
    unread: int = field(init=False)
    num_readers: int = 0
    is_needed: bool = True
    error: BaseException | None = None
    _ready: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _parts: list[tuple[int, memoryview]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.unread = self.num_bytes

    @property
    def num_bytes(self) -> int:
        """Its length, which counts against the bound as soon as it is requested."""
        return self.stop - self.start

    @property
    def is_done(self) -> bool:
        """Whether it has arrived or failed."""
        return self._ready.is_set()

    def add(self, at: int, data: memoryview) -> None:
        """Keep its part of some bytes of the file, which begin at offset `at`."""
        first, last = max(at, self.start), min(at + len(data), self.stop)
        if first < last:
            self._parts.append((first, data[first - at : last - at]))

    def finish(self, error: BaseException | None = None) -> None:
        """Wake its readers: it has arrived, or failed."""
        self.error = error
        self._ready.set()

    async def read(self, part: ByteRange) -> list[ReceivedBytes]:
        """Some of its bytes, once they have arrived."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error
        self.unread -= part.stop - part.start
        received = []
        for first, data in self._parts:
            start, stop = max(part.start, first), min(part.stop, first + len(data))
            if start < stop:
                begin = part.begin + start - part.start
                received.append(ReceivedBytes(begin, data[start - first : stop - first]))
        return received


class _Request:
    __slots__ = ("due", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        # The blocks that have not arrived yet, in order.
        self.due: deque[Block] = deque()

    def add(self, at: int, data: memoryview) -> list[Block]:
        """Distribute arrived bytes; the blocks that are complete now."""
        complete = []
        while self.due:
            block = self.due[0]
            block.add(at, data)
            if at + len(data) < block.stop:
                break
            complete.append(self.due.popleft())
            block.finish()
        return complete

    def cancel_if_unneeded(self) -> None:
        """Cancel the request, unless one of its blocks is needed."""
        if not any(block.is_needed for block in self.due):
            self.task.cancel()


class BlockMemory:
    """The prefetched blocks of a process, in the order of their last use."""

    def __init__(self, limit_bytes: int) -> None:
        # Memory for all blocks, requested ones included; and that of the blocks now.
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        # Moving average of the share of a block that was read before it was dropped.
        self.read_share = 1.0
        self._blocks: OrderedDict[Key, Block] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._blocks

    def use(self, key: Key) -> Block | None:
        """The block under a key, arrived or requested; None if there is none."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def start(
        self,
        name: str,
        numbers: Sequence[int],
        edges: Sequence[int],
        fetch: Fetch,
        *,
        arrived: Callable[[Block, Reply], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        """Request adjacent blocks of a file, by one request.

        Args:
            name: of the file.
            numbers: of the blocks.
            edges: where each begins, and where the last one ends.
            fetch: sends the request.
            arrived: called for each block that is complete.
            ended: called when the request is over, with its error or None.
        """
        request, at = _Request(), edges[0]
        for number, (start, stop) in zip(numbers, pairwise(edges), strict=True):
            block = Block((name, number), request, start, stop)
            self._blocks[block.key] = block
            request.due.append(block)
            self.num_bytes += block.num_bytes

        def take(reply: Reply) -> None:
            nonlocal at
            complete = request.add(at, reply.data)
            at += len(reply.data)
            for block in complete:
                arrived(block, reply)

        def finish(task: asyncio.Task[None]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if request.due and error is None:
                error = StorageError(
                    f"{edges[-1] - at} bytes of {edges[-1] - edges[0]} are missing"
                )
            while request.due:
                # Its readers get the error; the next read requests it anew.
                block = request.due.popleft()
                block.finish(error)
                if self._blocks.get(block.key) is block:
                    self.drop(block)
            ended(error)

        request.task = asyncio.ensure_future(fetch(edges[0], edges[-1], take))
        request.task.add_done_callback(finish)

    def make_room(self, num_bytes: int, *, may_drop: Callable[[Block], bool]) -> int:
        """Drop the least recently used blocks; the free bytes then, at most `num_bytes`."""
        for block in list(self._blocks.values()):
            if self.num_bytes + num_bytes <= self.limit_bytes:
                break
            if block.is_done and not block.num_readers and may_drop(block):
                self.drop(block)
        return min(num_bytes, self.limit_bytes - self.num_bytes)

    def drop(self, block: Block) -> None:
        """Remove a block; a request whose blocks are all unneeded is cancelled."""
        del self._blocks[block.key]
        self.num_bytes -= block.num_bytes
        if not block.is_done:
            self._cancel_if_unread(block)
        elif block.error is None:
            share = 1 - max(0, block.unread) / block.num_bytes
            self.read_share += _WEIGHT * (share - self.read_share)

    def leave(self, block: Block) -> None:
        """One reader of a block is done with it, or has given it up."""
        block.num_readers -= 1
        if not block.is_done and self._blocks.get(block.key) is not block:
            # It was dropped while it was waited for.
            self._cancel_if_unread(block)

    def _cancel_if_unread(self, block: Block) -> None:
        block.is_needed = block.num_readers > 0
        block.request.cancel_if_unneeded()

    def forget(self, name: str) -> None:
        """Remove all blocks of a file."""
        for block in [block for block in self._blocks.values() if block.key[0] == name]:
            self.drop(block)
