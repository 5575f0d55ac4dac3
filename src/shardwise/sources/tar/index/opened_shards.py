"""Shards that were opened one by one: their indexes' headers as columns, compared with the shards.

Before the first sample is read, every shard is there and is the one that was indexed. If a header
is like those before it, only its numbers are kept: 100,000 shards take some 10 MB.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from shardwise.base.errors import DataError
from shardwise.base.parallel import in_threads, usable_cores
from shardwise.base.shown import in_command, shown, without_query
from shardwise.sources.manifest import Manifest
from shardwise.sources.tar.index.build import index_for
from shardwise.sources.tar.index.index_file import IndexHeader
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_version import require_end
from shardwise.storage import FileStat, is_local
from shardwise.storage.column_file import texts_of
from shardwise.storage.found_once import found_once
from shardwise.storage.missing import explain_missing

_logger = logging.getLogger("shardwise")

# Threads that open shards: a network file system waits more than it computes.
_LOCAL_THREADS = 16
# Requests to a store wait longer.
REMOTE_THREADS = 64
# Each remote scan has up to 64 requests in flight itself.
_REMOTE_SCANS = 16
# Local shards that are opened before it is decided whether threads help.
_SAMPLE = 64
# Opening a shard in the page cache computes; threads would only wait for the GIL.
_MIN_WAIT_SHARE = 0.5

# The result of opening one shard: its number, its header if it has an index, and the shard.
_Found: TypeAlias = tuple[int, IndexHeader | None, FileStat]


class OpenedShards:
    """Shards as they were when they were opened; indexes that can't be written are `unsaved`."""

    def __init__(self, urls: Sequence[str], store: IndexStore) -> None:
        num_shards = len(urls)
        sizes, lengths, self._mtimes = (np.zeros(num_shards, np.int64) for _ in range(3))
        self._etags: list[str] = []
        self.key_lengths: set[int | None] = set()
        self.has_digests = False
        self.unsaved: dict[int, ShardIndex] = {}
        # The first shard with each set of fields.
        first: dict[tuple[str, ...], int] = {}
        endless: list[int] = []
        ignored: Counter[str] = Counter()
        removed: dict[int, tuple[int, ...]] = {}
        for shard, header, stat in _open(urls, store, self.unsaved):
            sizes[shard] = header.num_samples
            lengths[shard] = stat.num_bytes
            self._mtimes[shard] = stat.mtime_ns
            if stat.etag:
                self._etags = self._etags or [""] * num_shards
                self._etags[shard] = stat.etag
            first[header.fields] = min(shard, first.get(header.fields, shard))
            if header.num_samples:
                self.key_lengths.add(header.key_length)
            self.has_digests = self.has_digests or header.has_digests
            ignored.update(header.ignored)
            if header.removed:
                removed[shard] = header.removed
            if not header.has_end:
                endless.append(shard)
        self.manifest = Manifest.of_columns("tar", urls, sizes, lengths)
        self.removed = self.manifest.ids_of(removed)
        ordered = sorted(first, key=first.__getitem__)
        self.fields = tuple(dict.fromkeys(name for fields in ordered for name in fields))
        if (ignored["no extension"] or ignored["hidden"]) and not self.manifest.num_samples:
            left_out = ", ".join(f"{what}: {count}" for what, count in ignored.items())
            raise DataError(
                f"no samples: all members are left out ({left_out}); what follows the first dot of "
                "a member's name is its field, as in '0001.jpg': pack the shards with names of "
                "that form",
                url=urls[0],
            )
        self._refuse_repeats()
        if endless:
            _logger.warning(
                "%d of %d shards have no end (two blocks of zeros), such as %s: they may have been "
                "cut between two samples; `shardwise verify` says more",
                len(endless), num_shards, shown(urls[endless[0]]),
            )  # fmt: skip

    def stat(self, shard: int) -> FileStat:
        etag = self._etags[shard] if self._etags else ""
        return FileStat(self.manifest.shard_bytes.item(shard), self._mtimes.item(shard), etag)

    def pins(self) -> Iterator[tuple[str, FileStat]]:
        """The shards that a store names a version of, in order."""
        for shard, etag in enumerate(self._etags):
            if etag:
                yield self.manifest.urls[shard], self.stat(shard)

    def _refuse_repeats(self) -> None:
        """Raise ValueError where two URLs of one shard differ in their queries only."""
        seen: set[tuple[str, str]] = set()
        for url, stat in self.pins():
            # A query may name the shard, too: then each has its own ETag.
            version = (without_query(url), stat.etag)
            if version in seen:
                raise ValueError(
                    f"the shard {shown(url)!r} is named twice, with different queries and one ETag "
                    f"({stat.etag}): its samples would be read twice an epoch; remove one of the "
                    "URLs"
                )
            seen.add(version)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"unsaved": {}}


def _open(
    urls: Sequence[str], store: IndexStore, unsaved: dict[int, ShardIndex]
) -> Iterator[tuple[int, IndexHeader, FileStat]]:
    """Each shard with its index, which is built if it is missing, in any order."""
    are_local = all(map(is_local, urls))
    missing: list[int] = []
    with explain_missing(urls):
        found = _open_indexed(urls, store) if are_local else _open_once(urls, store)
        for shard, header, stat in found:
            if header is None:
                missing.append(shard)
            else:
                yield shard, header, stat
    if not missing:
        return
    more = " ..." if len(missing) > 1 else ""
    _logger.warning(
        "Indexing %d of %d shards (once). Run `%s %s%s` to do this in advance.",
        len(missing), len(urls), store.command, in_command(urls[missing[0]]), more,
    )  # fmt: skip
    errors: list[OSError] = []

    def build(shard: int) -> tuple[int, IndexHeader, FileStat]:
        index = index_for(urls[shard], store)
        try:
            store.save(urls[shard], index)
        except OSError as error:
            errors.append(error)
            unsaved[shard] = index
        return shard, index.header, index.header.stat

    # Threads: most of the time goes into reading.
    yield from in_threads(build, missing, usable_cores() if are_local else _REMOTE_SCANS)
    if errors:
        _logger.warning(
            "%d of %d indexes can't be written (%s): they are kept in memory and made again by "
            "every process; give a directory that can be written as index=...",
            len(errors), len(missing), errors[0],
        )  # fmt: skip


def _open_once(urls: Sequence[str], store: IndexStore) -> Iterator[_Found]:
    """Remote shards with their indexes, which one rank of a process group opens for all."""

    def find() -> list[Any]:
        return [
            (shard, header and texts_of(header.to_metadata()), stat)
            for shard, header, stat in _open_indexed(urls, store, num_threads=REMOTE_THREADS)
        ]

    what = f"open {store.directory} {store.accept_unfinished}"
    for shard, texts, stat in found_once(what, urls, store.options, find):
        yield shard, texts and IndexHeader.from_metadata(texts), FileStat(*stat)


def _open_indexed(
    urls: Sequence[str], store: IndexStore, *, num_threads: int = 0
) -> Iterator[_Found]:
    """Shards with their indexes, which are compared with them, and shards without one."""

    def open_range(shards: range) -> list[_Found]:
        found: list[_Found] = []
        for shard in shards:
            url = urls[shard]
            stat = store.stat(url)
            header = store.find(url, stat)
            if header is not None and not store.accept_unfinished:
                require_end(header, url)
            found.append((shard, header, stat))
        return found

    num_shards, start = len(urls), 0
    if not num_threads:
        start = min(_SAMPLE, num_shards)
        began = time.monotonic(), time.thread_time()
        yield from open_range(range(start))
        wall_s, cpu_s = time.monotonic() - began[0], time.thread_time() - began[1]
        waits = wall_s - cpu_s > _MIN_WAIT_SHARE * wall_s
        num_threads = _LOCAL_THREADS if waits else 1
    # Pieces small enough that the threads end together, and errors end them soon.
    step = max(1, min(64, (num_shards - start) // num_threads))
    pieces = [range(at, min(at + step, num_shards)) for at in range(start, num_shards, step)]
    opened: Iterator[list[_Found]] = map(open_range, pieces)
    if num_threads > 1:
        opened = in_threads(open_range, pieces, num_threads)
    yield from chain.from_iterable(opened)
