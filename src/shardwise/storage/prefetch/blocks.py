"""Blocks of remote files in memory, there or on their way, within a bound.

A request brings several blocks that follow each other, and each is there as soon as its own bytes
are: long requests cost both ends less, short blocks are soon read and let go of. Runs in the event
loop's thread. Imports this package only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from shardwise.errors import StorageError
from shardwise.storage.requests.ranges import Span
from shardwise.storage.requests.received import Piece
from shardwise.storage.requests.retry import Reply

__all__ = ["Block", "Blocks", "Fetch", "Key"]

# A file's name and the number of a block in it.
Key = tuple[str, int]
# Gets the bytes between two offsets of a file, and hands them on in order as they come.
Fetch = Callable[[int, int, Callable[[Reply], None]], Awaitable[None]]

_WEIGHT = 0.1


class Block:
    """Bytes [start, stop) of a file.

    Attributes:
        key: its file's name and its number.
        run: the request that brings it.
        unread: bytes of it that were not read yet.
        waiting: readers that wait for it now.
        is_wanted: False once it was let go of, and nobody waited for it.
        error: why it did not come.
    """

    __slots__ = (
        "_parts",
        "_ready",
        "error",
        "is_wanted",
        "key",
        "run",
        "start",
        "stop",
        "unread",
        "waiting",
    )

    def __init__(self, key: Key, run: _Run, start: int, stop: int) -> None:
        self.key = key
        self.run = run
        self.start = start
        self.stop = stop
        self.unread = stop - start
        self.waiting = 0
        self.is_wanted = True
        self.error: BaseException | None = None
        self._ready = asyncio.Event()
        self._parts: list[tuple[int, memoryview]] = []

    @property
    def num_bytes(self) -> int:
        """Its length, which is held for it from the moment it is asked for."""
        return self.stop - self.start

    @property
    def is_settled(self) -> bool:
        """Whether it is there, or did not come."""
        return self._ready.is_set()

    def add(self, at: int, data: memoryview) -> None:
        """Take what comes: the bytes of the file from `at` on, of which some may be its own."""
        first, last = max(at, self.start), min(at + len(data), self.stop)
        if first < last:
            self._parts.append((first, data[first - at : last - at]))

    def settle(self, error: BaseException | None = None) -> None:
        """Tell who waits that it is there, or why it is not."""
        self.error = error
        self._ready.set()

    async def read(self, span: Span) -> list[Piece]:
        """Some of its bytes, once they are there."""
        await self._ready.wait()
        if self.error is not None:
            raise self.error
        self.unread -= span.stop - span.start
        pieces = []
        for first, data in self._parts:
            start, stop = max(span.start, first), min(span.stop, first + len(data))
            if start < stop:
                part = data[start - first : stop - first]
                pieces.append(Piece(span.begin + start - span.start, part))
        return pieces


class _Run:
    """A request on its way.

    Attributes:
        task: does it.
        coming: the blocks that it still brings, in order.
    """

    __slots__ = ("coming", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.coming: deque[Block] = deque()

    def add(self, at: int, data: memoryview) -> list[Block]:
        """Share out what came; the blocks that are complete now."""
        complete = []
        while self.coming:
            block = self.coming[0]
            block.add(at, data)
            if at + len(data) < block.stop:
                break
            complete.append(self.coming.popleft())
            block.settle()
        return complete

    def give_up(self) -> None:
        """End the request, unless somebody wants what is coming."""
        if not any(block.is_wanted for block in self.coming):
            self.task.cancel()


class Blocks:
    """The blocks of a process, those that were used last at the end.

    Args:
        limit_bytes: memory for all of them, those on their way included.

    Attributes:
        num_bytes: what they hold, or will.
        worth: which share of them was read before they were dropped, lately.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.worth = 1.0
        self._blocks: OrderedDict[Key, Block] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._blocks

    def use(self, key: Key) -> Block | None:
        """The block that is there or on its way, if any."""
        found = self._blocks.get(key)
        if found is not None:
            self._blocks.move_to_end(key)
        return found

    def start(
        self,
        name: str,
        numbers: Sequence[int],
        places: Sequence[int],
        fetch: Fetch,
        *,
        came: Callable[[Block, Reply], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        """Ask for blocks that follow each other, by one request.

        Args:
            name: of the file.
            numbers: the blocks'.
            places: where each begins, and where the last one ends.
            fetch: does the request.
            came: called for each block that is complete.
            ended: called when the request is over, with what went wrong.
        """
        run, at = _Run(), places[0]
        for number, (start, stop) in zip(numbers, pairwise(places), strict=True):
            block = Block((name, number), run, start, stop)
            self._blocks[block.key] = block
            run.coming.append(block)
            self.num_bytes += block.num_bytes

        def take(reply: Reply) -> None:
            nonlocal at
            complete = run.add(at, reply.data)
            at += len(reply.data)
            for block in complete:
                came(block, reply)

        def settle(done: asyncio.Task[None]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if run.coming and error is None:
                error = StorageError(
                    f"{places[-1] - at} bytes of {places[-1] - places[0]} are missing"
                )
            while run.coming:
                # Who waits for it gets the error; it is asked for anew when it is wanted.
                block = run.coming.popleft()
                block.settle(error)
                if self._blocks.get(block.key) is block:
                    self.drop(block)
            ended(error)

        run.task = asyncio.ensure_future(fetch(places[0], places[-1], take))
        run.task.add_done_callback(settle)

    def room(self, num_bytes: int, *, may_drop: Callable[[Block], bool]) -> int:
        """Make room, by dropping what was not used for longest; how much of it there is then."""
        for block in list(self._blocks.values()):
            if self.num_bytes + num_bytes <= self.limit_bytes:
                break
            if block.is_settled and not block.waiting and may_drop(block):
                self.drop(block)
        return min(num_bytes, self.limit_bytes - self.num_bytes)

    def drop(self, block: Block) -> None:
        """Let go of a block. A request that nobody waits for any more is given up."""
        del self._blocks[block.key]
        self.num_bytes -= block.num_bytes
        if not block.is_settled:
            block.is_wanted = block.waiting > 0
            block.run.give_up()
        elif block.error is None:
            share = 1 - max(0, block.unread) / block.num_bytes
            self.worth += _WEIGHT * (share - self.worth)

    def forget(self, name: str) -> None:
        """Let go of all blocks of a file."""
        for block in [block for block in self._blocks.values() if block.key[0] == name]:
            self.drop(block)
