"""The indexes of a dataset's shards: loaded, compared with the shards, built where missing.

Before the first sample is read, every shard is there and is the one that was indexed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from shardwise.cores import usable_cores
from shardwise.errors import DataError, StaleIndexError
from shardwise.shown import shown
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.tar.index.acceptance import described, fits, require_end
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.index_file import IndexHeader
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.read.offset_table import OffsetTable
from shardwise.storage import FileStat, is_local, max_open_files

__all__ = ["ShardSet", "open_shards"]

T = TypeVar("T")

_logger = logging.getLogger("shardwise")

# Threads that open shards: a stat on a network file system waits more than it computes.
_LOCAL_THREADS = 16
# Requests to a store wait longer.
_REMOTE_THREADS = 64
# Each remote scan has up to 64 requests in flight itself.
_REMOTE_SCANS = 16
# Sets of fields whose offset tables are kept, of at most 64 MiB each.
_MAX_TABLES = 4


@dataclass(frozen=True)
class _OpenedShard:
    """One shard as it was when the set was opened.

    Attributes:
        header: its index's header.
        stat: the shard.
        index: the index, where it could not be saved.
    """

    header: IndexHeader
    stat: FileStat
    index: ShardIndex | None = None


class ShardSet:
    """The shards of a dataset with their indexes, which are mapped when they are first used.

    It may be used by any thread and after a fork, and pickles without the indexes: another process
    maps or builds them again, and compares them with the shards as they were opened.

    Attributes:
        manifest: the shards with their counts.
        fields: the names of all fields that any sample has, in storage order.
        has_digests: whether a shard has digests of its payloads.
    """

    def __init__(
        self, urls: Sequence[str], opened: Sequence[_OpenedShard], store: IndexStore
    ) -> None:
        headers = [shard.header for shard in opened]
        self.manifest = Manifest(
            "tar",
            [Shard(u, h.num_samples, h.num_bytes) for u, h in zip(urls, headers, strict=True)],
        )
        self.fields = tuple(dict.fromkeys(field for h in headers for field in h.fields))
        self._field_set = frozenset(self.fields)
        self._ends = list(accumulate(h.num_samples for h in headers))
        self._stats = [shard.stat for shard in opened]
        self._store = store
        self._checked: set[int] = set()
        self._mapped: dict[int, ShardIndex] = {}
        self._tables: dict[tuple[str, ...], OffsetTable | None] = {}
        key_lengths = {h.key_length for h in headers if h.num_samples}
        self._key_length = key_lengths.pop() if len(key_lengths) == 1 else None
        self.has_digests = any(h.has_digests for h in headers)
        # Indexes that could not be saved: building them again would scan the shards again.
        self._unsaved = {i: shard.index for i, shard in enumerate(opened) if shard.index}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_checked": set(), "_mapped": {}, "_unsaved": {}, "_tables": {}}

    def pins(self) -> Iterator[tuple[str, FileStat]]:
        """The URL of each remote shard, and the version that the indexes are of."""
        for shard, stat in zip(self.manifest.shards, self._stats, strict=True):
            if not is_local(shard.url):
                yield shard.url, stat

    def has_fields(self, names: tuple[str, ...]) -> bool:
        """Whether some sample has each of these fields."""
        return self._field_set.issuperset(names)

    def locate(self, sample: int) -> tuple[int, int]:
        """The shard and row of one sample, by its id: as `Manifest.locate`, for single reads."""
        shard = bisect_right(self._ends, sample)
        return shard, sample - (self._ends[shard - 1] if shard else 0)

    def index(self, shard: int) -> ShardIndex:
        """The index of one shard, by its number.

        Raises:
            StaleIndexError: the shard or its index is not the one that was opened.
            DataError: the index is damaged.
        """
        index = self._mapped.get(shard)
        if index is None:
            index = self._unsaved.get(shard)
        return self._load(shard) if index is None else index

    def offset_table(self, names: tuple[str, ...]) -> OffsetTable | None:
        """Where these fields of all samples lie; None where it would exceed 64 MiB."""
        if names not in self._tables:
            fits = OffsetTable.fit(self.manifest, len(names), self._key_length)
            while len(self._tables) >= _MAX_TABLES:
                self._tables.pop(next(iter(self._tables)), None)
            self._tables[names] = (
                OffsetTable(self.manifest, names, index=self.index, key_length=self._key_length)
                if fits
                else None
            )
        return self._tables[names]

    def _load(self, shard: int) -> ShardIndex:
        listed = self.manifest.shards[shard]
        opened = self._stats[shard]
        index = self._store.load(listed.url, opened, check=shard not in self._checked)
        if index is None:
            # It could not be saved, or was removed since.
            index = self._unsaved[shard] = build_index(
                listed.url,
                options=self._store.options,
                accept_unfinished=self._store.accept_unfinished,
            )
        else:
            while len(self._mapped) >= max_open_files():
                # With a default: another thread may evict the same index.
                self._mapped.pop(next(iter(self._mapped)), None)
            self._mapped[shard] = index
        # With an ETag, each read is pinned to the opened version.
        now = opened if opened.etag else self._store.stat(listed.url)
        has_changed = now != opened or not fits(index.header, listed.url, opened)
        if has_changed or index.num_samples != listed.num_samples:
            self._mapped.pop(shard, None)
            self._unsaved.pop(shard, None)
            raise StaleIndexError(
                f"the shard was replaced while it was in use: {described(opened)} and "
                f"{listed.num_samples} samples when it was opened, {described(now)} and "
                f"{index.num_samples} samples now; open the dataset again",
                url=listed.url,
            )
        self._checked.add(shard)
        return index


def open_shards(urls: Sequence[str], *, store: IndexStore) -> ShardSet:
    """Load the indexes of shards, compare them with the shards, and build the missing ones.

    Args:
        urls: the shards.
        store: where the indexes are.

    Raises:
        MissingShardError: a shard is not there.
        StaleIndexError: a shard is not the one that its index was made from.
        DataError: an index or, where it must be indexed now, a shard is damaged; or a shard has no
            end, and `store` does not accept that.
        StorageError: something could not be read.
    """
    are_local = all(is_local(url) for url in urls)
    num_threads = _LOCAL_THREADS if are_local else _REMOTE_THREADS
    indexed = _in_threads(lambda url: _open_indexed(url, store), urls, num_threads)
    missing = [url for url, shard in zip(urls, indexed, strict=True) if shard is None]
    num_threads = usable_cores() if are_local else _REMOTE_SCANS
    built = iter(_build(missing, len(urls), store, num_threads) if missing else ())
    opened = [next(built) if shard is None else shard for shard in indexed]
    headers = [shard.header for shard in opened]
    _refuse_nameless(urls, headers)
    _warn_of_no_end(urls, headers)
    return ShardSet(urls, opened, store)


def _in_threads(work: Callable[[str], T], urls: Sequence[str], num_threads: int) -> list[T]:
    """Call a function with each URL, in threads; the first error ends it."""
    pool = ThreadPoolExecutor(min(num_threads, len(urls)), thread_name_prefix="shardwise-open")
    try:
        return list(pool.map(work, urls))
    finally:
        # An error cancels the shards that have not begun, instead of waiting for them.
        pool.shutdown(cancel_futures=True)


def _refuse_nameless(urls: Sequence[str], headers: Sequence[IndexHeader]) -> None:
    """Raise DataError where there are members, and the name of none gives a field."""
    if any(header.num_samples for header in headers):
        return
    ignored = sum((Counter(header.ignored) for header in headers), Counter[str]())
    if ignored["no extension"]:
        left_out = ", ".join(f"{what}: {count}" for what, count in ignored.items())
        raise DataError(
            f"no samples: all members are left out ({left_out}); what follows the first dot of a "
            "member's name is its field, as in '0001.jpg': pack the shards with names of that form",
            url=urls[0],
        )


def _warn_of_no_end(urls: Sequence[str], headers: Sequence[IndexHeader]) -> None:
    endless = [url for url, header in zip(urls, headers, strict=True) if not header.has_end]
    if endless:
        _logger.warning(
            "%d of %d shards have no end (two blocks of zeros), such as %s: they may have been cut "
            "between two samples; `shardwise verify` says more",
            len(endless), len(urls), shown(endless[0]),
        )  # fmt: skip


def _open_indexed(url: str, store: IndexStore) -> _OpenedShard | None:
    """A shard with its index, which is compared with it; None where it has none."""
    stat = store.stat(url)
    header = store.find(url, stat)
    if header is None:
        return None
    if not store.accept_unfinished:
        require_end(header, url)
    return _OpenedShard(header, stat)


def _build(
    urls: Sequence[str], num_shards: int, store: IndexStore, num_threads: int
) -> list[_OpenedShard]:
    """Index shards now, in threads: most of the time goes into reading."""
    more = " ..." if len(urls) > 1 else ""
    _logger.warning(
        "%d of %d shards have no index that fits and are indexed now; `%s %s%s` does that ahead of "
        "time",
        len(urls), num_shards, store.command, shown(urls[0]), more,
    )  # fmt: skip
    errors: list[OSError] = []

    def build(url: str) -> _OpenedShard:
        index = build_index(url, options=store.options, accept_unfinished=store.accept_unfinished)
        header = index.header
        stat = FileStat(header.num_bytes, header.mtime_ns, header.etag)
        try:
            store.save(url, index)
        except OSError as error:
            errors.append(error)
            return _OpenedShard(header, stat, index)
        return _OpenedShard(header, stat)

    opened = _in_threads(build, urls, num_threads)
    if errors:
        _logger.warning(
            "%d of %d indexes can't be written (%s): they are kept in memory and made again by "
            "every process; give a directory that can be written as index=...",
            len(errors), len(urls), errors[0],
        )  # fmt: skip
    return opened
