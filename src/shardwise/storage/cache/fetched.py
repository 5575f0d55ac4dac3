"""Blocks that are being fetched, or were just fetched, in memory: read before the disk has them.

Keeps I6: a block's name includes its file's version, so its bytes are those of that version. A
reader that follows a fetch takes the bytes out of the replies as soon as they have arrived. Blocks
that were read are dropped, and the oldest ones where the bound is reached: those are read from the
disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from shardwise.storage.requests.ranges import ByteRange
from shardwise.storage.requests.received import ReceivedBytes

__all__ = ["FetchedBlock", "FetchedBlocks"]

# A block is dropped when 15/16 of it were read: headers and padding are not asked for.
_UNREAD_SHARE = 16


class FetchedBlock:
    """Bytes [start, stop) of a file, the first of which have arrived.

    Attributes:
        name: the block's name in the cache.
        start: where it begins in the file.
        stop: where it ends.
        arrived: where the bytes end that have arrived.
        unread: bytes of it that were not read.
        pieces: the bytes that have arrived, in order, as the replies hold them.
    """

    __slots__ = ("arrived", "name", "pieces", "start", "stop", "unread")

    def __init__(self, name: str, start: int, stop: int) -> None:
        self.name = name
        self.start = start
        self.stop = stop
        self.arrived = start
        self.unread = stop - start
        self.pieces: list[ReceivedBytes] = []

    @property
    def is_whole(self) -> bool:
        """Whether all of it has arrived."""
        return self.arrived == self.stop

    def parts(self, ranges: Iterable[ByteRange]) -> list[ReceivedBytes]:
        """The bytes of some ranges of the file, all of which have arrived."""
        parts = []
        for each in ranges:
            for at, data in self.pieces:
                start, stop = max(each.start, at), min(each.stop, at + len(data))
                if start < stop:
                    begin = each.begin + start - each.start
                    parts.append(ReceivedBytes(begin, data[start - at : stop - at]))
        return parts


class FetchedBlocks:
    """The blocks of a process that have not been read since they were fetched.

    Any thread may use it. A reply that two blocks share is freed after both are dropped, so that
    up to one piece of a reply (2 MiB) a block comes on top of the bound.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._blocks: dict[str, FetchedBlock] = {}
        self._num_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._blocks

    def begin(self, name: str, start: int, stop: int, limit_bytes: int) -> FetchedBlock:
        """A block that is about to arrive; it is not kept if it exceeds the bound by itself."""
        block = FetchedBlock(name, start, stop)
        num_bytes = stop - start
        with self._changed:
            self._drop(name)
            if num_bytes <= limit_bytes:
                while self._num_bytes + num_bytes > limit_bytes:
                    self._drop(next(iter(self._blocks)))
                self._blocks[name] = block
                self._num_bytes += num_bytes
        return block

    def add(self, block: FetchedBlock, data: memoryview) -> None:
        """Keep the next bytes of a block, unless it was dropped."""
        with self._changed:
            if self._blocks.get(block.name) is block:
                block.pieces.append(ReceivedBytes(block.arrived, data))
                block.arrived += len(data)
                self._changed.notify_all()

    def end(self, block: FetchedBlock) -> None:
        """Drop a block that will not be whole."""
        with self._changed:
            if self._blocks.get(block.name) is block and not block.is_whole:
                self._drop(block.name)

    def read(
        self, name: str, ranges: Sequence[ByteRange], *, wait_s: float = 0.0
    ) -> list[ReceivedBytes] | None:
        """The bytes of some ranges of a block.

        Returns:
            None if the block is not here, or they have not arrived after `wait_s` seconds.
        """
        stop = max(each.stop for each in ranges)

        def may_return() -> bool:
            block = self._blocks.get(name)
            return block is None or stop <= block.arrived

        with self._changed:
            if not self._changed.wait_for(may_return, wait_s):
                return None
            block = self._blocks.get(name)
            if block is None:
                return None
            block.unread -= sum(each.stop - each.start for each in ranges)
            if block.is_whole and block.unread * _UNREAD_SHARE <= block.stop - block.start:
                self._drop(name)
            return block.parts(ranges)

    def wait(self, seconds: float) -> None:
        """Wait until bytes arrive, or `notify` is called, or the time is over."""
        with self._changed:
            self._changed.wait(seconds)

    def notify(self) -> None:
        """Wake all readers that wait: a block was published or abandoned."""
        with self._changed:
            self._changed.notify_all()

    def drop(self, name: str) -> None:
        """Drop a block, if it is here."""
        with self._changed:
            self._drop(name)

    def drop_version(self, version: str) -> None:
        """Drop all blocks of a version of a file; those that are arriving still go to the disk."""
        with self._changed:
            for name in [name for name in self._blocks if name.startswith(version)]:
                self._drop(name)

    def _drop(self, name: str) -> None:
        block = self._blocks.pop(name, None)
        if block is not None:
            self._num_bytes -= block.stop - block.start
            # A reader that waits for its bytes turns to the disk.
            self._changed.notify_all()
