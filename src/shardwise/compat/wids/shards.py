"""One shard of wids: its samples by number; and the shards that were used last.

A shard is checked against its entry in the list when it is opened (I6). Any thread may read; after
a fork the child opens its own.
"""

from __future__ import annotations

import hashlib
import io
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from hashlib import md5
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeAlias

import numpy as np

from shardwise.base.errors import DataError, MissingShardError
from shardwise.compat.wids.wids_dl import DefaultLocalname, fetch
from shardwise.compat.wids.wids_lru import LRUCache
from shardwise.sources.per_process import MadeOnce, PerProcess
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.shard_lists import ListedShard, check_counts
from shardwise.sources.tar.source import TarSource
from shardwise.storage import is_local, local_path


def compute_file_md5sum(fname: Any) -> str:
    """The MD5 of a path or open stream as 32 hex digits; a stream is read from its start."""
    with open(fname, "rb") if isinstance(fname, str | Path) else nullcontext(fname) as file:
        file.seek(0)
        # Against accidents, not against attacks.
        return hashlib.file_digest(file, partial(md5, usedforsecurity=False)).hexdigest()


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

    A sample is a dict: a stream of bytes per field, named by the extension with its dot (in lower
    case), and "__key__". `md5sum` and `expected_size` are held against the file; `use_mmap` and
    `index_file` have no effect.
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
        # It may hold other shards too: `first` is the number of this one's first sample.
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
        sample: dict[str, Any] = {}
        for name, payload in zip(self._fields, payloads, strict=True):
            if payload is not None:
                sample[name] = io.BytesIO(payload)
        sample["__key__"] = key
        return sample

    def __repr__(self) -> str:
        return f"<IndexedTarSamples {self.path} {self._length} samples>"

    def close(self) -> None:
        """Do nothing: files are closed with their last reader."""


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
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


def open_local(shards: Iterable[Mapping[str, Any]]) -> dict[str, IndexedTarSamples]:
    """The local shards of a list by URL, as parts of one source; each must match its entry."""
    listed = {shard["url"]: shard for shard in shards}
    paths = list(map(local_path, listed))
    source = TarSource(paths, accept_unfinished=True)
    for path in set(paths).difference(source.urls):
        raise MissingShardError("the list names a shard that is not there", url=path)
    claims = [
        ListedShard(path, shard["nsamples"], shard.get("filesize"))
        for path, shard in zip(paths, listed.values(), strict=True)
    ]
    check_counts(claims, source.manifest.shards)
    return dict(zip(listed, IndexedTarSamples.all_of(source), strict=True))


# The open shards of a process, those that are being opened, and the lock of both.
_Opened: TypeAlias = tuple[LRUCache, dict[str, MadeOnce[IndexedTarSamples]], Lock]


class LRUShards:
    """The `lru_size` shards used last, opened; remote ones are copied to `localname(url)`."""

    def __init__(
        self,
        lru_size: int,
        keep: bool = False,
        localname: Callable[[str], str] | None = None,
        *,
        opener: Callable[[str], IndexedTarSamples] | None = None,
    ) -> None:
        self.localname = DefaultLocalname() if localname is None else localname
        self.keep = keep
        self.lru_size = lru_size
        self._opener = opener or self._open_one
        # The parent's reader of remote shards may not work in a forked child.
        self._opened: PerProcess[_Opened] = PerProcess()
        self.reset_stats()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"accesses": 0, "misses": 0, "last_missed": False}

    @property
    def _here(self) -> _Opened:
        return self._opened.get(lambda: (LRUCache(self.lru_size), {}, Lock()))

    @property
    def lru(self) -> LRUCache:
        return self._here[0]

    def __len__(self) -> int:
        return len(self.lru)

    def reset_stats(self) -> None:
        """Reset the counts of `get_shard` calls in this process and of opened shards."""
        self.accesses = 0
        self.misses = 0
        self.last_missed = False

    def clear(self) -> None:
        """Release all shards; copies stay where they are."""
        lru, _, lock = self._here
        with lock:
            lru.clear()

    def get_shard(self, url: str) -> IndexedTarSamples:
        lru, openings, lock = self._here
        with lock:
            shard: IndexedTarSamples | None = lru[url]
            self.accesses += 1
            self.last_missed = shard is None
            if shard is not None:
                return shard
            self.misses += 1
            opening = openings.setdefault(url, MadeOnce())
        # One thread opens it; only threads that need the same shard wait.
        shard = opening.get(lambda: self._opener(url))
        with lock:
            lru[url] = shard
            openings.pop(url, None)
        return shard

    def _open_one(self, url: str) -> IndexedTarSamples:
        return IndexedTarSamples(path=url) if is_local(url) else open_copy(url, self.localname(url))
