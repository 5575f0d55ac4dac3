"""Read-ahead into memory: which blocks of remote files a process holds.

Files that are read in sequence are prefetched as `SequentialPrefetch` says. A file that is read in
a moving window has the blocks of that window; one that is read at random has none: each range is a
request. All threads of the process share the blocks and their bound. Runs in the event loop's
thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.extensions.remote.prefetch.concurrency import MIN_REQUEST_BYTES, AdaptiveConcurrency
from shardwise.extensions.remote.prefetch.memory import Block, BlockMemory, Fetch
from shardwise.extensions.remote.prefetch.pattern import Reading
from shardwise.extensions.remote.prefetch.sequential import FileState, Readable, SequentialPrefetch
from shardwise.extensions.remote.requests.ranges import ReceivedBytes
from shardwise.storage.client import Reply
from shardwise.storage.protocol import ByteRange

# In sequence, one request fetches many blocks; in a window, each block is a request.
BLOCK_BYTES = 4 << 20
WINDOW_BLOCK_BYTES = 8 << 20
# If less than 30 % of a window's blocks is read before they are dropped, read the next 1,024 ranges
# by a request each.
_MIN_READ_SHARE = 0.3
_REST_RANGES = 1024


class ReadAhead(SequentialPrefetch[Fetch]):
    """The read-ahead of a process: its memory for blocks, requested ones included, is bounded."""

    def __init__(self, limit_bytes: int, max_requests: int) -> None:
        # A quarter is left for blocks that are being read.
        super().__init__(AdaptiveConcurrency(limit_bytes * 3 // 4, max_requests), BLOCK_BYTES)
        self._memory = BlockMemory(limit_bytes)
        self._resting = 0

    async def read(
        self, source: Readable[Fetch], ranges: Sequence[ByteRange]
    ) -> tuple[list[ReceivedBytes], list[ByteRange]]:
        """Read ranges within a file from blocks, and request the blocks that will be read next.

        Returns:
            The bytes in blocks, and the ranges that are to be requested directly.
        """
        file, pattern = self._note_read(source, ranges)
        if pattern == "window" and self._is_resting(len(ranges)):
            pattern = "random"
        if not file.block_bytes and pattern != "random":
            file.block_bytes = WINDOW_BLOCK_BYTES if pattern == "window" else BLOCK_BYTES
        if not file.block_bytes:
            return [], list(ranges)
        parts, rest = self._find(source, file, ranges, pattern)
        if file.is_sequential:
            self._go_on(source, file, is_late=not all(block.is_done for block, _ in parts))
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

    def _find(
        self,
        source: Readable[Fetch],
        file: FileState,
        ranges: Sequence[ByteRange],
        pattern: Reading,
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
        super().forget(name)
        self._memory.forget(name)

    def _has(self, source: Readable[Fetch], number: int) -> bool:
        return (source.name, number) in self._memory

    def _start(
        self, source: Readable[Fetch], numbers: range, *, begin: int, is_needed: bool = False
    ) -> int:
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
            self._ended(source, file, is_whole=error is None)

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
