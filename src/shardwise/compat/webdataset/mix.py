"""Mixing several datasets: in turn, or at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from shardwise.compat.webdataset.positions import EpochCounter
from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.readers import CURRENT_PASS, as_seed, find_reader
from shardwise.plan.permute import mix


def round_robin_shortest(*sources: Iterator[Any]) -> Iterator[Any]:
    """An item of each source in turn, until a source has no more."""
    for source in cycle(sources):
        try:
            sample = next(source)
        except StopIteration:
            return
        yield sample


def round_robin_longest(*sources: Iterator[Any]) -> Iterator[Any]:
    """An item of each source in turn, until all have no more."""
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
    """Samples of sources that are drawn with the weights `probs`."""
    left = list(sources)
    weights = [1.0] * len(left) if probs is None else [float(p) for p in probs]
    if len(weights) != len(left) or any(w < 0 for w in weights):
        raise ValueError(f"probs={probs}: one number that is not negative for each of {len(left)}")
    draw = (rng or random.Random()).random  # noqa: S311
    while left and sum(weights) > 0:
        cumulative = np.cumsum(weights) / sum(weights)
        i = min(int(np.searchsorted(cumulative, draw(), side="right")), len(left) - 1)
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
    """Samples of datasets that are drawn with the weights `probs`.

    The order depends on (seed, epoch, rank, worker) alone. It ends where a dataset has no more, or
    with `longest` where all have no more.
    """

    datasets: Sequence[Iterable[Any]]
    probs: Sequence[float] | None = None
    longest: bool = False
    seed: Any = 0

    def __post_init__(self) -> None:
        self._epochs = EpochCounter()

    def __iter__(self) -> Iterator[Any]:
        sources = [iter(dataset) for dataset in self.datasets]
        current = CURRENT_PASS.get()
        number = self._epochs.begin() if current is None else current.number
        reader = find_reader()
        key = mix(as_seed(self.seed), number, reader.rank, reader.worker)
        rng = random.Random(key)  # noqa: S311
        return random_samples(sources, self.probs, self.longest, rng=rng)
