# ruff: noqa: F403, F405 - the names of the other modules are this module's, too, as in wids
"""wids' `ShardListDataset`: samples of a list of shards, by number, in any order.

Local shards are read where they are, through one tar source for all of them. Remote ones are read
by byte ranges and kept in the cache directory, or copied to the path that `localname` gives. Any
thread may read, and the dataset pickles without open files.
"""

from __future__ import annotations

import copy
import logging
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import IO, Any, Self, TypeVar, cast

import numpy as np
import torch.utils.data

from shardwise.compat.environment import wids_cache_dir
from shardwise.compat.wids.gone import finder
from shardwise.compat.wids.samplers import *
from shardwise.compat.wids.shards import *
from shardwise.compat.wids.wids_decode import default_decoder
from shardwise.compat.wids.wids_dl import *
from shardwise.compat.wids.wids_specs import *
from shardwise.compat.wids.wids_tar import *
from shardwise.dataset.formats import tar
from shardwise.extensions.remote.requests.event_loop import is_cut_off
from shardwise.sources.per_process import MadeOnce
from shardwise.sources.tar.index.shard_lists import ListedShard, check_counts
from shardwise.sources.tar.source import TarSource
from shardwise.storage import is_local
from shardwise.storage.options import CacheSettings

__getattr__ = finder(__name__)

_logger = logging.getLogger("shardwise")

T_co = TypeVar("T_co", covariant=True)
Transformation = Callable[[dict[str, Any]], Any]

# Warn after 100 accesses if more than 30 % were misses.
_MANY_ACCESSES, _MANY_MISSES = 100, 0.3
# More bytes than any disk has.
_UNBOUNDED = 1 << 60


class ShardListDataset(torch.utils.data.Dataset[T_co]):
    """Samples of a list of shards, by number; negative numbers count from the end.

    A sample is a dict: a stream of bytes for each extension with its dot (".jpg"), "__key__", and
    where it comes from: "__dataset__", "__index__", "__shard__" (the URL) and "__shardindex__" (its
    number there).

    Args:
        shards: a list of dicts with "url" and "nsamples", the path or URL of an index in JSON, or
            an open index.
        cache_size: most bytes of remote shards that are kept in the cache directory.
        cache_dir: the cache directory of remote shards; None for `WIDS_CACHE` or the user's own.
        lru_size: remote shards that stay open.
        dataset_name: a name for a list; an index has its own.
        localname: copies remote shards whole, to the path that it gives for their URL, in place of
            the cache. Forked processes make such copies in the cache directory, if the one that
            they come from has read remote data.
        transformations: "PIL" and "numpy" decode by extension; a callable, or a list of them; None
            for none. Each gets what the one before gave.
        keep: keep what is cached, regardless of `cache_size`.
        base: what relative URLs are relative to.
        options: entries that override the index's own.

    Raises:
        DataError: the list is malformed. When shards are opened: one is damaged, or differs
            from the list in its number of samples or bytes.
        MissingShardError: the index, or a shard when it is opened, is not there.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | IO[Any] | Sequence[dict[str, Any]],
        *,
        cache_size: int = 10**12,
        cache_dir: str | None = None,
        lru_size: int = 10,
        dataset_name: str | None = None,
        localname: Callable[[str], str] | None = None,
        transformations: Any = "PIL",
        keep: bool = False,
        base: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        if isinstance(shards, os.PathLike):
            shards = os.fspath(shards)
        if isinstance(shards, str) or hasattr(shards, "read"):
            self.spec = load_dsdesc_and_resolve(
                cast(str | IO[Any], shards), options=options, base=base
            )
            self.shards: list[dict[str, Any]] = self.spec["shardlist"]
            name = self.spec.get("name")
        else:
            self.spec = dict(options or {})
            self.shards = rebase_shardlist(check_shards(copy.copy(shards)), base)
            name = dataset_name
        self.dataset_name = name or hash_dataset_name(str(shards))
        self.lengths: list[int] = [int(shard["nsamples"]) for shard in self.shards]
        self._ends = list(accumulate(self.lengths))
        self.cum_lengths = np.array(self._ends, dtype=np.int64)
        self.total_length = self._ends[-1] if self._ends else 0
        self.cache_dir = cache_dir if localname is None else None
        self.cache_size = cache_size
        self.keep = keep
        self.localname = localname or CacheLocalname(cache_dir or wids_cache_dir())
        self._copies = localname is not None
        self.transformations = interpret_transformations(transformations)
        self._urls = {shard["url"]: shard for shard in self.shards}
        self._local = {url: shard for url, shard in self._urls.items() if is_local(url)}
        self._local_shards: MadeOnce[dict[str, IndexedTarSamples]] = MadeOnce()
        self.cache = LRUShards(lru_size, keep=keep, localname=self.localname, opener=self._open)
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_local_shards": MadeOnce()}

    def __len__(self) -> int:
        return self.total_length

    def add_transform(self, transform: Transformation) -> Self:
        self.transformations.append(transform)
        return self

    def get_stats(self) -> tuple[int, int]:
        """The numbers of shard accesses in this process and of opened shards."""
        return self.cache.accesses, self.cache.misses

    def check_cache_misses(self) -> None:
        accesses, misses = self.get_stats()
        is_costly = len(self._local) < len(self._urls) and not self._has_warned
        if is_costly and accesses > _MANY_ACCESSES and misses > _MANY_MISSES * accesses:
            self._has_warned = True
            _logger.warning(
                "%d of %d accesses had to open a remote shard: take a sampler that reads chunks, "
                "or raise lru_size=%d",
                misses, accesses, self.cache.lru_size,
            )  # fmt: skip

    def get_shard(self, index: int) -> tuple[IndexedTarSamples, int, dict[str, Any]]:
        """The opened shard of a sample, the sample's number there, and the shard's entry."""
        row, desc = self._locate(self._check_index(index))
        return self.cache.get_shard(desc["url"]), row, desc

    def __getitem__(self, index: int) -> T_co:
        index = self._check_index(index)
        shard, row, desc = self.get_shard(index)
        if desc["url"] not in self._local:
            self.check_cache_misses()
        return self._map_item(shard[row], index, row, desc)

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """Samples by number, read together where all are local; torch calls this for a batch."""
        numbers = [self._check_index(index) for index in indices]
        found = [self._locate(number) for number in numbers]
        # A subclass may do more in its own __getitem__.
        is_own = type(self).__getitem__ is not ShardListDataset.__getitem__
        if is_own or not numbers or not all(desc["url"] in self._local for _, desc in found):
            return [self[number] for number in numbers]
        shards = [self.cache.get_shard(desc["url"]) for _, desc in found]
        rows = [shard.first + row for shard, (row, _) in zip(shards, found, strict=True)]
        samples = samples_of(shards[0].source, rows)
        return [
            self._map_item(sample, number, row, desc)
            for sample, number, (row, desc) in zip(samples, numbers, found, strict=True)
        ]

    def close(self) -> None:
        self.cache.clear()
        self._local_shards = MadeOnce()

    def _check_index(self, index: int) -> int:
        number = operator.index(index)
        if not -self.total_length <= number < self.total_length:
            raise IndexError(f"sample {number} of {self.total_length}")
        return number % self.total_length

    def _locate(self, index: int) -> tuple[int, dict[str, Any]]:
        number = bisect_right(self._ends, index)
        return index - (self._ends[number] - self.lengths[number]), self.shards[number]

    def _map_item(self, sample: dict[str, Any], index: int, row: int, desc: dict[str, Any]) -> T_co:
        sample["__dataset__"] = desc.get("dataset")
        sample["__index__"] = index
        sample["__shard__"] = desc["url"]
        sample["__shardindex__"] = row
        for transform in self.transformations:
            sample = transform(sample)
        # The user declares the type that the last transformation returns.
        return cast(T_co, sample)

    def _open(self, url: str) -> IndexedTarSamples:
        if url in self._local:
            return self._local_shards.get(lambda: open_local(self._local.values()))[url]
        desc = self._urls[url]
        num_bytes = desc.get("filesize")
        # Ranges can't be read in a process that was forked from one that has read some.
        if self._copies or is_cut_off():
            path = self.localname(url)
            return open_copy(url, path, num_bytes=num_bytes, num_samples=desc["nsamples"])
        cache = CacheSettings(
            self.cache_dir or wids_cache_dir(),
            max_bytes=_UNBOUNDED if self.keep else int(self.cache_size),
        )
        source = tar([url], cache=cache).source
        assert isinstance(source, TarSource)
        check_counts([ListedShard(url, desc["nsamples"], num_bytes)], source.manifest.shards)
        return IndexedTarSamples.all_of(source)[0]


def interpret_transformations(transformations: Any) -> list[Transformation]:
    if transformations is None:
        return []
    if isinstance(transformations, str) or callable(transformations):
        transformations = [transformations]
    found: list[Transformation] = []
    for transformation in transformations:
        if isinstance(transformation, str) and transformation.lower() in ("pil", "numpy"):
            found.append(partial(default_decoder, format=transformation))
        elif callable(transformation):
            found.append(transformation)
        else:
            raise TypeError(
                f"transformations: {transformation!r} is neither callable nor 'PIL' nor 'numpy'"
            )
    return found
