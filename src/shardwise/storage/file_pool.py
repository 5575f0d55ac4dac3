"""A bounded set of open files, ranges of many of them read at once, and coming reads announced.

A dataset may have more shards than a process may open. The plan knows which samples come next, and
a source knows their byte ranges: storage guesses nothing. Announced ranges of remote files are
fetched once, in the order of their announcement, within `StorageOptions.prefetch_bytes`; a range
that was not announced is read when it is requested.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from shardwise.storage.byte_ranges import byte_ranges, num_bytes_of
from shardwise.storage.local import max_open_files
from shardwise.storage.open import is_local, open_file, remote_storage
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, FileStat, ReadRequest, RemoteReads
from shardwise.storage.versions import require_same


class FilePool:
    """The files used last.

    Any thread may call `get`. The least recently used file is dropped, and closed when its last
    reader drops it. After a fork the child starts without files; a pool pickles with its options
    and pins, and without its files.
    """

    def __init__(self, *, options: StorageOptions | None = None) -> None:
        self.limit = max_open_files()
        self.options = StorageOptions() if options is None else options
        self._pins: dict[str, FileStat] = {}
        self._open = _OpenFiles()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy: another thread may pin a file while it is pickled.
        return _rebuild, (self.options, dict(self._pins))

    def __len__(self) -> int:
        return len(self._open.files)

    def pin(self, url: str, stat: FileStat) -> None:
        """Allow this version of a file only, however often it is opened; see `File.pin`."""
        if not is_local(url) and not stat.etag:
            return
        require_same(self._pins.setdefault(url, stat), stat, url)
        file = self._open.files.get(url)
        if file is not None:
            file.pin(stat)

    def get(self, url: str) -> File:
        """The open file of a URL."""
        opened = self._open
        if opened.pid != os.getpid():
            # A lock that another thread had at the fork would never be released in the child.
            opened = self._open = _OpenFiles()
        with opened.lock:
            file = opened.files.get(url)
            if file is not None:
                opened.files.move_to_end(url)
                return file
        # Opened outside the lock: a slow file system must not stop readers of other files.
        file = open_file(url, options=self.options)
        pinned = self._pins.get(url)
        if pinned is not None:
            file.pin(pinned)
        with opened.lock:
            file = opened.files.setdefault(url, file)
            opened.files.move_to_end(url)
            while len(opened.files) > self.limit:
                opened.files.popitem(last=False)
        return file

    def close(self) -> None:
        self._open = _OpenFiles()


def _rebuild(options: StorageOptions, pins: dict[str, FileStat]) -> FilePool:
    pool = FilePool(options=options)
    for url, stat in pins.items():
        pool.pin(url, stat)
    return pool


class _OpenFiles:
    """The files of one process."""

    __slots__ = ("files", "lock", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.files: OrderedDict[str, File] = OrderedDict()


# A URL, and the arguments of `File.read_spans`: `offsets`, `ends`, `begin`.
UrlRanges = tuple[str, list[int], list[int], int]


def read_files(pool: FilePool, reads: Sequence[UrlRanges], buffer: memoryview) -> None:
    """Fill a buffer with ranges of several files; raises as `File` does.

    Local files are read one after the other. The requests for all remote ones are in flight
    together, at most `StorageOptions.max_requests` at a time.
    """
    remote: list[ReadRequest] = []
    for url, offsets, ends, begin in reads:
        file = pool.get(url)
        if file.is_remote:
            remote.append(ReadRequest(file, byte_ranges(offsets, ends, begin)))
        else:
            file.read_spans(offsets, ends, buffer, begin)
    if remote:
        # All remote files of a pool are of one class: cached, or without a cache.
        remote[0].file.read_many(remote, buffer)


def read_payloads(
    pool: FilePool, reads: Sequence[UrlRanges], starts: Sequence[int], lengths: Sequence[int]
) -> list[bytes | None] | None:
    """Parts of the buffer that `read_files` would fill, each as bytes that were copied once.

    A part of negative length is None. Returns None for local and cached files.
    """
    files = [pool.get(url) for url, *_ in reads]
    cached = pool.options.cache is not None
    if not files or cached or not all(file.is_remote for file in files):
        return None
    requests = [
        ReadRequest(file, byte_ranges(offsets, ends, begin))
        for file, (_, offsets, ends, begin) in zip(files, reads, strict=True)
    ]
    return remote_storage(reads[0][0]).read_payloads(requests, starts, lengths)


# Ranges of several files, and the pool that opens them.
PoolRanges = tuple[FilePool, Sequence[UrlRanges]]

# If caches have all blocks of the first two requests, the next ones are not announced, which would
# take a tenth of their CPU time. The first miss ends that: its reader waits for the store, once.
_NUM_LOOKED_AT = 2

# A scan announces its file in ranges of up to 32 MiB, each freed once it was read.
_SCAN_BYTES, _SCAN_LIMIT_BYTES = 32 << 20, 64 << 20


class Upcoming:
    """The reads that one iterator will make, by request; any thread may finish a request.

    Args:
        cached: whether ranges behind a cache on disk are announced, or those of other files: in
            the memory of a process, another process can't read them. None for both.
    """

    def __init__(self, *, cached: bool | None = None) -> None:
        self._cached = cached
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._limit_bytes = 1
        # For each request that was announced and is not finished: its bytes, and a file of each
        # class that it reads.
        self._due: dict[Hashable, tuple[int, list[Any]]] = {}
        self._num_bytes = 0
        # What caches had counted before the first requests; None once one lacked a block.
        self._num_announced = 0
        self._caches: dict[Any, Any] | None = {}

    @property
    def keys(self) -> list[Any]:
        """The requests that were announced and are not finished, in order."""
        return list(self._due)

    @property
    def has_room(self) -> bool:
        """Whether less is announced than storage may hold."""
        return self._num_bytes < self._limit_bytes

    @property
    def is_needless(self) -> bool:
        """Whether caches had all of the first requests, and lacked and evicted nothing since."""
        if self._caches is not None and any(
            cache.changes != before for cache, before in self._caches.items()
        ):
            self._caches = None
        return self._caches is not None and self._num_announced >= _NUM_LOOKED_AT

    def watch(self, reads: Iterable[PoolRanges]) -> None:
        """Note what the caches of a request have counted before it, which is not announced."""
        for pool, of_pool in reads:
            is_out = self._cached not in (None, pool.options.cache is not None)
            for url, *_ in () if is_out else of_pool[:1]:
                self._watch(pool.get(url))

    def _watch(self, file: Any) -> None:
        if self._caches is None or not file.is_remote:
            return
        cache = file.cache if isinstance(file, RemoteReads) else None
        if cache in self._caches:
            return
        if cache is None or self._num_announced >= _NUM_LOOKED_AT:
            self._caches = None  # the first requests were of other files
        else:
            self._caches[cache] = cache.changes

    def announce(self, key: Hashable, reads: Iterable[PoolRanges]) -> bool:
        """Announce the remote ranges of a request; False if all are left out."""
        if self._pid != os.getpid():
            self._start()
        reading: list[tuple[int, list[ReadRequest]]] = []
        is_any, are_out = False, False
        for pool, of_pool in reads:
            is_out = self._cached not in (None, pool.options.cache is not None)
            is_any, are_out = is_any or not is_out, are_out or is_out
            limit_bytes = 0 if is_out else pool.options.prefetch_bytes
            requests = [
                ReadRequest(file, byte_ranges(offsets, ends, begin))
                for url, offsets, ends, begin in (of_pool if limit_bytes else ())
                if (file := pool.get(url)).is_remote
            ]
            reading.append((limit_bytes, requests))
        self._announce(key, reading)
        return is_any or not are_out

    def _announce(
        self, key: Hashable, reading: Iterable[tuple[int, Sequence[ReadRequest]]]
    ) -> None:
        total, files = 0, []
        for limit_bytes, requests in reading:
            self._limit_bytes = max(self._limit_bytes, limit_bytes)
            if requests:
                total += sum(num_bytes_of(ranges) for _, ranges in requests)
                file = requests[0].file
                files.append(file)
                self._watch(file)
                if file.announce((self, key), requests):
                    self._caches = None
        self._num_announced += bool(files)
        with self._lock:
            self._due[key] = total, files
            self._num_bytes += total

    def finish(self, key: Hashable) -> None:
        """Drop what was announced for a request, since it was read or will not be."""
        if self._pid != os.getpid():
            return
        with self._lock:
            num_bytes, files = self._due.pop(key, (0, []))
            self._num_bytes -= num_bytes
        for file in files:
            file.withdraw((self, key))

    def close(self) -> None:
        for key in self.keys:
            self.finish(key)


class Scan:
    """A file that is read in order and whole: announced while it is read."""

    def __init__(self, file: File, num_bytes: int) -> None:
        self._file = file
        self._num_bytes = num_bytes if file.is_remote else 0
        self._upcoming = Upcoming()
        self._announced: deque[range] = deque()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes at `offset`, and announce the next ones."""
        stop = offset + len(buffer)
        if self._announced and not self._announced[0].start <= stop <= self._announced[-1].stop:
            self.close()  # the reader jumped
        at = self._announced[-1].stop if self._announced else stop
        # As far ahead as was read: a reader of the start alone pays for little more.
        while at < min(self._num_bytes, 2 * stop) and self._upcoming.has_room:
            part = range(at, min(at + min(_SCAN_BYTES, stop), self._num_bytes))
            request = ReadRequest(self._file, byte_ranges([part.start], [len(part)], 0))
            self._upcoming._announce(part, [(_SCAN_LIMIT_BYTES, [request])])
            self._announced.append(part)
            at = part.stop
        self._file.read_into(offset, buffer)
        while self._announced and self._announced[0].stop <= stop:
            self._upcoming.finish(self._announced.popleft())

    def close(self) -> None:
        self._announced.clear()
        self._upcoming.close()
