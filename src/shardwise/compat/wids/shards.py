"""One shard of wids: its samples by number; and the shards that were used last.

Local shards are read where they lie. What a list says of a shard is held against it when it is
opened (I6). Any thread may read; after a fork the child opens its own.
"""

from __future__ import annotations

import hashlib
import io
import operator
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from shardwise.compat.wids.names import DefaultLocalname
from shardwise.compat.wids.wids_dl import fetch
from shardwise.compat.wids.wids_lru import LRUCache
from shardwise.errors import DataError, MissingShardError
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.shard_lists import ListedShard, check_counts
from shardwise.sources.tar.source import TarSource
from shardwise.storage import is_local, local_path


def compute_file_md5sum(fname: str | Path | BinaryIO, chunksize: int = 1 << 20) -> str:
    """The MD5 of a file or open stream as 32 hex digits; a stream is read from its beginning."""
    if not isinstance(fname, str | Path):
        fname.seek(0)
        return _digest(fname, chunksize)
    with open(fname, "rb") as file:
        return _digest(file, chunksize)


def _digest(file: BinaryIO, chunksize: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := file.read(chunksize):
        digest.update(chunk)
    return digest.hexdigest()


def samples_of(source: TarSource, ids: list[int]) -> list[dict[str, Any]]:
    """Samples as wids has them: ".jpg" and so on, each a stream of bytes, and "__key__"."""
    columns = source.read(np.array(ids, dtype=np.int64))
    samples: list[dict[str, Any]] = [{} for _ in ids]
    for name, column in columns.fields.items():
        for sample, payload in zip(samples, column, strict=True):
            if payload is not None:
                sample[f".{name}"] = io.BytesIO(payload)
    for sample, key in zip(samples, columns.keys, strict=True):
        sample["__key__"] = key
    return samples


class IndexedTarSamples:
    """The samples of one tar file, by number; negative numbers count from the end.

    A sample is a dict: a stream of bytes a field, named by the extension with its dot (in lower
    case), and "__key__". `md5sum` and `expected_size` are held against the file; `use_mmap` and
    `index_file` have no effect.

    Attributes:
        path: the file or URL.
        source: what it is read through, and maybe other shards too.
        first: the number of its first sample there.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        stream: Any = None,
        md5sum: str | None = None,
        expected_size: int | None = None,
        use_mmap: bool = True,  # noqa: ARG002 - see the docstring
        index_file: Any = None,  # noqa: ARG002
    ) -> None:
        if path is None:
            path = getattr(stream, "name", None)
            if not isinstance(path, str):
                raise TypeError("give path=, or a stream= that is a file with a name")
        path = local_path(path)
        if md5sum is not None and (digest := compute_file_md5sum(path)) != md5sum:
            raise DataError(f"the MD5 is {digest}, not {md5sum}", url=path)
        source = TarSource([path], accept_unfinished=True)
        self._use(path, source, 0, source.manifest.num_samples)
        if expected_size is not None and expected_size != len(self):
            raise DataError(
                f"the shard has {len(self)} samples, not {expected_size}: it was cut or "
                "changed, or its list is wrong",
                url=path,
            )

    @classmethod
    def all_of(cls, source: TarSource) -> list[Self]:
        """The shards of an open source, one by one."""
        shards = []
        first = 0
        for shard in source.manifest.shards:
            samples = cls.__new__(cls)
            samples._use(shard.url, source, first, shard.num_samples)
            shards.append(samples)
            first += shard.num_samples
        return shards

    def _use(self, path: str, source: TarSource, first: int, length: int) -> None:
        self.path = path
        self.source = source
        self.first = first
        self._length = length
        self._fields = tuple(f".{field}" for field in source.fields)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, idx: int) -> dict[str, Any]:
        row = operator.index(idx)
        if not -self._length <= row < self._length:
            raise IndexError(f"sample {row} of {self._length} in {self.path!r}")
        number = self.first + row % self._length
        found = self.source.read_sample(number)
        if found is None:
            # It takes several reads, or something is wrong, which these say.
            return samples_of(self.source, [number])[0]
        key, payloads = found
        sample: dict[str, Any] = {
            field: io.BytesIO(payload)
            for field, payload in zip(self._fields, payloads, strict=True)
            if payload is not None
        }
        sample["__key__"] = key
        return sample

    def __repr__(self) -> str:
        return f"<IndexedTarSamples {self.path} {self._length} samples>"

    def close(self) -> None:
        """Nothing: files are closed with their last reader."""


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
    """How many samples a local shard holds."""
    return len(IndexedTarSamples(path=fname))


def open_copy(
    url: str, path: str, *, num_bytes: int | None = None, num_samples: int | None = None
) -> IndexedTarSamples:
    """A remote shard by way of a copy, which is made unless it is there."""
    fetch(url, path, num_bytes=num_bytes)
    # Ahead of time and silently: the copy is new, and has no index yet.
    (result,) = build_indexes([path], jobs=1, accept_unfinished=True)
    if result.error is not None:
        raise result.error
    return IndexedTarSamples(path=path, expected_size=num_samples)


class LRUShards:
    """The shards that were used last, opened; remote ones are copied here first.

    Args:
        lru_size: shards that stay open.
        keep: whether copies stay when others need their room.
        localname: gives the path of the copy of a remote shard.
        opener: opens a shard, given its URL; None for one by one, as `localname` says.
        ready: gives a shard that is open already, given its URL, else None; it must not wait.

    Attributes:
        accesses: calls of `get_shard` in this process.
        misses: those that had to open the shard.
        last_missed: whether the last one was such.
    """

    def __init__(
        self,
        lru_size: int,
        keep: bool = False,
        localname: Callable[[str], str] | None = None,
        *,
        opener: Callable[[str], IndexedTarSamples] | None = None,
        ready: Callable[[str], IndexedTarSamples | None] | None = None,
    ) -> None:
        self.localname = DefaultLocalname() if localname is None else localname
        self.keep = keep
        self.lru = LRUCache(lru_size)
        self._opener = opener
        self._ready = ready
        self._locks = _Locks()
        self.reset_stats()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"lru": LRUCache(self.lru.capacity), "_locks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state | {"_locks": _Locks()}
        self.reset_stats()

    def __len__(self) -> int:
        return len(self.lru)

    def reset_stats(self) -> None:
        """Count from 0 again."""
        self.accesses = 0
        self.misses = 0
        self.last_missed = False

    def clear(self) -> None:
        """Let go of all shards; copies stay where they are."""
        with self._own_locks().lock:
            self.lru.clear()

    def get_shard(self, url: str) -> IndexedTarSamples:
        """The opened shard of a URL."""
        locks = self._own_locks()
        shard = self._open_shard(locks, url, counts=True)
        if shard is not None:
            return shard
        # One thread opens it; only threads that need the same shard wait.
        with locks.openings[url]:
            shard = self._open_shard(locks, url, counts=False)
            if shard is None:
                shard = self._open(url)
                with locks.lock:
                    self.lru[url] = shard
        return shard

    def _open_shard(self, locks: _Locks, url: str, *, counts: bool) -> IndexedTarSamples | None:
        """The shard, if it is open."""
        with locks.lock:
            shard: IndexedTarSamples | None = self.lru[url]
            if counts:
                self.accesses += 1
                self.misses += shard is None
                self.last_missed = shard is None
            if shard is None and self._ready is not None:
                shard = self._ready(url)
                if shard is not None:
                    self.lru[url] = shard
            if shard is None:
                locks.openings[url]  # made under the lock, for one thread or many
        return shard

    def _open(self, url: str) -> IndexedTarSamples:
        if self._opener is not None:
            return self._opener(url)
        return IndexedTarSamples(path=url) if is_local(url) else open_copy(url, self.localname(url))

    def _own_locks(self) -> _Locks:
        if self._locks.pid != os.getpid():
            # Locks that another thread held at the fork would never be free here.
            # What the parent reads remote shards by may not work here either.
            self._locks = _Locks()
            self.lru = LRUCache(self.lru.capacity)
        return self._locks


class _Locks:
    """The locks of one process."""

    __slots__ = ("lock", "openings", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.openings: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


class LocalShards:
    """The shards of a list that lie on this machine: one source, opened at the first use."""

    def __init__(self, shards: Sequence[Mapping[str, Any]]) -> None:
        self.shards = shards
        self._urls = frozenset(shard["url"] for shard in shards)
        self._parts: dict[str, IndexedTarSamples] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_parts": None}

    def holds(self, url: str) -> bool:
        """Whether a URL is one of them."""
        return url in self._urls

    def ready(self, url: str) -> IndexedTarSamples | None:
        """The shard of a URL, if they are open."""
        return None if self._parts is None else self._parts.get(url)

    def open(self, url: str) -> IndexedTarSamples:
        """The shard of a URL; opens all of them."""
        return self._opened()[url]

    def read(self, places: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """Samples by (url, row), read together."""
        parts = self._opened()
        source = next(iter(parts.values())).source
        return samples_of(source, [parts[url].first + row for url, row in places])

    def close(self) -> None:
        """Let go of them; they are opened again when they are used."""
        self._parts = None

    def _opened(self) -> dict[str, IndexedTarSamples]:
        # Two threads may both open them: one set stays, and what it costs is kept in the indexes.
        parts = self._parts
        if parts is None:
            paths = [local_path(shard["url"]) for shard in self.shards]
            source = TarSource(paths, accept_unfinished=True)
            if source.urls != paths:
                missing = next(p for p in paths if p not in source.urls)
                raise MissingShardError("the list names a shard that is not there", url=missing)
            claims = [
                ListedShard(path, shard["nsamples"], shard.get("filesize"))
                for path, shard in zip(paths, self.shards, strict=True)
            ]
            check_counts(claims, source.manifest.shards)
            urls = [shard["url"] for shard in self.shards]
            parts = self._parts = dict(zip(urls, IndexedTarSamples.all_of(source), strict=True))
        return parts
