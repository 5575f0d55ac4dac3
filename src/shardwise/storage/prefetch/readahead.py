"""Read-ahead: which blocks of remote files to prefetch.

A file that is read in sequence is prefetched as far as latency times bandwidth requires, and at
most about twice the bytes read of it so far; near its end, the file that is likely to be read next
is prefetched. A file that is read in a moving window has the blocks of that window. A file that is
read at random has none: each range is a request. All threads of the process share the blocks and
their bound. Runs in the event loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwise.storage.prefetch.concurrency import MIN_REQUEST_BYTES, AdaptiveConcurrency
from shardwise.storage.prefetch.guesses import GuessedFiles
from shardwise.storage.prefetch.memory import Block, BlockMemory, Fetch
from shardwise.storage.prefetch.pattern import Pattern, Reading
from shardwise.storage.requests.client import Reply
from shardwise.storage.requests.ranges import ByteRange
from shardwise.storage.requests.received import ReceivedBytes

__all__ = ["BLOCK_BYTES", "WINDOW_BLOCK_BYTES", "ReadAhead", "Readable"]

# In sequence, one request fetches many blocks; in a window, each block is a request.
BLOCK_BYTES = 4 << 20
WINDOW_BLOCK_BYTES = 8 << 20
# Within 4 MiB of its ends, a file counts as begun or as read.
_NEAR_BYTES = 4 << 20
# Patterns are kept of 4,096 files; a window shuffle uses some 1,000 at a time.
_MAX_FILES = 4096
# If less than 30 % of a window's blocks is read before they are dropped, read the next 1,024 ranges
# by a request each.
_MIN_READ_SHARE = 0.3
_REST_RANGES = 1024


class Readable(NamedTuple):
    """One version of a file.

    Attributes:
        name: of this version of the file, unique.
        num_bytes: its length.
        fetch: reads bytes of it.
        next_file: gives the file that is likely to be read after it, if any.
    """

    name: str
    num_bytes: int
    fetch: Fetch
    next_file: Callable[[], Readable | None] = lambda: None


@dataclass(slots=True)
class _FileState:
    """How one version of a file is being read.

    Attributes:
        follows: bytes that were read in sequence before it, if it was guessed to be next.
        block_bytes: the length of its blocks; 0 before the first.
        in_flight: requests in flight.
        is_sequential: whether the last read was part of a sequence.
        is_started: whether it has been read in sequence.
        is_ended: whether it was read in sequence to its end.
        num_reads: since its first byte was read.
    """

    follows: int
    block_bytes: int
    pattern: Pattern = field(default_factory=Pattern)
    in_flight: int = 0
    is_sequential: bool = False
    is_started: bool = False
    is_ended: bool = False
    num_reads: int = 0


class ReadAhead:
    """The read-ahead of a process.

    Args:
        limit_bytes: memory for blocks, requested ones included.
        max_requests: in flight at a time, for all files.
    """

    def __init__(self, limit_bytes: int, max_requests: int) -> None:
        self._memory = BlockMemory(limit_bytes)
        self._files: OrderedDict[str, _FileState] = OrderedDict()
        self._resting = 0
        # A quarter is left for blocks that are being read.
        self._concurrency = AdaptiveConcurrency(limit_bytes * 3 // 4, max_requests)
        self._guesses = GuessedFiles()

    @property
    def num_bytes(self) -> int:
        """Memory of the blocks, requested ones included."""
        return self._memory.num_bytes

    async def read(
        self, source: Readable, ranges: Sequence[ByteRange]
    ) -> tuple[list[ReceivedBytes], list[ByteRange]]:
        """Read from blocks, and request the blocks that will be read next.

        Args:
            source: the file.
            ranges: at least one; all end within the file.

        Returns:
            The bytes in blocks, and the ranges that are to be requested directly.
        """
        file, pattern = self._note_read(source, ranges)
        if not file.block_bytes:
            return [], list(ranges)
        parts, rest = self._find(source, file, ranges, pattern)
        if file.is_sequential:
            self._note_sequence(source, file)
            self._prefetch(source, is_late=not all(block.is_done for block, _ in parts))
        received: list[ReceivedBytes] = []
        try:
            for block, part in parts:
                received += await block.read(part)
                if block.unread <= 0 and self._memory.use(block.key) is block:
                    self._memory.drop(block)
        finally:
            for block, _ in parts:
                self._memory.leave(block)
        return received, rest

    def _note_read(
        self, source: Readable, ranges: Sequence[ByteRange]
    ) -> tuple[_FileState, Reading]:
        """Note a read; the file's state and pattern."""
        name, num_bytes = source.name, source.num_bytes
        file = self._file(name)
        if file.is_ended and ranges[0].start < min(_NEAR_BYTES, num_bytes // 2):
            file = self._begin(name, follows=file.pattern.run_bytes)
        file.num_reads += 1
        pattern = file.pattern.note(ranges, num_bytes, follows=file.follows)
        if pattern == "window" and self._is_resting(len(ranges)):
            pattern = "random"
        if not file.block_bytes and pattern != "random":
            file.block_bytes = WINDOW_BLOCK_BYTES if pattern == "window" else BLOCK_BYTES
        file.is_sequential = pattern == "sequential"
        return file, pattern

    def _find(
        self, source: Readable, file: _FileState, ranges: Sequence[ByteRange], pattern: Reading
    ) -> tuple[list[tuple[Block, ByteRange]], list[ByteRange]]:
        """The parts in blocks that have arrived, are requested, or are requested now; the rest."""
        # Fetch at most three times the bytes read so far. Before a pattern is known, a direct
        # request is the fastest.
        is_known = file.num_reads > 1 or file.follows > 0
        is_worth = is_known and 3 * file.pattern.run_bytes >= file.block_bytes
        may_start = pattern == "window" or (file.is_sequential and is_worth)
        in_blocks: list[tuple[Block, ByteRange]] = []
        rest: list[ByteRange] = []
        for each in ranges:
            for number, part in each.by_block(file.block_bytes):
                block = self._memory.use((source.name, number))
                if block is None and may_start:
                    begin = part.start if file.is_sequential else 0
                    self._start(source, range(number, number + 1), begin=begin, is_needed=True)
                    block = self._memory.use((source.name, number))
                if block is None or part.start < block.start:
                    rest.append(part)
                else:
                    block.num_readers += 1
                    in_blocks.append((block, part))
        return in_blocks, rest

    def forget(self, name: str) -> None:
        """Drop the blocks and the state of a file."""
        self._files.pop(name, None)
        self._guesses.remove(name)
        self._memory.forget(name)

    def _prefetch(self, source: Readable, *, is_late: bool = False) -> None:
        """Request the blocks behind the position of a file that is read in sequence.

        Args:
            source: the file.
            is_late: whether a reader waits for a requested block.
        """
        file = self._file(source.name)
        target = self._concurrency.target
        ahead = min(target.ahead_bytes, 2 * file.pattern.run_bytes)
        is_ramp = ahead < target.ahead_bytes
        if is_late and not is_ramp:
            self._concurrency.note_waiting_reader()
        free = target.num_requests + 1 - self._in_flight(file)
        if free <= 0:
            return
        position, longest = file.pattern.position, max(1, target.request_bytes // file.block_bytes)
        least = max(1, min(longest, ahead // 2 // file.block_bytes)) if is_ramp else longest
        for other, numbers in self._missing(source, file, position, ahead):
            # Short requests cost more per byte: only the last one of a file may be short.
            for at in range(numbers.start, numbers.stop, longest):
                these = range(at, min(at + longest, numbers.stop))
                is_last = these.stop * file.block_bytes >= other.num_bytes
                if len(these) < least and not is_last:
                    return
                begin = position if other is source else 0
                if not free or self._start(other, these, begin=begin) < len(these):
                    return
                free -= 1

    def _missing(
        self, source: Readable, file: _FileState, position: int, ahead: int
    ) -> Iterator[tuple[Readable, range]]:
        """The blocks to request, in a file and in those that are guessed to follow it.

        Args:
            source: the file.
            file: its state.
            position: where it is being read.
            ahead: bytes from there on.
        """
        yield from self._missing_of(source, position, position + ahead)
        left, after = position + ahead - source.num_bytes, source.next_file()
        while left > 0 and after is not None:
            known = self._files.get(after.name)
            if known is None or known.is_ended:
                known = self._begin(after.name)
            elif known.num_reads:
                return
            known.follows, known.block_bytes = file.pattern.run_bytes, BLOCK_BYTES
            self._guesses.add(after.name)
            if self._guesses.are_wrong:
                return
            yield from self._missing_of(after, 0, left)
            left, after = left - after.num_bytes, after.next_file()

    def _missing_of(
        self, source: Readable, begin: int, end: int
    ) -> Iterator[tuple[Readable, range]]:
        unit = self._file(source.name).block_bytes
        # At the end of a file the last block is read, wherever in it the file ends.
        stop = -(-source.num_bytes // unit) if end >= source.num_bytes else end // unit
        first = stop if begin >= source.num_bytes else begin // unit
        at = first
        for number in range(first, stop):
            if (source.name, number) in self._memory:
                if at < number:
                    yield source, range(at, number)
                at = number + 1
        if at < stop:
            yield source, range(at, stop)

    def _in_flight(self, file: _FileState) -> int:
        return file.in_flight + sum(self._files[name].in_flight for name in self._guesses.names)

    def _note_sequence(self, source: Readable, file: _FileState) -> None:
        """Note the progress of a sequence, and whether its file was guessed right."""
        if file.pattern.position >= source.num_bytes - _NEAR_BYTES:
            file.is_ended = True
        if file.is_started:
            return
        file.is_started = True
        for name in self._guesses.note_begun(source.name):
            self.forget(name)

    def _start(
        self, source: Readable, numbers: range, *, begin: int, is_needed: bool = False
    ) -> int:
        """Request the blocks that there is room for, from offset `begin` on; their number."""
        name, file = source.name, self._file(source.name)
        unit = file.block_bytes
        edges = [
            max(begin, numbers.start * unit),
            *(
                min(number * unit, source.num_bytes)
                for number in range(numbers.start + 1, numbers.stop + 1)
            ),
        ]
        room = self._memory.make_room(
            edges[-1] - edges[0], may_drop=lambda block: is_needed or self._is_over(block)
        )
        fit = sum(edge <= edges[0] + room for edge in edges[1:])
        if fit < len(numbers) and fit * unit < MIN_REQUEST_BYTES:
            return 0
        file.in_flight += 1

        def arrived(block: Block, reply: Reply) -> None:
            if file.is_sequential or file.follows:
                self._concurrency.add(block.num_bytes, reply.head_s)

        def ended(error: BaseException | None) -> None:
            file.in_flight -= 1
            if error is None and file.is_sequential and self._files.get(name) is file:
                self._prefetch(source)

        self._memory.start(
            name, numbers[:fit], edges[: fit + 1], source.fetch, arrived=arrived, ended=ended
        )
        return fit

    def _is_over(self, block: Block) -> bool:
        """Whether a block was read, or skipped by the reader of its file."""
        if block.unread < block.num_bytes or self._guesses.is_skipped(block.key[0]):
            return True
        file = self._files.get(block.key[0])
        return file is None or (file.is_sequential and block.stop <= file.pattern.begin)

    def _is_resting(self, num_reads: int) -> bool:
        if self._resting > 0:
            self._resting -= num_reads
        elif self._memory.read_share < _MIN_READ_SHARE:
            self._memory.read_share, self._resting = 1.0, _REST_RANGES
        return self._resting > 0

    def _file(self, name: str) -> _FileState:
        state = self._files.get(name)
        if state is None:
            return self._begin(name)
        self._files.move_to_end(name)
        return state

    def _begin(self, name: str, *, follows: int = 0) -> _FileState:
        # Its blocks may have another length than before.
        self.forget(name)
        state = self._files[name] = _FileState(follows, BLOCK_BYTES if follows else 0)
        if len(self._files) > _MAX_FILES:
            oldest, _ = self._files.popitem(last=False)
            self._guesses.remove(oldest)
        return state
