"""Blocks of remote files, read before they are asked for, in bounded memory.

A file that is read in sequence has blocks on their way, as many as latency times bandwidth calls
for, and never more than twice what was read of it so far. A file that is read in a window that
moves has the blocks of that window. A file that is read here and there has none: each range is one
request. All threads of the process share the blocks and the bound. Runs in the event loop's thread.
Imports this package only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from shardwise.storage.attempts import Reply
from shardwise.storage.flow import Flow
from shardwise.storage.pattern import Pattern
from shardwise.storage.spans import Span

__all__ = ["BLOCK_BYTES", "ReadAhead"]

BLOCK_BYTES = 8 << 20
# Patterns are kept for as many files; a window shuffle has some 1,000 in use.
_MOST_FILES = 4096
# Blocks that were dropped before so much of them was read were not worth it: for a while, then,
# windows are read range by range.
_WORTH = 0.3
_REST = 1024
# Blocks of a file that are there or on their way, for one that is on its way.
_HELD = 4

Fetch = Callable[[int, int], Awaitable[Reply]]


class _Block:
    """A block, fetched or on its way."""

    __slots__ = ("num_bytes", "task", "unread", "waiting")

    def __init__(self, task: asyncio.Task[Reply], num_bytes: int) -> None:
        self.task = task
        self.num_bytes = num_bytes
        self.unread = num_bytes
        self.waiting = 0


class _Ahead:
    """What is known of one version of a file.

    Attributes:
        in_flight: blocks that are on their way.
        is_sequential: whether the last read was one of a sequence.
    """

    __slots__ = ("flow", "in_flight", "is_sequential", "pattern")

    def __init__(self) -> None:
        self.pattern = Pattern()
        self.flow = Flow()
        self.in_flight = 0
        self.is_sequential = False


class ReadAhead:
    """The blocks of a process.

    Args:
        limit_bytes: memory for blocks, those on their way included.
        most_blocks: blocks on their way at a time, of all files.
    """

    def __init__(self, limit_bytes: int, most_blocks: int) -> None:
        self._limit_bytes = limit_bytes
        self._most_blocks = most_blocks
        self._files: OrderedDict[str, _Ahead] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int], _Block] = OrderedDict()
        self._num_bytes = 0
        self._worth = 1.0
        self._resting = 0
        # Of the file that was read in sequence to its end last.
        self._ended: _Ahead | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of the blocks, those on their way included."""
        return self._num_bytes

    async def read(
        self, name: str, num_bytes: int, spans: Sequence[Span], buffer: memoryview, fetch: Fetch
    ) -> list[Span]:
        """Fill a buffer from blocks, and begin to fetch those that will be wanted next.

        Args:
            name: tells this version of the file from all others.
            num_bytes: its length.
            spans: what is wanted, at least one; all end within the file.
            buffer: for the bytes.
            fetch: gets bytes of the file.

        Returns:
            What is not in blocks, and best asked for by itself.
        """
        file = self._file(name)
        follows = 0 if self._ended is None else self._ended.pattern.run_bytes
        ranges = [(span.start, span.stop) for span in spans]
        reading = file.pattern.note(ranges, num_bytes, follows=follows)
        if reading == "window" and self._is_resting(len(spans)):
            reading = "random"
        found: list[tuple[_Block, int, Span]] = []
        rest: list[Span] = []
        for span in spans:
            for piece, number in _pieces(span):
                block = self._blocks.get((name, number))
                if block is None and reading != "random":
                    block = self._start(name, number, num_bytes, fetch)
                if block is None:
                    rest.append(piece)
                else:
                    self._blocks.move_to_end((name, number))
                    block.waiting += 1
                    found.append((block, number, piece))
        file.is_sequential = reading == "sequential"
        if file.is_sequential:
            if file.pattern.position >= num_bytes - BLOCK_BYTES // 2:
                self._ended = file
            self._go_on(name, file, num_bytes, fetch)
        try:
            await self._copy(name, found, buffer)
        finally:
            for block, _, _ in found:
                block.waiting -= 1
        return rest

    def forget(self, name: str) -> None:
        """Drop what is held of a file."""
        self._files.pop(name, None)
        for key in [key for key in self._blocks if key[0] == name]:
            self._drop(key)

    async def _copy(
        self, name: str, found: list[tuple[_Block, int, Span]], buffer: memoryview
    ) -> None:
        for block, number, piece in found:
            # Others may be waiting for it, too: to give up here must not end it.
            reply = await asyncio.shield(block.task)
            first = number * BLOCK_BYTES
            data = reply.data[piece.start - first : piece.stop - first]
            buffer[piece.begin : piece.begin + len(data)] = data
            block.unread -= len(data)
            if block.unread <= 0 and self._blocks.get((name, number)) is block:
                self._drop((name, number))

    def _go_on(self, name: str, file: _Ahead, num_bytes: int, fetch: Fetch) -> None:
        """Begin to fetch the blocks behind the place where a file is being read."""
        depth = min(file.flow.depth(BLOCK_BYTES), self._most_blocks)
        # Twice what was read so far is as much as may turn out to be for nothing. One that is late
        # holds up the reader; those behind it go on coming meanwhile.
        held = min(_HELD * depth, 2 * file.pattern.run_bytes // BLOCK_BYTES)
        first = file.pattern.position // BLOCK_BYTES
        last = min(first + held, -(-num_bytes // BLOCK_BYTES))
        for number in range(first, last):
            if file.in_flight >= depth:
                break
            if (name, number) in self._blocks:
                continue
            if self._start(name, number, num_bytes, fetch, is_ahead=True) is None:
                break

    def _start(
        self, name: str, number: int, num_bytes: int, fetch: Fetch, *, is_ahead: bool = False
    ) -> _Block | None:
        """Begin to fetch a block; None where there is no room."""
        start = number * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, num_bytes)
        if not self._make_room(stop - start, is_ahead=is_ahead):
            return None
        key, file = (name, number), self._file(name)
        task: asyncio.Task[Reply] = asyncio.ensure_future(fetch(start, stop))
        block = self._blocks[key] = _Block(task, stop - start)
        self._num_bytes += block.num_bytes
        file.in_flight += 1

        def settle(done: asyncio.Task[Reply]) -> None:
            file.in_flight -= 1
            if not done.cancelled() and done.exception() is None:
                file.flow.add(block.num_bytes, done.result().head_s)
                if file.is_sequential and self._files.get(name) is file:
                    self._go_on(name, file, num_bytes, fetch)
            elif self._blocks.get(key) is block:
                # Who waits for it gets the error; if nobody does, it's asked for anew when wanted.
                self._drop(key)

        task.add_done_callback(settle)
        return block

    def _make_room(self, num_bytes: int, *, is_ahead: bool) -> bool:
        if self._num_bytes + num_bytes <= self._limit_bytes:
            return True
        for key in list(self._blocks):
            block = self._blocks[key]
            # What is only likely to be wanted does not push out what nobody has read yet.
            is_new = is_ahead and block.unread == block.num_bytes
            if block.task.done() and not block.waiting and not is_new:
                self._drop(key)
                if self._num_bytes + num_bytes <= self._limit_bytes:
                    return True
        return False

    def _drop(self, key: tuple[str, int]) -> None:
        block = self._blocks.pop(key)
        self._num_bytes -= block.num_bytes
        if not block.task.done():
            if not block.waiting:
                block.task.cancel()
        elif not block.task.cancelled() and block.task.exception() is None:
            share = 1 - max(0, block.unread) / block.num_bytes
            self._worth += 0.1 * (share - self._worth)

    def _is_resting(self, num_reads: int) -> bool:
        if self._resting > 0:
            self._resting -= num_reads
        elif self._worth < _WORTH:
            self._worth, self._resting = 1.0, _REST
        return self._resting > 0

    def _file(self, name: str) -> _Ahead:
        found = self._files.get(name)
        if found is None:
            found = self._files[name] = _Ahead()
            if self._ended is not None:
                found.flow = Flow(self._ended.flow)
            if len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(name)
        return found


def _pieces(span: Span) -> list[tuple[Span, int]]:
    """A span cut where blocks begin, with the number of each block."""
    pieces = []
    at = span.start
    while at < span.stop:
        number = at // BLOCK_BYTES
        stop = min(span.stop, (number + 1) * BLOCK_BYTES)
        pieces.append((Span(at, stop, span.begin + at - span.start), number))
        at = stop
    return pieces
