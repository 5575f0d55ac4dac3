"""Shards that were opened one by one: their indexes' headers as columns, compared with the shards.

Before the first sample is read, every shard is there and is the one that was indexed. Of a header
that is like those before it, only the numbers are kept: 100,000 shards take some 10 MB.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardwise.cores import usable_cores
from shardwise.errors import DataError
from shardwise.parallel import in_threads
from shardwise.shown import in_command, shown, without_query
from shardwise.sources.manifest import narrow
from shardwise.sources.shard_names import ShardNames
from shardwise.sources.tar.index.acceptance import require_end
from shardwise.sources.tar.index.build import index_for
from shardwise.sources.tar.index.index_file import IndexHeader
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import FileStat, is_local

__all__ = ["REMOTE_THREADS", "OpenedShards", "open_shards"]

_logger = logging.getLogger("shardwise")

# Threads that open shards: a network file system waits more than it computes.
_LOCAL_THREADS = 16
# Requests to a store wait longer.
REMOTE_THREADS = 64
# Each remote scan has up to 64 requests in flight itself.
_REMOTE_SCANS = 16
# Local shards that are opened before it is decided whether threads help.
_SAMPLE = 64
# In the page cache, opening a shard computes; threads would only wait for the GIL.
_MIN_WAIT_SHARE = 0.5

# What opening one shard gives: its header, the shard, and an index that could not be saved.
_Opened = tuple[IndexHeader, FileStat, ShardIndex | None]


class OpenedShards:
    """Shards as they were when they were opened. Pickles as narrow columns.

    Attributes:
        urls: `[shards]`.
        sizes: int64 `[shards]`, samples a shard.
        shard_bytes: int64 `[shards]`, bytes a shard.
        fields: the names of all fields that any sample has, in storage order.
        key_lengths: the lengths of keys in shards with samples; None is one of different lengths.
        has_digests: whether a shard has digests of its payloads.
        fingerprint: None: it follows from the shards.
        unsaved: by number, indexes that could not be saved: building them again would scan again.
    """

    fingerprint: str | None = None

    def __init__(self, urls: Sequence[str], opened: Sequence[_Columns], num_shards: int) -> None:
        self.urls = urls
        places = np.concatenate([np.array(each.places, np.int64) for each in opened])
        numbers = np.concatenate([np.array(each.numbers, np.int64) for each in opened])
        columns = np.empty((3, num_shards), np.int64)
        columns[:, places] = numbers.reshape(-1, 3).T
        self.sizes, self.shard_bytes, self._mtimes = columns
        etags = {place: etag for each in opened for place, etag in each.etags.items()}
        self._etags = [etags.get(place, "") for place in range(num_shards)] if etags else None
        self.unsaved = {place: index for each in opened for place, index in each.unsaved.items()}
        # By the first shard that has them: the order of the fields is that of the shards.
        first: dict[tuple[str, ...], int] = {}
        for each in opened:
            for fields, place in each.fields.items():
                first[fields] = min(place, first.get(fields, place))
        ordered = sorted(first, key=first.__getitem__)
        self.fields = tuple(dict.fromkeys(name for fields in ordered for name in fields))
        self.key_lengths = frozenset().union(*(each.key_lengths for each in opened))
        self.has_digests = any(each.has_digests for each in opened)

    def stat(self, shard: int) -> FileStat:
        """A shard as it was opened."""
        etag = "" if self._etags is None else self._etags[shard]
        return FileStat(self.shard_bytes.item(shard), self._mtimes.item(shard), etag)

    def pins(self) -> Iterator[tuple[str, FileStat]]:
        """The shards that a store names a version of, in order."""
        for shard, etag in enumerate(self._etags or ()):
            if etag:
                yield self.urls[shard], self.stat(shard)

    def __getstate__(self) -> dict[str, Any]:
        columns = {"sizes": narrow(self.sizes), "shard_bytes": narrow(self.shard_bytes)}
        return self.__dict__ | columns | {"urls": ShardNames.of(self.urls), "unsaved": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sizes = self.sizes.astype(np.int64)
        self.shard_bytes = self.shard_bytes.astype(np.int64)


class _Columns:
    """What is kept of shards while they are opened: numbers, and what few of them differ in."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.numbers: list[int] = []
        self.etags: dict[int, str] = {}
        self.fields: dict[tuple[str, ...], int] = {}
        self.key_lengths: set[int | None] = set()
        self.has_digests = False
        self.endless: list[int] = []
        self.ignored: Counter[str] = Counter()
        self.missing: list[int] = []
        self.unsaved: dict[int, ShardIndex] = {}

    def add(self, place: int, opened: _Opened) -> None:
        header, stat, index = opened
        self.places.append(place)
        self.numbers += (header.num_samples, stat.num_bytes, stat.mtime_ns)
        if stat.etag:
            self.etags[place] = stat.etag
        self.fields.setdefault(header.fields, place)
        if header.num_samples:
            self.key_lengths.add(header.key_length)
        self.has_digests = self.has_digests or header.has_digests
        if not header.has_end:
            self.endless.append(place)
        if header.ignored:
            self.ignored.update(header.ignored)
        if index is not None:
            self.unsaved[place] = index


def open_shards(urls: Sequence[str], *, store: IndexStore) -> OpenedShards:
    """Load the indexes of shards, compare them with the shards, and build the missing ones.

    Raises:
        MissingShardError: a shard is not there.
        StaleIndexError: a shard is not the one that its index was made from.
        DataError: an index or, where it must be indexed now, a shard is damaged; or a shard has no
            end, and `store` does not accept that.
        ValueError: two URLs name one shard.
        StorageError: something could not be read.
    """
    are_local = all(map(is_local, urls))
    opened = list(_open_indexed(urls, store, are_local=are_local))
    missing = [place for each in opened for place in each.missing]
    if missing:
        num_threads = usable_cores() if are_local else _REMOTE_SCANS
        built = _Columns()
        results = _build([urls[place] for place in missing], len(urls), store, num_threads)
        for place, result in zip(missing, results, strict=True):
            built.add(place, result)
        opened.append(built)
    shards = OpenedShards(urls, opened, len(urls))
    _refuse_nameless(shards, opened)
    _refuse_repeats(shards)
    endless = [urls[place] for each in opened for place in each.endless]
    if endless:
        _logger.warning(
            "%d of %d shards have no end (two blocks of zeros), such as %s: they may have been cut "
            "between two samples; `shardwise verify` says more",
            len(endless), len(urls), shown(endless[0]),
        )  # fmt: skip
    return shards


def _open_indexed(urls: Sequence[str], store: IndexStore, *, are_local: bool) -> Iterator[_Columns]:
    """Shards with their indexes, which are compared with them, and which have none."""

    def open_range(places: range) -> _Columns:
        columns = _Columns()
        for place in places:
            url = urls[place]
            stat = store.stat(url)
            header = store.find(url, stat)
            if header is None:
                columns.missing.append(place)
                continue
            if not store.accept_unfinished:
                require_end(header, url)
            columns.add(place, (header, stat, None))
        return columns

    num_shards, start, num_threads = len(urls), 0, REMOTE_THREADS
    if are_local:
        start = min(_SAMPLE, num_shards)
        began = time.monotonic(), time.thread_time()
        yield open_range(range(start))
        wall_s, cpu_s = time.monotonic() - began[0], time.thread_time() - began[1]
        waits = wall_s - cpu_s > _MIN_WAIT_SHARE * wall_s
        num_threads = _LOCAL_THREADS if waits else 1
    if num_threads == 1:
        yield open_range(range(start, num_shards))
        return
    # Pieces small enough that the threads end together, and errors end them soon.
    step = max(1, min(64, (num_shards - start) // num_threads))
    pieces = [range(at, min(at + step, num_shards)) for at in range(start, num_shards, step)]
    yield from in_threads(open_range, pieces, num_threads)


def _build(
    urls: Sequence[str], num_shards: int, store: IndexStore, num_threads: int
) -> list[_Opened]:
    """Index shards now, in threads: most of the time goes into reading."""
    more = " ..." if len(urls) > 1 else ""
    _logger.warning(
        "%d of %d shards have no index that fits and are indexed now; `%s %s%s` does that ahead of "
        "time",
        len(urls), num_shards, store.command, in_command(urls[0]), more,
    )  # fmt: skip
    errors: list[OSError] = []

    def build(url: str) -> _Opened:
        index = index_for(url, store)
        header = index.header
        stat = FileStat(header.num_bytes, header.mtime_ns, header.etag)
        try:
            store.save(url, index)
        except OSError as error:
            errors.append(error)
            return header, stat, index
        return header, stat, None

    opened = list(in_threads(build, urls, num_threads))
    if errors:
        _logger.warning(
            "%d of %d indexes can't be written (%s): they are kept in memory and made again by "
            "every process; give a directory that can be written as index=...",
            len(errors), len(urls), errors[0],
        )  # fmt: skip
    return opened


def _refuse_nameless(shards: OpenedShards, opened: Sequence[_Columns]) -> None:
    """Raise DataError where there are members, and the name of none gives a field."""
    if shards.sizes.any():
        return
    ignored = sum((each.ignored for each in opened), Counter[str]())
    if ignored["no extension"]:
        left_out = ", ".join(f"{what}: {count}" for what, count in ignored.items())
        raise DataError(
            f"no samples: all members are left out ({left_out}); what follows the first dot of a "
            "member's name is its field, as in '0001.jpg': pack the shards with names of that form",
            url=shards.urls[0],
        )


def _refuse_repeats(shards: OpenedShards) -> None:
    """Raise ValueError where two URLs of one shard differ in their queries, such as signatures."""
    seen: set[tuple[str, str]] = set()
    for url, stat in shards.pins():
        # A query may name the shard, too: then each has an ETag of its own.
        version = (without_query(url), stat.etag)
        if version in seen:
            raise ValueError(
                f"the shard {shown(url)!r} is named twice, with different queries and one ETag "
                f"({stat.etag}): its samples would be read twice an epoch; remove one of the URLs"
            )
        seen.add(version)
