"""A file behind the cache: its blocks from the disk, missing ones from its store.

Keeps I6: a block belongs to one version of one file, by URL and ETag, so a read never mixes two.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from shardwise.base.counters import IO_COUNTS
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import shown
from shardwise.extensions.remote.cache.block_file import (
    BlockInfo,
    block_name,
    is_length,
    version_id,
)
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.fetch import CacheAhead, MissingBlock, fetch_or_wait
from shardwise.extensions.remote.remote_file import RemoteFile
from shardwise.storage.byte_ranges import ByteRange, num_bytes_of
from shardwise.storage.options import CacheSettings
from shardwise.storage.protocol import FileStat, ReadRequest, RemoteReads

# The note of a listed file's version, padded: a block of its own.
_NOTE_BYTES = 256


def cache_of(settings: CacheSettings) -> Cache:
    """The cache of some settings: one object for all files that are read with these settings."""
    # Two threads may each make one: they share the disk as two processes do.
    if settings.opened is None:
        object.__setattr__(settings, "opened", Cache(settings, CacheAhead))
    cache: Cache = settings.opened
    return cache


class _Version(NamedTuple):
    """One version of a file; `id` starts its blocks' names, "" where it can't be cached."""

    id: str
    text: str
    num_bytes: int
    url: str


class CachedFile(RemoteReads):
    """A remote file whose blocks are kept on disk; any thread may read it.

    A file whose store names neither an ETag nor a time has no versions: it is read past the cache.
    See `File` for what the methods raise.
    """

    __slots__ = ("_cache", "_file", "_version", "url")

    is_remote = True

    def __init__(self, file: RemoteFile, cache: Cache) -> None:
        self.url = file.url
        self._file = file
        self._cache = cache
        self._version: _Version | None = None

    def __repr__(self) -> str:
        return f"CachedFile({self._file!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._file, self._cache.settings, self._version)

    def open(self) -> None:
        self._pin_version()

    def stat(self, since: int = 0) -> FileStat:
        if since and (noted := self.read_note(since)) is not None:
            return noted
        current = self._file.stat()
        if self._version is None:
            self._use(current)
        if since and current.etag:
            self._write_note(since, current)
        return current

    @property
    def is_noted(self) -> bool:
        """Whether the version of a listed file is noted: its bytes may be cached."""
        return self._cache.holds(self._note_name())

    def read_note(self, since: int) -> FileStat | None:
        """The version that was noted for a list read at `since`."""
        data = memoryview(bytearray(_NOTE_BYTES))
        if not self._cache.read(self._note_name(), [ByteRange(0, _NOTE_BYTES, 0)], data):
            return None
        with suppress(DataError), as_data_error("it is not a note", url=self.url):
            noted, num_bytes, mtime_ns, etag = json.loads(bytes(data))
            are_counts = all(map(is_length, (num_bytes, mtime_ns)))
            # Text that can't be sent in a header is not a version.
            if noted == since and are_counts and type(etag) is str and etag.isprintable():
                return FileStat(num_bytes, mtime_ns, etag)
        return None

    def _write_note(self, since: int, stat: FileStat) -> None:
        note = json.dumps([since, *stat]).encode().ljust(_NOTE_BYTES)
        if len(note) == _NOTE_BYTES:
            info = BlockInfo(shown(self.url), "note", 0, 0, _NOTE_BYTES)
            self._cache.put(self._note_name(), info, note)

    def _note_name(self) -> str:
        return block_name(version_id(self.url, "note", 0, _NOTE_BYTES), 0)

    def pin(self, stat: FileStat) -> None:
        self._file.pin(stat)
        if stat.etag:
            self._use(stat)

    @staticmethod
    def read_many(requests: Sequence[ReadRequest], buffer: memoryview) -> None:
        view = memoryview(buffer).cast("B")
        missing: list[MissingBlock] = []
        hits: list[ByteRange] = []
        for file, ranges in requests:
            missing += file._read_hits(ranges, view, hits)
        if hits:
            requests[0].file._cache.hits.add(len(hits), num_bytes_of(hits))
        if missing:
            IO_COUNTS.add(waits=1)
            fetch_or_wait(missing, view)

    def _read_hits(
        self, ranges: Sequence[ByteRange], view: memoryview, hits: list[ByteRange]
    ) -> list[MissingBlock]:
        """Read the blocks that are cached, add a range for each to `hits`; the missing ones."""
        cache, version = self._cache, self._version or self._pin_version()
        if not version.id or any(each.stop > version.num_bytes for each in ranges):
            if not version.id:
                cache.bypass.note_uncacheable(self.url)
            # The file itself raises the error for a range past its end.
            if ranges:
                self._file.read_many([ReadRequest(self._file, ranges)], view)
            return []
        by_block = _by_block(ranges, cache.settings.block_bytes)
        missing = []
        for number, parts in by_block.items():
            if cache.read(block_name(version.id, number), parts, view):
                hits.append(ByteRange(0, num_bytes_of(parts), 0))
            else:
                missing.append(self._block(version, number, parts))
        return missing

    def announce(self, owner: Hashable, requests: Sequence[ReadRequest]) -> bool:
        is_any_missing: bool = self._cache.ahead.add(
            owner,
            (
                file._block(version, number, ())
                for file, ranges in requests
                if (version := file._version) is not None and version.id
                for number in _by_block(ranges, self._cache.settings.block_bytes)
            ),
        )
        return is_any_missing

    def block_for_peer(self, number: int, ranges: Sequence[ByteRange]) -> MissingBlock | None:
        """A block that another node asks for; None where it has no such ranges."""
        block = self._block(self._pin_version(), number, ranges)
        start, stop = block.info.offset, block.info.offset + block.info.num_bytes
        are_in = all(start <= part.start < part.stop <= stop for part in ranges)
        return replace(block, for_peer=True) if block.version and are_in else None

    def withdraw(self, owner: Hashable) -> None:
        self._cache.ahead.withdraw(owner)

    @property
    def cache(self) -> Cache:
        return self._cache

    def forget(self, offset: int, length: int) -> bool:
        """Remove the blocks of a range whose bytes an index's digests found to be wrong.

        The cache's own digests cover damage on its disk, not bytes that the store sent wrong.

        Returns:
            Whether a block was removed: if not, the bytes came from the store.
        """
        version = self._pin_version()
        if not version.id:
            return False
        size = self._cache.settings.block_bytes
        numbers = range(offset // size, -(-(offset + length) // size))
        names = [block_name(version.id, number) for number in numbers]
        if self._cache.peers is not None:
            self._cache.peers.distrusted.update(names)
        removed = [self._cache.drop(name) for name in names]
        return any(removed)

    def close(self) -> None:
        self._file.close()

    def _pin_version(self) -> _Version:
        version = self._version
        if version is None:
            current = self._file.stat()
            # Otherwise a block could hold bytes of a later version.
            self._file.pin(current)
            version = self._use(current)
        return version

    def _use(self, stat: FileStat) -> _Version:
        text = stat.etag or (f"mtime {stat.mtime_ns}" if stat.mtime_ns else "")
        size = self._cache.settings.block_bytes
        id_ = version_id(self.url, text, stat.num_bytes, size) if text else ""
        self._version = version = _Version(id_, text, stat.num_bytes, shown(self.url))
        return version

    def _block(self, version: _Version, number: int, ranges: Sequence[ByteRange]) -> MissingBlock:
        size = self._cache.settings.block_bytes
        offset, name = number * size, block_name(version.id, number)
        info = BlockInfo(
            url=version.url,
            version=version.text,
            file_bytes=version.num_bytes,
            offset=offset,
            num_bytes=min(size, version.num_bytes - offset),
        )
        return MissingBlock(self._file, self._cache, info, name, version.id, number, ranges)


def _by_block(ranges: Iterable[ByteRange], size: int) -> dict[int, list[ByteRange]]:
    """Ranges cut at the boundaries of blocks, by the block's number."""
    by_block: dict[int, list[ByteRange]] = {}
    for each in ranges:
        start, stop, _ = each
        first = start // size
        if stop <= (first + 1) * size:  # nearly all
            by_block.setdefault(first, []).append(each)
            continue
        for number in range(first, -(-stop // size)):
            part = each.cut(max(start, number * size), min(stop, (number + 1) * size))
            by_block.setdefault(number, []).append(part)
    return by_block


def _rebuild(file: RemoteFile, settings: CacheSettings, version: _Version | None) -> CachedFile:
    cached = CachedFile(file, cache_of(settings))
    cached._version = version
    return cached
