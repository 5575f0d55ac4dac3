"""The indexes of a dataset's shards: found, held against the shards, made where there are none.

Keeps I6: before the first sample is read, every shard is there and is the one that was indexed.
Imports the standard library, numpy, `shardwise.errors`, `shardwise.storage`, the manifest and this
package.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from shardwise.errors import DataError, StaleIndexError, StorageError
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.tar.build import build_index, save_index, usable_cores
from shardwise.sources.tar.index import ShardIndex, index_path
from shardwise.sources.tar.index_file import IndexHeader, read_header
from shardwise.storage import FileStat, LocalFile, local_path, max_open_files

__all__ = ["ShardSet", "open_shards"]

_logger = logging.getLogger("shardwise")

# Looking at files on a network waits more than it works.
_LOOK_THREADS = 16


@dataclass(frozen=True)
class _Found:
    """What was found of one shard: its index's header, and the index where it has no file."""

    header: IndexHeader
    index: ShardIndex | None = None


class ShardSet:
    """The shards of a dataset with their indexes, which are mapped when they are first used.

    It may be used by any thread and after a fork, and pickles without the indexes: another process
    maps or makes them again, and holds them against what was found here.

    Attributes:
        manifest: the shards with their counts.
        fields: the names of all fields that any sample has, in storage order.
    """

    def __init__(self, urls: Sequence[str], found: Sequence[_Found], index_dir: str | None) -> None:
        headers = [one.header for one in found]
        self.manifest = Manifest(
            "tar",
            [Shard(u, h.num_samples, h.num_bytes) for u, h in zip(urls, headers, strict=True)],
        )
        self.fields = tuple(dict.fromkeys(field for h in headers for field in h.fields))
        self._field_set = frozenset(self.fields)
        self._ends = list(accumulate(h.num_samples for h in headers))
        self._times = [h.mtime_ns for h in headers]
        self._index_dir = index_dir
        self._checked: set[int] = set()
        self._mapped: dict[int, ShardIndex] = {}
        # Those that could not be saved: they stay, for making them again takes long.
        self._kept = {i: one.index for i, one in enumerate(found) if one.index is not None}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_checked": set(), "_mapped": {}, "_kept": {}}

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return self.manifest.num_samples

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
            StaleIndexError: the shard or its index is not the one found when the set was opened.
            DataError: the index is damaged.
        """
        found = self._mapped.get(shard)
        if found is None:
            found = self._kept.get(shard)
        return self._load(shard) if found is None else found

    def _load(self, shard: int) -> ShardIndex:
        listed = self.manifest.shards[shard]
        path = index_path(listed.url, self._index_dir)
        try:
            index = ShardIndex.load(path, check=shard not in self._checked)
        except OSError:
            # It could not be saved, or was removed since.
            index = self._kept[shard] = build_index(listed.url)
        else:
            while len(self._mapped) >= max_open_files():
                # Another thread may be at the same: whichever comes first.
                self._mapped.pop(next(iter(self._mapped)), None)
            self._mapped[shard] = index
        now = LocalFile(local_path(listed.url)).stat()
        opened = FileStat(listed.num_bytes, self._times[shard])
        if now != opened or index.num_samples != listed.num_samples:
            self._mapped.pop(shard, None)
            self._kept.pop(shard, None)
            raise StaleIndexError(
                f"the shard was replaced while it was in use: {_described(opened)} and "
                f"{listed.num_samples} samples when it was opened, {_described(now)} and "
                f"{index.num_samples} samples now; open the dataset again",
                url=listed.url,
            )
        self._checked.add(shard)
        return index


def open_shards(urls: Sequence[str], *, index_dir: str | None) -> ShardSet:
    """Find the indexes of shards, hold them against the shards, and make those that are missing.

    Args:
        urls: the shards.
        index_dir: the directory of the index files; None for beside the shards.

    Raises:
        MissingShardError: a shard is not there.
        StaleIndexError: a shard is not the one that its index was made from.
        DataError: an index or, where it must be indexed now, a shard is damaged.
        StorageError: something could not be read.
    """
    with ThreadPoolExecutor(min(_LOOK_THREADS, len(urls))) as pool:
        headers = list(pool.map(lambda url: _look(url, index_dir), urls))
    missing = [url for url, header in zip(urls, headers, strict=True) if header is None]
    made = iter(_make(missing, len(urls), index_dir) if missing else ())
    found = [next(made) if header is None else _Found(header) for header in headers]
    _say_what_has_no_end(urls, [one.header for one in found])
    return ShardSet(urls, found, index_dir)


def _say_what_has_no_end(urls: Sequence[str], headers: Sequence[IndexHeader]) -> None:
    endless = [url for url, header in zip(urls, headers, strict=True) if not header.has_end]
    if endless:
        _logger.warning(
            "%d of %d shards have no end (two blocks of zeros), such as %s: they may have been cut "
            "between two samples; `shardwise verify` says more",
            len(endless), len(urls), endless[0],
        )  # fmt: skip


def _look(url: str, index_dir: str | None) -> IndexHeader | None:
    """The header of a shard's index if it has one, held against the shard."""
    path = index_path(url, index_dir)
    now = LocalFile(local_path(url)).stat()
    try:
        header = read_header(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if isinstance(error, DataError):
            raise
        raise StorageError(f"can't read the index {path!r}: {error.strerror}") from error
    indexed = FileStat(header.num_bytes, header.mtime_ns)
    if now != indexed:
        raise StaleIndexError(
            f"the shard has changed since it was indexed: {_described(indexed)} then, "
            f"{_described(now)} now; bring the index up to date with "
            f"`{_command(index_dir)} {url}`",
            url=url,
        )
    return header


def _make(urls: Sequence[str], num_shards: int, index_dir: str | None) -> list[_Found]:
    """Index shards now, in threads: most of the time goes into reading."""
    more = " ..." if len(urls) > 1 else ""
    _logger.warning(
        "%d of %d shards have no index and are indexed now; `%s %s%s` does that ahead of time",
        len(urls), num_shards, _command(index_dir), urls[0], more,
    )  # fmt: skip
    unsaved: list[OSError] = []
    lock = threading.Lock()

    def make(url: str) -> _Found:
        index = build_index(url)
        path = index_path(url, index_dir)
        try:
            save_index(index, path)
        except OSError as error:
            with lock:
                unsaved.append(error)
            return _Found(index.header, index)
        return _Found(index.header)

    with ThreadPoolExecutor(min(usable_cores(), len(urls))) as pool:
        found = list(pool.map(make, urls))
    if unsaved:
        _logger.warning(
            "%d of %d indexes can't be written (%s): they are kept in memory and made again by "
            "every process; give a directory that can be written as index=...",
            len(unsaved), len(urls), unsaved[0],
        )  # fmt: skip
    return found


def _command(index_dir: str | None) -> str:
    return "shardwise index" + ("" if index_dir is None else f" --index {index_dir}")


def _described(stat: FileStat) -> str:
    return f"{stat.num_bytes} bytes, changed at {stat.mtime_ns} ns"
