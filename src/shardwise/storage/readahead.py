"""Blocks of remote files, read before they are asked for, in bounded memory.

A file that is read in sequence has blocks on their way, as many as latency times bandwidth calls
for, and not much more than twice what was read of it so far: near its end they are those of the
file that is likely to be read next. A file that is read in a window that moves has the blocks of
that window. A file that is read here and there has none: each range is one request. All threads of
the process share the blocks and the bound. Runs in the event loop's thread.
Imports this package only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from shardwise.storage.attempts import Reply
from shardwise.storage.flow import Flow
from shardwise.storage.pattern import Pattern
from shardwise.storage.spans import Span

__all__ = ["BLOCK_BYTES", "WINDOW_BLOCK_BYTES", "ReadAhead", "Readable"]

# Large ones cost both ends less; of windows there may be many at a time.
BLOCK_BYTES = 16 << 20
WINDOW_BLOCK_BYTES = 8 << 20
# So near their ends a file counts as begun, or as read.
_NEAR_BYTES = 4 << 20
# Patterns are kept for as many files; a window shuffle has some 1,000 in use.
_MOST_FILES = 4096
# Blocks that were dropped before so much of them was read were not worth it: for a while, then,
# windows are read range by range.
_WORTH = 0.3
_REST = 1024
# Blocks of a file that are there or on their way, for one that is on its way.
_HELD = 4
# So many times in turn another file than the expected one was read next: no more is fetched of
# files that are only expected, until one is read again.
_MOST_WRONG = 2

Fetch = Callable[[int, int], Awaitable[Reply]]


class Readable(NamedTuple):
    """One version of a file.

    Attributes:
        name: tells it from all others.
        num_bytes: its length.
        fetch: gets bytes of it.
        next_one: the one that is likely to be read after it, if any.
    """

    name: str
    num_bytes: int
    fetch: Fetch
    next_one: Callable[[], Readable | None] = lambda: None


class _Block:
    """A block, fetched or on its way; where reading began within it, from there on."""

    __slots__ = ("num_bytes", "start", "task", "unread", "waiting")

    def __init__(self, task: asyncio.Task[Reply], start: int, num_bytes: int) -> None:
        self.task = task
        self.start = start
        self.num_bytes = num_bytes
        self.unread = num_bytes
        self.waiting = 0


class _Ahead:
    """What is known of one version of a file.

    Attributes:
        block_bytes: the length of its blocks; 0 before the first.
        in_flight: blocks that are on their way.
        is_sequential: whether the last read was one of a sequence.
        is_met: whether it was found to be read in sequence.
        is_ended: whether it was read in sequence to its end.
        num_reads: since it was begun.
        follows: bytes that were read in sequence before it, if it was expected.
    """

    __slots__ = (
        "block_bytes",
        "flow",
        "follows",
        "in_flight",
        "is_ended",
        "is_met",
        "is_sequential",
        "num_reads",
        "pattern",
    )

    def __init__(self, flow: Flow | None, follows: int) -> None:
        self.block_bytes = BLOCK_BYTES if follows else 0
        self.pattern = Pattern()
        self.flow = Flow(flow)
        self.in_flight = 0
        self.is_sequential = False
        self.is_met = False
        self.is_ended = False
        self.num_reads = 0
        self.follows = follows


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
        self._flow: Flow | None = None
        # The files that are expected after the one that is read, and how often that was wrong.
        self._expected: list[str] = []
        self._num_wrong = 0

    @property
    def num_bytes(self) -> int:
        """Memory of the blocks, those on their way included."""
        return self._num_bytes

    async def read(self, source: Readable, spans: Sequence[Span], buffer: memoryview) -> list[Span]:
        """Fill a buffer from blocks, and begin to fetch those that will be wanted next.

        Args:
            source: the file.
            spans: what is wanted, at least one; all end within the file.
            buffer: for the bytes.

        Returns:
            What is not in blocks, and best asked for by itself.
        """
        name, num_bytes = source.name, source.num_bytes
        file = self._file(name)
        if file.is_ended and spans[0].start < min(_NEAR_BYTES, num_bytes // 2):
            file = self._begin(name, file.flow)
        file.num_reads += 1
        ranges = [(span.start, span.stop) for span in spans]
        reading = file.pattern.note(ranges, num_bytes, follows=file.follows)
        if reading == "window" and self._is_resting(len(spans)):
            reading = "random"
        # Three times what was read so far is as much as may turn out to be for nothing. What is
        # wanted before anything is known comes soonest by itself.
        is_worth = reading == "window" or 3 * file.pattern.run_bytes >= BLOCK_BYTES
        is_worth = is_worth and (file.num_reads > 1 or file.follows > 0)
        if not file.block_bytes and reading != "random":
            file.block_bytes = WINDOW_BLOCK_BYTES if reading == "window" else BLOCK_BYTES
        if not file.block_bytes:
            return list(spans)
        found: list[tuple[_Block, int, Span]] = []
        rest: list[Span] = []
        for span in spans:
            for piece, number in _pieces(span, file.block_bytes):
                block = self._blocks.get((name, number))
                if block is None and reading != "random" and is_worth:
                    begin = piece.start if reading == "sequential" else 0
                    block = self._start(source, number, begin=begin)
                if block is None or piece.start < block.start:
                    rest.append(piece)
                else:
                    self._blocks.move_to_end((name, number))
                    block.waiting += 1
                    found.append((block, number, piece))
        file.is_sequential = reading == "sequential"
        if file.is_sequential:
            self._note(source, file)
            self._go_on(source)
        try:
            await self._copy(name, found, buffer)
        finally:
            for block, _, _ in found:
                block.waiting -= 1
        return rest

    def forget(self, name: str) -> None:
        """Drop what is held of a file."""
        self._files.pop(name, None)
        if name in self._expected:
            self._expected.remove(name)
        for key in [key for key in self._blocks if key[0] == name]:
            self._drop(key)

    async def _copy(
        self, name: str, found: list[tuple[_Block, int, Span]], buffer: memoryview
    ) -> None:
        for block, number, piece in found:
            # Others may be waiting for it, too: to give up here must not end it.
            reply = await asyncio.shield(block.task)
            data = reply.data[piece.start - block.start : piece.stop - block.start]
            buffer[piece.begin : piece.begin + len(data)] = data
            block.unread -= len(data)
            if block.unread <= 0 and self._blocks.get((name, number)) is block:
                self._drop((name, number))

    def _go_on(self, source: Readable) -> None:
        """Begin to fetch what is behind the place where a file is being read."""
        file = self._file(source.name)
        unit = file.block_bytes
        depth = min(file.flow.depth(unit), self._most_blocks)
        # One that is late holds up the reader; those behind it go on coming meanwhile.
        held = min(_HELD * depth, 2 * file.pattern.run_bytes // unit)
        there = -(-source.num_bytes // unit)
        # At the end the last block is read, wherever in it the file ends.
        is_over = file.pattern.position >= source.num_bytes
        first = there if is_over else file.pattern.position // unit
        last = first + held
        numbers = range(first, min(last, there))
        most = depth - self._in_flight(file)
        if not self._start_all(source, numbers, most, begin=file.pattern.position):
            return
        left, after = last - max(first, there), source.next_one()
        while left > 0 and after is not None:
            known = self._files.get(after.name)
            if known is None or known.is_ended:
                known = self._begin(after.name, file.flow, follows=file.pattern.run_bytes)
            elif known.num_reads:
                return
            if after.name not in self._expected:
                self._expected.append(after.name)
            if self._num_wrong >= _MOST_WRONG:
                return
            there = -(-after.num_bytes // known.block_bytes)
            if not self._start_all(after, range(min(left, there)), depth - self._in_flight(file)):
                return
            left, after = left - there, after.next_one()

    def _in_flight(self, file: _Ahead) -> int:
        return file.in_flight + sum(self._files[name].in_flight for name in self._expected)

    def _start_all(self, source: Readable, numbers: range, most: int, *, begin: int = 0) -> bool:
        """Begin to fetch some blocks of a file; False if not all of them may be begun now."""
        for number in numbers:
            if (source.name, number) in self._blocks:
                continue
            if most <= 0 or self._start(source, number, begin=begin, is_ahead=True) is None:
                return False
            most -= 1
        return True

    def _note(self, source: Readable, file: _Ahead) -> None:
        """Note where reading in sequence has come to, and whether that was expected."""
        if file.pattern.position >= source.num_bytes - _NEAR_BYTES:
            file.is_ended = True
            self._flow = file.flow
        if file.is_met:
            return
        file.is_met = True
        if source.name in self._expected:
            self._expected.remove(source.name)
            self._num_wrong = 0
        elif self._expected:
            self._num_wrong += 1
            for name in list(self._expected):
                self.forget(name)

    def _start(
        self, source: Readable, number: int, *, begin: int, is_ahead: bool = False
    ) -> _Block | None:
        """Begin to fetch a block, not before the byte `begin`; None where there is no room."""
        key, file = (source.name, number), self._file(source.name)
        stop = min((number + 1) * file.block_bytes, source.num_bytes)
        start = max(begin, number * file.block_bytes)
        if not self._make_room(stop - start, is_ahead=is_ahead):
            return None
        task: asyncio.Task[Reply] = asyncio.ensure_future(source.fetch(start, stop))
        block = self._blocks[key] = _Block(task, start, stop - start)
        self._num_bytes += block.num_bytes
        file.in_flight += 1

        def settle(done: asyncio.Task[Reply]) -> None:
            file.in_flight -= 1
            if not done.cancelled() and done.exception() is None:
                file.flow.add(block.num_bytes, done.result().head_s)
                if file.is_sequential and self._files.get(source.name) is file:
                    self._go_on(source)
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
            return self._begin(name, self._flow)
        self._files.move_to_end(name)
        return found

    def _begin(self, name: str, flow: Flow | None, *, follows: int = 0) -> _Ahead:
        # Its blocks may have another length than before.
        self.forget(name)
        begun = self._files[name] = _Ahead(flow, follows)
        if len(self._files) > _MOST_FILES:
            gone, _ = self._files.popitem(last=False)
            if gone in self._expected:
                self._expected.remove(gone)
        return begun


def _pieces(span: Span, block_bytes: int) -> list[tuple[Span, int]]:
    """A span cut where blocks begin, with the number of each block."""
    pieces = []
    at = span.start
    while at < span.stop:
        number = at // block_bytes
        stop = min(span.stop, (number + 1) * block_bytes)
        pieces.append((Span(at, stop, span.begin + at - span.start), number))
        at = stop
    return pieces
