"""What to prefetch of files that are read in sequence, into memory or into the cache on disk.

A file that is read in sequence is prefetched as far as latency times bandwidth requires, and at
most about twice the bytes read of it so far; near its end, the file that is likely to be read next
is prefetched. A file that is read at random has nothing prefetched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from shardwise.extensions.remote.prefetch.concurrency import AdaptiveConcurrency
from shardwise.extensions.remote.prefetch.pattern import Pattern, Reading
from shardwise.storage.protocol import ByteRange

F = TypeVar("F")

# Within 4 MiB of its ends, or a quarter of it, a file counts as begun or as read.
_NEAR_BYTES = 4 << 20
# Patterns are kept of 4,096 files; a window shuffle uses some 1,000 at a time.
_MAX_FILES = 4096


class Readable(NamedTuple, Generic[F]):
    """One version of a file.

    Attributes:
        name: unique to the version.
        fetch: reads bytes of it, as the class that keeps them says.
        next_file: gives the file that is likely to be read after it, if any.
    """

    name: str
    num_bytes: int
    fetch: F
    next_file: Callable[[], Readable[F] | None] = lambda: None


@dataclass(slots=True)
class FileState:
    """How one version of a file is being read.

    Attributes:
        follows: bytes that were read in sequence before it, if it was guessed to be next.
        block_bytes: the length of its blocks; 0 before the first.
        is_sequential: whether the last read was part of a sequence.
        is_ended: whether it was read in sequence to its end.
        next_number: of blocks on disk: those below were requested or found there.
        num_idle: blocks found there, or reads at random without a miss, since prefetching helped.
    """

    follows: int
    block_bytes: int
    pattern: Pattern = field(default_factory=Pattern)
    in_flight: int = 0
    is_sequential: bool = False
    is_started: bool = False
    is_ended: bool = False
    num_reads: int = 0
    next_number: int = 0
    num_idle: int = 0


class SequentialPrefetch(ABC, Generic[F]):
    """Decides which blocks are requested, when, and by how long requests. One thread at a time.

    `block_bytes` is the length of the blocks of a file that is read in sequence.
    """

    def __init__(self, concurrency: AdaptiveConcurrency, block_bytes: int) -> None:
        self._concurrency = concurrency
        self._block_bytes = block_bytes
        self._files: OrderedDict[str, FileState] = OrderedDict()
        self._guesses = GuessedFiles()

    @abstractmethod
    def _has(self, source: Readable[F], number: int) -> bool:
        """Whether a block is there or requested."""

    @abstractmethod
    def _start(
        self, source: Readable[F], numbers: range, *, begin: int, is_needed: bool = False
    ) -> int:
        """Request the blocks that there is room for, from offset `begin` on; their number."""

    def forget(self, name: str) -> None:
        """Drop the state of a file."""
        self._files.pop(name, None)
        self._guesses.remove(name)

    def _note_read(
        self, source: Readable[F], ranges: Sequence[ByteRange]
    ) -> tuple[FileState, Reading]:
        """Note a read; the file's state and pattern."""
        name, num_bytes = source.name, source.num_bytes
        file = self._file(name)
        if file.is_ended and ranges[0].start < _near(num_bytes):
            file = self._begin(name, follows=file.pattern.run_bytes)
        file.num_reads += 1
        pattern = file.pattern.note(ranges, num_bytes, follows=file.follows)
        file.is_sequential = pattern == "sequential"
        return file, pattern

    def _go_on(self, source: Readable[F], file: FileState, *, is_late: bool) -> None:
        """Note the progress of a sequence, and whether its file was guessed right; prefetch.

        With `is_late`, a reader waits for a requested block.
        """
        if file.pattern.position >= source.num_bytes - _near(source.num_bytes):
            file.is_ended = True
        if not file.is_started:
            file.is_started = True
            for name in self._guesses.note_begun(source.name):
                self.forget(name)
        self._prefetch(source, is_late=is_late)

    def _prefetch(self, source: Readable[F], *, is_late: bool = False) -> None:
        """Request the blocks behind the position of a file that is read in sequence."""
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
            # Short requests cost more per byte: only one that ends a file, or fills a gap, may be.
            for at in range(numbers.start, numbers.stop, longest):
                these = range(at, min(at + longest, numbers.stop))
                is_last = these.stop * file.block_bytes >= other.num_bytes
                if len(these) < least and not (is_last or self._has(other, these.stop)):
                    return
                begin = position if other is source else 0
                if not free or self._start(other, these, begin=begin) < len(these):
                    return
                free -= 1

    def _ended(self, source: Readable[F], file: FileState, *, is_whole: bool) -> None:
        """A request is over: another one may begin."""
        file.in_flight -= 1
        if is_whole and file.is_sequential and self._files.get(source.name) is file:
            self._prefetch(source)

    def _missing(
        self, source: Readable[F], file: FileState, position: int, ahead: int
    ) -> Iterator[tuple[Readable[F], range]]:
        """The blocks to request `ahead`, in a file and in those that are guessed to follow it."""
        yield from self._missing_of(source, position, position + ahead)
        left, last = position + ahead - source.num_bytes, source
        while left > 0 and (after := last.next_file()) is not None:
            known = self._files.get(after.name)
            if known is None or known.is_ended:
                known = self._begin(after.name)
            elif known.num_reads:
                return
            known.follows, known.block_bytes = file.pattern.run_bytes, self._block_bytes
            self._guesses.add(after.name)
            if self._guesses.are_wrong:
                return
            yield from self._missing_of(after, 0, left)
            left, last = left - after.num_bytes, after

    def _missing_of(
        self, source: Readable[F], begin: int, end: int
    ) -> Iterator[tuple[Readable[F], range]]:
        unit = self._file(source.name).block_bytes
        # At the end of a file the last block is read, wherever in it the file ends.
        stop = -(-source.num_bytes // unit) if end >= source.num_bytes else end // unit
        first = stop if begin >= source.num_bytes else begin // unit
        at = first
        for number in range(first, stop):
            if self._has(source, number):
                if at < number:
                    yield source, range(at, number)
                at = number + 1
        if at < stop:
            yield source, range(at, stop)

    def _in_flight(self, file: FileState) -> int:
        return file.in_flight + sum(self._files[name].in_flight for name in self._guesses.names)

    def _file(self, name: str) -> FileState:
        state = self._files.get(name)
        if state is None:
            return self._begin(name)
        self._files.move_to_end(name)
        return state

    def _begin(self, name: str, *, follows: int = 0) -> FileState:
        # Its blocks may have another length than before.
        self.forget(name)
        state = self._files[name] = FileState(follows, self._block_bytes if follows else 0)
        if len(self._files) > _MAX_FILES:
            oldest, _ = self._files.popitem(last=False)
            self._guesses.remove(oldest)
        return state


def _near(num_bytes: int) -> int:
    return min(_NEAR_BYTES, num_bytes // 4)


# After two wrong guesses in a row, stop prefetching guessed files until a guess is right.
_MAX_WRONG = 2


class GuessedFiles:
    """The files of a process that are guessed to be read next."""

    def __init__(self) -> None:
        # In the order in which they are expected.
        self.names: list[str] = []
        self._num_wrong = 0
        # Guessed files that a reader left out. Another thread may yet read them: their blocks stay
        # until the memory is needed or guessing is given up.
        self._skipped: list[str] = []

    @property
    def are_wrong(self) -> bool:
        """Whether two guesses in a row were wrong."""
        return self._num_wrong >= _MAX_WRONG

    def add(self, name: str) -> None:
        """Guess that a file is read after those that were guessed before."""
        if name not in self.names:
            self.names.append(name)

    def is_skipped(self, name: str) -> bool:
        """Whether a reader left a guessed file out."""
        return name in self._skipped

    def remove(self, name: str) -> None:
        """Forget a file."""
        for names in (self.names, self._skipped):
            if name in names:
                names.remove(name)

    def note_begun(self, name: str) -> list[str]:
        """Note that a file begins to be read in sequence; the files that are not read, it seems."""
        unread: list[str] = []
        if name in self._skipped:
            self._skipped.remove(name)
        elif name in self.names:
            at = self.names.index(name)
            self._skipped += self.names[:at]
            del self.names[: at + 1]
            self._num_wrong = self._num_wrong + 1 if at else 0
        elif self.names:
            self._num_wrong += 1
            unread += self.names
        if self.are_wrong:
            unread += self._skipped
        return unread
