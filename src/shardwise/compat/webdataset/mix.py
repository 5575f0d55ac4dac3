"""Mixing several datasets: in turn, or at random; and several sets of shards."""

from __future__ import annotations

import importlib
import os
import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from shardwise.compat.webdataset.positions import EpochCounter
from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.readers import CURRENT_PASS, as_seed, find_reader, generators
from shardwise.plan.permute import mix
from shardwise.storage.url_patterns import expand_braces


def round_robin_shortest(*sources: Iterator[Any]) -> Iterator[Any]:
    for source in cycle(sources):
        try:
            sample = next(source)
        except StopIteration:
            return
        yield sample


def round_robin_longest(*sources: Iterator[Any]) -> Iterator[Any]:
    left = deque(sources)
    while left:
        source = left.popleft()
        try:
            sample = next(source)
        except StopIteration:
            continue
        left.append(source)
        yield sample


@dataclass(eq=False, repr=False)
class RoundRobin(IterableDataset[Any]):
    """A sample of each dataset in turn, until one has no more, or with `longest` until all have."""

    datasets: Sequence[Iterable[Any]]
    longest: bool = False

    def __iter__(self) -> Iterator[Any]:
        sources = [iter(dataset) for dataset in self.datasets]
        return round_robin_longest(*sources) if self.longest else round_robin_shortest(*sources)


def random_samples(
    sources: Sequence[Iterator[Any]],
    probs: Sequence[float] | None = None,
    longest: bool = False,
    *,
    rng: random.Random | None = None,
) -> Iterator[Any]:
    left = list(sources)
    weights = [1.0] * len(left) if probs is None else [float(p) for p in probs]
    if len(weights) != len(left) or any(w < 0 for w in weights):
        raise ValueError(f"probs={probs}: one number that is not negative for each of {len(left)}")
    rng = rng or random.Random()  # noqa: S311
    while left and sum(weights) > 0:
        (i,) = rng.choices(range(len(left)), weights)
        try:
            sample = next(left[i])
        except StopIteration:
            if not longest:
                return
            del left[i], weights[i]
            continue
        yield sample


@dataclass(eq=False, repr=False)
class RandomMix(IterableDataset[Any]):
    """Draw from datasets by `probs` and (seed, epoch, rank, worker); ends with one, or all."""

    datasets: Sequence[Iterable[Any]]
    probs: Sequence[float] | None = None
    longest: bool = False
    seed: Any = 0
    _epochs: EpochCounter = field(default_factory=EpochCounter, init=False)

    def __iter__(self) -> Iterator[Any]:
        sources = [iter(dataset) for dataset in self.datasets]
        current = CURRENT_PASS.get()
        number = self._epochs.begin() if current is None else current.number
        reader = find_reader()
        key = mix(as_seed(self.seed), number, reader.rank, reader.worker)
        rng = random.Random(key)  # noqa: S311
        return random_samples(sources, self.probs, self.longest, rng=rng)


_KEYS = {"prefix", "datasets", "buckets"}
_SET_KEYS = {"buckets", "name", "shards", "resample", "choose"}


def expand(s: str) -> str:
    return os.path.expanduser(os.path.expandvars(s))  # noqa: PTH111 - URLs, not only paths


@dataclass
class MSSource:
    """A set of shards: `perepoch` of them without replacement, or `resample` with; -1 for all."""

    name: str = ""
    perepoch: int = -1
    resample: int = -1
    urls: list[str] = field(default_factory=list)


class MultiShardSample(IterableDataset[Any]):
    """Shards of several sets, in a new random order each pass, alike on all ranks."""

    def __init__(self, fname: Any) -> None:
        warnings.warn(
            "MultiShardSample is deprecated: mix datasets with RandomMix, or give one list of "
            "shards",
            DeprecationWarning,
            stacklevel=2,
        )
        self.epoch = -1
        self.rng: random.Random | None = None
        self.sources: list[MSSource] = []
        self.parse_spec(fname)

    def parse_spec(self, fname: Any) -> None:
        if isinstance(fname, dict):
            spec = fname
        else:
            spec = importlib.import_module("yaml").safe_load(Path(fname).read_text())
        _refuse_unknown(spec, _KEYS)
        prefix = expand(spec.get("prefix", ""))
        for one in spec["datasets"]:
            _refuse_unknown(one, _SET_KEYS)
            buckets = _make_list(one.get("buckets", spec.get("buckets", []))) or [""]
            if len(buckets) != 1:
                raise ValueError(f"buckets={buckets}: one for each set of shards")
            bucket = expand(buckets[0])
            urls = [
                prefix + os.path.join(bucket, url)  # noqa: PTH118 - URLs
                for shard in _make_list(one["shards"])
                for url in expand_braces(expand(shard))
            ]
            choose, resample = one.get("choose", -1), one.get("resample", -1)
            if choose > len(urls) or (choose > 0 and resample > 0):
                raise ValueError(
                    f"choose={choose}, resample={resample} of {len(urls)} shards: give one of the "
                    "two, and choose no more than there are"
                )
            self.sources.append(MSSource(one.get("name", "@" + bucket), choose, resample, urls))

    def set_epoch(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311

    def get_shards_for_epoch(self) -> list[str]:
        rng = generators()[0] if self.rng is None else self.rng
        result: list[str] = []
        for source in self.sources:
            if source.resample > 0:
                result += rng.choices(source.urls, k=source.resample)
            elif source.perepoch > 0:
                result += rng.sample(source.urls, source.perepoch)
            else:
                result += source.urls
        rng.shuffle(result)
        return result

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"url": url} for url in self.get_shards_for_epoch())


def _make_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _refuse_unknown(spec: dict[str, Any], known: set[str]) -> None:
    unknown = set(spec) - known
    if unknown:
        raise ValueError(f"unknown entries {sorted(unknown)}: known are {sorted(known)}")
