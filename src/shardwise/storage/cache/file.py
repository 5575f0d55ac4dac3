"""A file behind the cache: its blocks from the disk, what is missing from its store.

Keeps I6: a block belongs to one version of one file, by URL and ETag, so a read never mixes two.
A file that is read in sequence has its next blocks fetched before they are asked for. Imports this
package, the protocol and the patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from shardwise.errors import DataError, StorageError
from shardwise.shown import shown
from shardwise.storage.cache.blocks import BlockInfo, block_name, version_id
from shardwise.storage.cache.cache import Cache
from shardwise.storage.cache.fetch import Missing, Read, Spans, bring, fetch, read_direct
from shardwise.storage.cache.open_block import Outcome
from shardwise.storage.cache.sequential import Streak
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.protocol import File, FileStat
from shardwise.storage.requests.counts import IO_COUNTS

__all__ = ["CachedFile", "cache_of", "read_cached"]

Wanted = tuple["CachedFile", Sequence[int], Sequence[int], int]


def cache_of(settings: CacheSettings) -> Cache:
    """The cache of some settings: one object for all files that are read with these settings."""
    # Two threads may both make one: they work side by side as two processes do.
    if settings.opened is None:
        object.__setattr__(settings, "opened", Cache(settings))
    cache: Cache = settings.opened
    return cache


class _Version(NamedTuple):
    """One version of a file: what its blocks' names begin with, and what it is."""

    id: str
    text: str
    num_bytes: int


class CachedFile:
    """A remote file whose blocks are kept on disk; any thread may read it.

    A store that tells neither an ETag nor a time of a file gives it no versions: such files are
    read past the cache. See `File` for what the methods raise.

    Args:
        file: the file itself.
        cache: where its blocks are kept.
    """

    __slots__ = ("_cache", "_file", "_streak", "_version", "url")

    # A block that is there is a file on this machine.
    gap_bytes = 16 << 10
    is_remote = True

    def __init__(self, file: File, cache: Cache) -> None:
        self.url = file.url
        self._file = file
        self._cache = cache
        self._version: _Version | None = None
        self._streak: Streak | None = None

    def __repr__(self) -> str:
        return f"CachedFile({self._file!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._file, self._cache.settings, self._version)

    def open(self) -> None:
        """Ask for the file's version, unless it is known."""
        self._known()

    def stat(self) -> FileStat:
        """What the store has under the name now."""
        found = self._file.stat()
        if self._version is None:
            self._use(found)
        return found

    def pin(self, stat: FileStat) -> None:
        """Allow this version only; a store need not be asked for it again."""
        self._file.pin(stat)
        if stat.etag:
            self._use(stat)

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`."""
        buffer = bytearray(max(length, 0))
        self.read_spans([offset], [length], memoryview(buffer), 0)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a writable contiguous buffer with the bytes at `offset`."""
        view = memoryview(buffer).cast("B")
        self.read_spans([offset], [len(view)], view, 0)

    def read_spans(
        self, offsets: Sequence[int], ends: Sequence[int], buffer: memoryview, begin: int
    ) -> None:
        """Fill a buffer with several ranges."""
        read_cached([(self, offsets, ends, begin)], buffer)

    def forget(self, offset: int, length: int) -> bool:
        """Remove the blocks that hold a range, because their bytes turned out to be wrong.

        The digests of the cache tell what the disk did to a block, not what was fetched: whoever
        knows better (an index with digests) calls this and reads again, once.

        Returns:
            Whether a block was removed: if not, the bytes came from the store.
        """
        version = self._known()
        if not version.id:
            return False
        size = self._cache.settings.block_bytes
        numbers = range(offset // size, -(-(offset + length) // size))
        dropped = [self._cache.drop(block_name(version.id, number)) for number in numbers]
        return any(dropped)

    def close(self) -> None:
        """Let go of the file itself; blocks stay open in the cache."""
        self._file.close()

    def _known(self) -> _Version:
        version = self._version
        if version is None:
            found = self._file.stat()
            # Or the bytes could be those of a version that came after.
            self._file.pin(found)
            version = self._use(found)
        return version

    def _use(self, stat: FileStat) -> _Version:
        text = stat.etag or (f"mtime {stat.mtime_ns}" if stat.mtime_ns else "")
        size = self._cache.settings.block_bytes
        known_by = version_id(self.url, text, stat.num_bytes, size) if text else ""
        self._version = version = _Version(known_by, text, stat.num_bytes)
        return version

    def _block(self, version: _Version, number: int, spans: Spans) -> Missing:
        size = self._cache.settings.block_bytes
        offset = number * size
        info = BlockInfo(
            url=shown(self.url),
            version=version.text,
            file_bytes=version.num_bytes,
            offset=offset,
            num_bytes=min(size, version.num_bytes - offset),
        )
        return Missing(self._file, self._cache, info, block_name(version.id, number), spans)

    def _go_on(self, numbers: Sequence[int], read: Read, *, had_to_wait: bool) -> None:
        """Note a read; begin to fetch the blocks behind it, if the file is read in sequence."""
        streak, version = self._streak, self._version
        if version is None or not numbers:
            return
        if streak is None:
            streak = self._streak = Streak(self._cache.settings.block_bytes, version.num_bytes)
        for number in streak.note(read, had_to_wait=had_to_wait):
            block = self._block(version, number, [])
            is_there = self._cache.holds(block.name)
            streak.count(is_there=is_there)
            if not is_there:
                self._cache.ahead(partial(_fetch_ahead, block))
        if streak.is_over:
            self._streak = None


def _fetch_ahead(block: Missing) -> None:
    """Fetch a block before it is asked for."""
    try:
        fetch([block], memoryview(b""))
    except (DataError, StorageError):
        return  # who needs the block meets it, and says for what


def read_cached(wanted: Sequence[Wanted], buffer: memoryview) -> None:
    """Do `read_spans` of several files, with all requests for what is missing in flight at once."""
    view = memoryview(buffer).cast("B")
    missing: list[Missing] = []
    hits = 0
    for file, offsets, ends, begin in wanted:
        cache, version = file._cache, file._known()
        pieces, last = _pieces(offsets, ends, begin, cache.settings.block_bytes)
        if not version.id or last > version.num_bytes:
            if not version.id:
                cache.pass_by(file.url)
            # The file itself says what is wrong with a range behind its end.
            read_direct([(file._file, offsets, ends, begin)], view)
            continue
        num_missing = len(missing)
        for number, spans in pieces.items():
            if cache.read(block_name(version.id, number), spans, view) is Outcome.READ:
                hits += 1
            else:
                missing.append(file._block(version, number, spans))
        had_to_wait = len(missing) > num_missing
        if had_to_wait or file._streak is not None:
            file._go_on(list(pieces), (file, offsets, ends, begin), had_to_wait=had_to_wait)
    if hits:
        wanted[0][0]._cache.count_hits(hits)
    if missing:
        IO_COUNTS.add(waits=1)
        bring(missing, view)


def _pieces(
    offsets: Sequence[int], ends: Sequence[int], begin: int, size: int
) -> tuple[dict[int, Spans], int]:
    """Ranges cut where blocks begin: for each block what is wanted of it; and the last byte's end.

    A span is its offset in the block, its beginning and its end in the buffer.
    """
    found: dict[int, Spans] = {}
    number, first, spans, last = -1, 0, [], 0
    for offset, end in zip(offsets, ends, strict=True):
        stop = offset + end - begin
        if offset < 0 or stop < offset:
            raise ValueError(f"offset={offset}, length={end - begin}: neither may be negative")
        last = max(stop, last)
        while begin < end:
            if offset // size != number:
                number = offset // size
                first = number * size
                spans = found.setdefault(number, [])
            piece_end = end if stop <= first + size else begin + first + size - offset
            spans.append((offset - first, begin, piece_end))
            offset += piece_end - begin
            begin = piece_end
    return found, last


def _rebuild(file: File, settings: CacheSettings, version: _Version | None) -> CachedFile:
    cached = CachedFile(file, cache_of(settings))
    cached._version = version
    return cached
