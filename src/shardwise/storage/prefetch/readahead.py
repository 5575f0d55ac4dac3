"""What is read of remote files before it is asked for.

A file that is read in sequence has requests on their way, as many as latency times bandwidth calls
for, and not much more than twice what was read of it so far: near its end they are for the file
that is likely to be read next. A file that is read in a window that moves has the blocks of that
window. A file that is read here and there has none: each range is one request. All threads of the
process share the blocks and their bound. Runs in the event loop's thread.
Imports this package only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shardwise.storage.prefetch.blocks import Block, Blocks, Fetch
from shardwise.storage.prefetch.concurrency import SHORTEST, Flow
from shardwise.storage.prefetch.pattern import Pattern, Reading
from shardwise.storage.requests.ranges import Span
from shardwise.storage.requests.received import Piece
from shardwise.storage.requests.retry import Reply

__all__ = ["BLOCK_BYTES", "WINDOW_BLOCK_BYTES", "ReadAhead", "Readable"]

# In sequence one request brings many blocks; in a window, each block is a request.
BLOCK_BYTES = 4 << 20
WINDOW_BLOCK_BYTES = 8 << 20
# So near their ends a file counts as begun, or as read.
_NEAR_BYTES = 4 << 20
# Patterns are kept for as many files; a window shuffle has some 1,000 in use.
_MOST_FILES = 4096
# Blocks that were dropped before so much of them was read were not worth it: for a while, then,
# windows are read range by range.
_WORTH = 0.3
_REST = 1024
# After two wrong guesses in a row, stop prefetching guessed files until a guess is right.
_MOST_WRONG = 2


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


class _Ahead:
    """What is known of one version of a file.

    Attributes:
        block_bytes: the length of its blocks; 0 before the first.
        in_flight: requests that are on their way.
        is_sequential: whether the last read was one of a sequence.
        is_met: whether it was found to be read in sequence.
        is_ended: whether it was read in sequence to its end.
        num_reads: since it was begun.
        follows: bytes that were read in sequence before it, if it was expected.
    """

    __slots__ = (
        "block_bytes",
        "follows",
        "in_flight",
        "is_ended",
        "is_met",
        "is_sequential",
        "num_reads",
        "pattern",
    )

    def __init__(self, follows: int) -> None:
        self.block_bytes = BLOCK_BYTES if follows else 0
        self.pattern = Pattern()
        self.in_flight = 0
        self.is_sequential = False
        self.is_met = False
        self.is_ended = False
        self.num_reads = 0
        self.follows = follows


class ReadAhead:
    """What a process reads ahead.

    Args:
        limit_bytes: memory for blocks, those on their way included.
        most_requests: on their way at a time, of all files.
    """

    def __init__(self, limit_bytes: int, most_requests: int) -> None:
        self._blocks = Blocks(limit_bytes)
        self._files: OrderedDict[str, _Ahead] = OrderedDict()
        self._resting = 0
        # A part is left for what was read, and is in use.
        self._flow = Flow(limit_bytes * 3 // 4, most_requests)
        # Files guessed to be read next, in that order, and the wrong guesses in a row.
        self._expected: list[str] = []
        self._num_wrong = 0
        # Guessed files that a reader left out. Another thread may yet read them: their blocks stay
        # until the memory is needed or guessing is given up.
        self._skipped: list[str] = []

    @property
    def num_bytes(self) -> int:
        """Memory of the blocks, those on their way included."""
        return self._blocks.num_bytes

    async def read(self, source: Readable, spans: Sequence[Span]) -> tuple[list[Piece], list[Span]]:
        """Read from blocks, and begin to fetch those that will be wanted next.

        Args:
            source: the file.
            spans: what is wanted, at least one; all end within the file.

        Returns:
            What was in blocks, and what was not, and is best asked for by itself.
        """
        file, reading = self._look(source, spans)
        if not file.block_bytes:
            return [], list(spans)
        found, rest = self._find(source, file, spans, reading)
        if file.is_sequential:
            self._note(source, file)
            self._go_on(source, is_late=not all(block.is_settled for block, _ in found))
        pieces: list[Piece] = []
        try:
            for block, span in found:
                pieces += await block.read(span)
                if block.unread <= 0 and self._blocks.use(block.key) is block:
                    self._blocks.drop(block)
        finally:
            for block, _ in found:
                block.waiting -= 1
        return pieces, rest

    def _look(self, source: Readable, spans: Sequence[Span]) -> tuple[_Ahead, Reading]:
        """Note a read, and what it is part of."""
        name, num_bytes = source.name, source.num_bytes
        file = self._file(name)
        if file.is_ended and spans[0].start < min(_NEAR_BYTES, num_bytes // 2):
            file = self._begin(name, follows=file.pattern.run_bytes)
        file.num_reads += 1
        ranges = [(span.start, span.stop) for span in spans]
        reading = file.pattern.note(ranges, num_bytes, follows=file.follows)
        if reading == "window" and self._is_resting(len(spans)):
            reading = "random"
        if not file.block_bytes and reading != "random":
            file.block_bytes = WINDOW_BLOCK_BYTES if reading == "window" else BLOCK_BYTES
        file.is_sequential = reading == "sequential"
        return file, reading

    def _find(
        self, source: Readable, file: _Ahead, spans: Sequence[Span], reading: Reading
    ) -> tuple[list[tuple[Block, Span]], list[Span]]:
        """What is in blocks that are there, on their way, or begun now, and what is not."""
        # Three times what was read so far, in all, is as much as may turn out to be in vain. What
        # is wanted before anything is known comes soonest by itself.
        is_known = file.num_reads > 1 or file.follows > 0
        is_worth = is_known and 3 * file.pattern.run_bytes >= file.block_bytes
        may_start = reading == "window" or (file.is_sequential and is_worth)
        found: list[tuple[Block, Span]] = []
        rest: list[Span] = []
        for span in spans:
            for part, number in _parts(span, file.block_bytes):
                block = self._blocks.use((source.name, number))
                if block is None and may_start:
                    begin = part.start if file.is_sequential else 0
                    self._start(source, range(number, number + 1), begin=begin, is_wanted=True)
                    block = self._blocks.use((source.name, number))
                if block is None or part.start < block.start:
                    rest.append(part)
                else:
                    block.waiting += 1
                    found.append((block, part))
        return found, rest

    def forget(self, name: str) -> None:
        """Drop what is held of a file."""
        self._files.pop(name, None)
        self._unguess(name)
        self._blocks.forget(name)

    def _unguess(self, name: str) -> None:
        for names in (self._expected, self._skipped):
            if name in names:
                names.remove(name)

    def _go_on(self, source: Readable, *, is_late: bool = False) -> None:
        """Begin to fetch what is behind the place where a file is being read.

        Args:
            source: the file.
            is_late: whether a reader waits for what is on its way.
        """
        file = self._file(source.name)
        shape = self._flow.shape
        ahead = min(shape.ahead_bytes, 2 * file.pattern.run_bytes)
        is_ramp = ahead < shape.ahead_bytes
        if is_late and not is_ramp:
            self._flow.starve()
        free = shape.width + 1 - self._in_flight(file)
        if free <= 0:
            return
        place, longest = file.pattern.position, max(1, shape.each_bytes // file.block_bytes)
        least = max(1, min(longest, ahead // 2 // file.block_bytes)) if is_ramp else longest
        for one, numbers in self._missing(source, file, place, ahead):
            # Short requests cost more: one waits until it is worth it, or the file's last.
            for at in range(numbers.start, numbers.stop, longest):
                these = range(at, min(at + longest, numbers.stop))
                is_last = these.stop * file.block_bytes >= one.num_bytes
                if len(these) < least and not is_last:
                    return
                begin = place if one is source else 0
                if not free or self._start(one, these, begin=begin) < len(these):
                    return
                free -= 1

    def _missing(
        self, source: Readable, file: _Ahead, place: int, ahead: int
    ) -> Iterator[tuple[Readable, range]]:
        """The blocks that are not on their way, in a file and in those that come after it.

        Args:
            source: the file.
            file: what is known of it.
            place: where it is being read.
            ahead: bytes from there on.
        """
        yield from self._missing_of(source, place, place + ahead)
        left, after = place + ahead - source.num_bytes, source.next_one()
        while left > 0 and after is not None:
            known = self._files.get(after.name)
            if known is None or known.is_ended:
                known = self._begin(after.name)
            elif known.num_reads:
                return
            known.follows, known.block_bytes = file.pattern.run_bytes, BLOCK_BYTES
            if after.name not in self._expected:
                self._expected.append(after.name)
            if self._num_wrong >= _MOST_WRONG:
                return
            yield from self._missing_of(after, 0, left)
            left, after = left - after.num_bytes, after.next_one()

    def _missing_of(
        self, source: Readable, begin: int, end: int
    ) -> Iterator[tuple[Readable, range]]:
        unit = self._file(source.name).block_bytes
        # At the end of a file the last block is read, wherever in it the file ends.
        stop = -(-source.num_bytes // unit) if end >= source.num_bytes else end // unit
        first = stop if begin >= source.num_bytes else begin // unit
        at = first
        for number in range(first, stop):
            if (source.name, number) in self._blocks:
                if at < number:
                    yield source, range(at, number)
                at = number + 1
        if at < stop:
            yield source, range(at, stop)

    def _in_flight(self, file: _Ahead) -> int:
        return file.in_flight + sum(self._files[name].in_flight for name in self._expected)

    def _note(self, source: Readable, file: _Ahead) -> None:
        """Note where reading in sequence has come to, and whether that was expected."""
        if file.pattern.position >= source.num_bytes - _NEAR_BYTES:
            file.is_ended = True
        if file.is_met:
            return
        file.is_met = True
        name, expected = source.name, self._expected
        if name in self._skipped:
            self._skipped.remove(name)
        elif name in expected:
            at = expected.index(name)
            self._skipped += expected[:at]
            del expected[: at + 1]
            self._num_wrong = self._num_wrong + 1 if at else 0
        elif expected:
            self._num_wrong += 1
            self._forget_all(expected)
        if self._num_wrong >= _MOST_WRONG:
            self._forget_all(self._skipped)

    def _forget_all(self, names: list[str]) -> None:
        for name in list(names):
            self.forget(name)

    def _start(
        self, source: Readable, numbers: range, *, begin: int, is_wanted: bool = False
    ) -> int:
        """Begin to fetch blocks, not before the byte `begin`; how many there is room for."""
        name, file = source.name, self._file(source.name)
        unit = file.block_bytes
        places = [
            max(begin, numbers.start * unit),
            *(
                min(number * unit, source.num_bytes)
                for number in range(numbers.start + 1, numbers.stop + 1)
            ),
        ]
        room = self._blocks.room(
            places[-1] - places[0], may_drop=lambda block: is_wanted or self._is_over(block)
        )
        fit = sum(place <= places[0] + room for place in places[1:])
        if fit < len(numbers) and fit * unit < SHORTEST:
            return 0
        file.in_flight += 1

        def came(block: Block, reply: Reply) -> None:
            if file.is_sequential or file.follows:
                self._flow.add(block.num_bytes, reply.head_s)

        def ended(error: BaseException | None) -> None:
            file.in_flight -= 1
            if error is None and file.is_sequential and self._files.get(name) is file:
                self._go_on(source)

        self._blocks.start(
            name, numbers[:fit], places[: fit + 1], source.fetch, came=came, ended=ended
        )
        return fit

    def _is_over(self, block: Block) -> bool:
        """Whether a block was read, or left out, by what reads its file in sequence."""
        if block.unread < block.num_bytes or block.key[0] in self._skipped:
            return True
        file = self._files.get(block.key[0])
        return file is None or (file.is_sequential and block.stop <= file.pattern.begin)

    def _is_resting(self, num_reads: int) -> bool:
        if self._resting > 0:
            self._resting -= num_reads
        elif self._blocks.worth < _WORTH:
            self._blocks.worth, self._resting = 1.0, _REST
        return self._resting > 0

    def _file(self, name: str) -> _Ahead:
        found = self._files.get(name)
        if found is None:
            return self._begin(name)
        self._files.move_to_end(name)
        return found

    def _begin(self, name: str, *, follows: int = 0) -> _Ahead:
        # Its blocks may have another length than before.
        self.forget(name)
        begun = self._files[name] = _Ahead(follows)
        if len(self._files) > _MOST_FILES:
            oldest, _ = self._files.popitem(last=False)
            self._unguess(oldest)
        return begun


def _parts(span: Span, block_bytes: int) -> list[tuple[Span, int]]:
    """A span cut where blocks begin, with the number of each block."""
    parts = []
    at = span.start
    while at < span.stop:
        number = at // block_bytes
        stop = min(span.stop, (number + 1) * block_bytes)
        parts.append((Span(at, stop, span.begin + at - span.start), number))
        at = stop
    return parts
