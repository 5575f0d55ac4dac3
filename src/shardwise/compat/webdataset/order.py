"""Stages that change the order, or draw samples: shuffles and random selection.

In a pipeline each has a key of (seed, pass, stage): another order every epoch, the same in every
run. Shards are shuffled alike on all readers, because they are divided afterwards; samples are
not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from shardwise.compat.webdataset.readers import CURRENT_PASS, generator, generator_maker
from shardwise.compat.webdataset.utils import PipelineStage


def pick(buf: list[Any], rng: random.Random) -> Any:
    """Take a random item out of a list, and put the last one in its place."""
    return _take(buf, rng.randrange(len(buf)))


def _take(buf: list[Any], k: int) -> Any:
    buf[k], sample = buf[-1], buf[k]
    buf.pop()
    return sample


def _is_shard(item: Any) -> bool:
    """Whether this is a shard that will be opened, not a sample."""
    return isinstance(item, dict) and "url" in item and "__key__" not in item


def _shuffle(
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: Any = None,
    handler: Any = None,  # noqa: ARG001 - an argument of WebDataset's, without effect there too
) -> Iterator[Any]:
    """Shuffle through a buffer of `bufsize` items; the first comes out when `initial` are there.

    Without `rng` the numbers come from the pipeline's key, to which `seed` is added; outside of a
    pipeline it is the seed. With the same `rng` the order is WebDataset's.
    """
    if rng is not None and seed is not None:
        raise ValueError("shuffle takes rng or seed, not both")
    make = generator_maker(seed) if rng is None else None
    return _shuffled(iter(data), bufsize, min(initial, bufsize), rng, make)


def _shuffled(
    data: Iterator[Any],
    bufsize: int,
    initial: int,
    rng: random.Random | None,
    make: Callable[[bool], random.Random] | None,
) -> Iterator[Any]:
    first = next(data, data)
    if first is data:
        return
    if make is not None:
        draw = make(not _is_shard(first)).random
        below: Callable[[int], int] = lambda num: int(draw() * num)  # noqa: E731
    else:
        # As WebDataset draws: programs that bring their generator get the order that they had.
        assert rng is not None
        below = rng.randrange
    buf: list[Any] = []
    append = buf.append
    data = chain([first], data)
    for sample in data:
        append(sample)
        if len(buf) < bufsize:
            # Until it is full, the buffer grows by one for each item that comes out.
            for another in data:
                append(another)
                break
        if len(buf) >= initial:
            yield _take(buf, below(len(buf)))
    while buf:
        yield _take(buf, below(len(buf)))


@dataclass(eq=False, repr=False)
class ShardShuffle:
    """Permutes a list of shards as a whole, in another order each pass.

    Shards of a source without an end are mixed through a buffer of `bufsize`.
    """

    bufsize: int
    seed: Any = None
    is_endless: bool = field(default=False, kw_only=True)

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        """The shards in another order."""
        if self.is_endless:
            return _shuffle(source, self.bufsize, self.bufsize, seed=self.seed)
        rng = generator(self.seed)
        shards = list(source)
        rng.shuffle(shards)
        return iter(shards)

    def __repr__(self) -> str:
        return f"<shuffle of shards: bufsize={self.bufsize}, seed={self.seed}>"


@dataclass(eq=False, repr=False)
class detshuffle(PipelineStage):  # noqa: N801 - WebDataset's name
    """A shuffle whose order depends on `seed` and `epoch` alone.

    Each run takes the next epoch; in a worker that was started for one epoch only, the pipeline's.
    """

    bufsize: int = 1000
    initial: int = 100
    seed: Any = 0
    epoch: int = -1

    def __post_init__(self) -> None:
        self._first = self.epoch + 1

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """Shuffle a source."""
        self.epoch += 1
        current = CURRENT_PASS.get()
        if current is not None:
            self.epoch = max(self.epoch, self._first + current.number)
        rng = random.Random(f"{self.seed},{self.epoch}")  # noqa: S311
        return _shuffle(src, self.bufsize, self.initial, rng)


def _rsample(data: Iterable[Any], p: float = 0.5) -> Iterator[Any]:
    """Keep each sample with the probability `p`."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p={p}: a probability lies in [0, 1]")
    draw = generator(each_reader=True).random
    return (sample for sample in data if draw() < p)
