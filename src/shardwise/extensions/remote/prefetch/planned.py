"""Read-ahead into memory: the announced ranges of remote files, fetched once and in their order.

Ranges that lie close together share a request, and each can be read as soon as its own bytes have
arrived. All threads of the process share the ranges and their bound. Runs in the event loop's
thread.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from shardwise.base.counters import IO_COUNTS
from shardwise.base.errors import StorageError
from shardwise.storage.byte_ranges import ByteRange, ReceivedBytes
from shardwise.storage.client import Reply

# A range longer than 4 MiB is freed in parts; so much is requested of a file of unknown length.
PIECE_BYTES = 4 << 20
# Headers between payloads are read along; more would be paid for and not used.
_GAP_BYTES = 4 << 10
# A request costs a store 4 ms, and large stores send 50 to 100 MB/s a reply: what is announced is
# shared by 8 requests, of 32 MiB at most. Of faster replies as few as give 800 MB/s, 4 at least,
# with less memory ahead: a seventh less CPU time.
_REQUEST_BYTES = 32 << 20
_CONNECTIONS = 8
_BYTES_A_S = 800e6
# A faster reply changes nothing: it counts as this, so that few slow ones outweigh it.
_MOST_A_S, _DECAY = 2 * _BYTES_A_S / _CONNECTIONS, 0.98
_start_of = attrgetter("start")


@dataclass(slots=True, eq=False, repr=False)
class Piece:
    """Bytes [start, stop) of a file, which the `owner` of the newest announcement will read."""

    name: str
    start: int
    stop: int
    owner: Hashable
    object: Any  # `PinnedObject` of the file
    task: asyncio.Task[None] | None = None
    num_readers: int = 0  # that wait for it now
    is_over: bool = False  # its owner needs it no more
    error: BaseException | None = None
    num_bytes: int = field(init=False)
    _ready: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _parts: list[tuple[int, memoryview]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.num_bytes = self.stop - self.start  # counts against the bound once it is requested

    @property
    def is_done(self) -> bool:
        """Whether it has arrived or failed."""
        return self._ready.is_set()

    def add(self, at: int, data: memoryview) -> None:
        """Keep its part of some bytes of the file, which start at offset `at`."""
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
        received = []
        for first, data in self._parts:
            start, stop = max(part.start, first), min(part.stop, first + len(data))
            if start < stop:
                begin = part.begin + start - part.start
                received.append(ReceivedBytes(begin, data[start - first : stop - first]))
        return received


class PlannedReads:
    """The announced pieces of a process; those that are requested or have arrived are bounded."""

    def __init__(self, limit_bytes: int, max_requests: int) -> None:
        self._limit_bytes = limit_bytes
        self._max_requests = max_requests
        # Sorted by announcement; some were requested already, or dropped.
        self._queue: deque[Piece] = deque()
        # The pieces of each file, sorted by offset.
        self._pieces: dict[str, list[Piece]] = {}
        self.names = self._pieces.keys()
        self._owned: dict[Hashable, list[Piece]] = {}
        self._num_in_flight = 0
        self._num_queued_bytes = 0
        self._is_filling = True
        # Bytes a second of the fastest long reply; each later one makes it 2 % less.
        self._fastest = 1.0
        self.num_bytes = 0

    def add(self, owner: Hashable, name: str, object_: Any, ranges: Iterable[ByteRange]) -> None:
        """Announce ranges of a file, after those that were announced before."""
        pieces = self._pieces.setdefault(name, [])
        owned = self._owned.setdefault(owner, [])
        for whole in ranges:
            for begin in range(whole.start, whole.stop, PIECE_BYTES):
                start, stop = begin, min(begin + PIECE_BYTES, whole.stop)
                at = bisect_right(pieces, start, key=_start_of)
                before = pieces[at - 1] if at else None
                if before is not None and stop <= before.stop:
                    # The same sample again: it is fetched once.
                    before.owner, before.is_over = owner, False
                    owned.append(before)
                    continue
                # A reader of both neighbours reads what lies between them, too.
                if before is not None and 0 < start - before.stop <= _GAP_BYTES:
                    start = before.stop
                if at < len(pieces) and 0 < pieces[at].start - stop <= _GAP_BYTES:
                    stop = pieces[at].start
                piece = Piece(name, start, stop, owner, object_)
                pieces.insert(at, piece)
                self._num_queued_bytes += piece.num_bytes
                self._queue.append(piece)
                owned.append(piece)

    def fetch(self) -> None:
        """Request announced pieces up to the bound, once it has room for a long request.

        A sequence waits for its next pieces, to request them together, while many are in flight.
        """
        self._is_filling |= self._room >= min(_REQUEST_BYTES, self._limit_bytes // 4)
        while self._is_filling and self._queue and self._num_in_flight < self._max_requests:
            first = self._queue[0]
            if first.task is None and not first.is_over:
                if self.num_bytes and first.num_bytes > self._room:
                    self._is_filling = False
                    return
                if self._num_in_flight >= self._num_connections and self._may_grow(first):
                    return
                self._request(first)
            self._queue.popleft()
        self._is_filling &= bool(self._queue)

    async def read(
        self, name: str, ranges: Sequence[ByteRange]
    ) -> tuple[list[ReceivedBytes], list[ByteRange]]:
        """Read the announced parts of ranges of a file; returns the other parts, too."""
        pieces = self._pieces.get(name)
        if not pieces:
            return [], list(ranges)
        parts, rest = _cut_ranges(pieces, ranges)
        for piece, _ in parts:
            piece.num_readers += 1
            if piece.task is None:
                self._request(piece)  # whatever the bound: its reader is here
        if not all(piece.is_done for piece, _ in parts):
            IO_COUNTS.add(waits=1)
        received: list[ReceivedBytes] = []
        try:
            for piece, part in parts:
                received += await piece.read(part)
        finally:
            for piece, _ in parts:
                piece.num_readers -= 1
                if piece.is_over or piece.error is not None:
                    self._drop(piece)
        return received, rest

    def object_of(self, name: str) -> Any:
        return pieces[0].object if (pieces := self._pieces.get(name)) else None

    def withdraw(self, owner: Hashable) -> None:
        for piece in self._owned.pop(owner, ()):
            if piece.owner == owner:
                self._drop(piece)
        self.fetch()

    @property
    def _num_connections(self) -> int:
        return min(_CONNECTIONS, -int(-_BYTES_A_S // self._fastest))

    @property
    def _room(self) -> int:
        return self._limit_bytes * self._num_connections // _CONNECTIONS - self.num_bytes

    def _may_grow(self, first: Piece) -> bool:
        """Whether a piece continues another one, and the next announcement may continue it."""
        last, pieces = self._queue[-1], self._pieces[first.name]
        at = bisect_left(pieces, first.start, key=_start_of)
        continues = at > 0 and first.start - pieces[at - 1].stop <= _GAP_BYTES
        return continues and last.name == first.name and last.stop - first.start < _REQUEST_BYTES

    def _pieces_around(self, first: Piece) -> list[Piece]:
        """A piece and the neighbours that share its request, in the order of the file."""
        pieces = self._pieces[first.name]
        low = pieces.index(first, bisect_left(pieces, first.start, key=_start_of))
        high = low + 1
        share = self._num_queued_bytes // max(1, self._num_connections - self._num_in_flight)
        most = min(_REQUEST_BYTES, max(2 * PIECE_BYTES, share), self._room)
        room = max(0, most - first.num_bytes)
        while high < len(pieces) and pieces[high].task is None and room >= 0:
            room -= pieces[high].stop - pieces[high - 1].stop
            if pieces[high].start - pieces[high - 1].stop > _GAP_BYTES or room < 0:
                break
            high += 1
        while low and pieces[low - 1].task is None and room >= 0:
            room -= pieces[low].start - pieces[low - 1].start
            if pieces[low].start - pieces[low - 1].stop > _GAP_BYTES or room < 0:
                break
            low -= 1
        return pieces[low:high]

    def _request(self, first: Piece) -> None:
        """Request a piece and those around it, by one request."""
        together = self._pieces_around(first)
        due = deque(together)
        begin, end = together[0].start, max(piece.stop for piece in together)
        at = head = begin
        since = 0.0

        def take(reply: Reply) -> None:
            nonlocal at, head, since
            if at == begin:
                head, since = begin + len(reply.data), time.monotonic()
            for piece in due:
                if piece.start >= at + len(reply.data):
                    break
                piece.add(at, reply.data)
            at += len(reply.data)
            while due and min(due[0].stop, reply.stat.num_bytes) <= at:
                piece = due.popleft()
                # A file of unknown length may be shorter than what was requested of it.
                self.num_bytes -= max(0, piece.stop - at)
                piece.num_bytes -= max(0, piece.stop - at)
                piece.finish()

        def finish(task: asyncio.Task[None]) -> None:
            self._num_in_flight -= 1
            if at - head >= 2 * PIECE_BYTES:
                rate = (at - head) / max(1e-9, time.monotonic() - since)
                self._fastest = max(min(rate, _MOST_A_S), _DECAY * self._fastest)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if due and error is None:
                error = StorageError(f"{end - at} bytes of {end - begin} are missing")
            for piece in due:
                # Its readers get the error; the next read requests it again.
                piece.finish(error)
                self._drop(piece)
            self.fetch()

        task = asyncio.ensure_future(first.object.stream(begin, end, take))
        for piece in together:
            piece.task = task
            self.num_bytes += piece.num_bytes
            self._num_queued_bytes -= piece.num_bytes
        self._num_in_flight += 1
        task.add_done_callback(finish)

    def _drop(self, piece: Piece) -> None:
        """Remove a piece, now or when its last reader is done; cancel a request without use."""
        piece.is_over = True
        pieces = self._pieces.get(piece.name, [])
        at = bisect_left(pieces, piece.start, key=_start_of)
        while at < len(pieces) and pieces[at].start == piece.start and pieces[at] is not piece:
            at += 1
        if piece.num_readers or at == len(pieces) or pieces[at] is not piece:
            return
        del pieces[at]
        if not pieces:
            del self._pieces[piece.name]
        if piece.task is None:
            self._num_queued_bytes -= piece.num_bytes
        else:
            self.num_bytes -= piece.num_bytes
            if not any(other.task is piece.task and not other.is_done for other in pieces):
                piece.task.cancel()


def _cut_ranges(
    pieces: Sequence[Piece], ranges: Sequence[ByteRange]
) -> tuple[list[tuple[Piece, ByteRange]], list[ByteRange]]:
    """The parts of ranges that lie in pieces, and the rest."""
    parts: list[tuple[Piece, ByteRange]] = []
    rest: list[ByteRange] = []
    for each in ranges:
        start = each.start
        at = max(0, bisect_right(pieces, start, key=_start_of) - 1)
        while start < each.stop:
            while at < len(pieces) and pieces[at].stop <= start:
                at += 1
            if at == len(pieces) or pieces[at].start >= each.stop:
                rest.append(each.cut(start, each.stop))
                break
            piece = pieces[at]
            if piece.start > start:
                rest.append(each.cut(start, piece.start))
                start = piece.start
            stop = min(piece.stop, each.stop)
            parts.append((piece, each.cut(start, stop)))
            start = stop
    return parts, rest
