"""The samplers of wids: shards or chunks in another order in every epoch, shuffled inside.

The divided one keeps I1 and I2: each rank gets the same number of indices, and all of them together
cover the data. A line is a row of half-open ranges of indices, read one after another.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch.utils.data

from shardwise.base.ranks import Ranks, discover
from shardwise.plan import Permutation, mix
from shardwise.torch.order import dividing_caller

Range = tuple[int, int]

# Words that keep the keys of different uses apart.
_ORDER, _TURN, _WITHIN = 1, 2, 3
# Indices that are computed at a time.
_BLOCK = 8192


def lengths_to_ranges(lengths: Sequence[int]) -> list[Range]:
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64)).tolist()
    return [(end - int(length), end) for end, length in zip(ends, lengths, strict=True)]


def chunked(start: int, stop: int, size: int) -> list[Range]:
    """Cut [start, stop) into ranges of `size`; the last one may be shorter."""
    if size < 1:
        raise ValueError(f"chunksize={size}: at least one sample")
    return [(low, min(low + size, stop)) for low in range(start, stop, size)]


def shuffled(ranges: Sequence[Range], seed: int, epoch: int, *, turn: bool = False) -> list[Range]:
    """The ranges in an epoch's order; with `turn` the line starts in the middle of itself."""
    order = Permutation(len(ranges), mix(_ORDER, seed, epoch))(np.arange(len(ranges)))
    line = [ranges[place] for place in order.tolist()]
    length = sum(stop - start for start, stop in line)
    if not turn or not length:
        return line
    first = mix(_TURN, seed, epoch) % length
    return cut(line, first, first + length)


def cut(line: Sequence[Range], start: int, stop: int) -> list[Range]:
    """The part of a line between two positions; past its end the line starts again."""
    filled = [piece for piece in line if piece[0] < piece[1]]
    ends = np.cumsum([high - low for low, high in filled])
    found: list[Range] = []
    while start < stop:
        position = start % int(ends[-1])
        place = int(np.searchsorted(ends, position, side="right"))
        low, high = filled[place]
        low = high - (int(ends[place]) - position)
        taken = min(high - low, stop - start)
        found.append((low, low + taken))
        start += taken
    return found


def indices(ranges: Sequence[Range], seed: int, epoch: int, *, shuffle: bool) -> Iterator[int]:
    for number, (start, stop) in enumerate(ranges):
        size = stop - start
        within = Permutation(size, mix(_WITHIN, seed, epoch, number, start)) if shuffle else None
        for first in range(0, size, _BLOCK):
            places = np.arange(first, min(first + _BLOCK, size), dtype=np.int64)
            yield from ((places if within is None else within(places)) + start).tolist()


def intersect_range(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None


def intersect_ranges(rangelist: Iterable[Range], r: Range) -> list[Range]:
    return [shared for a in rangelist if (shared := intersect_range(a, r)) is not None]


def iterate_ranges(
    ranges: Sequence[Range],
    rng: random.Random,
    indexshuffle: bool = True,
    shardshuffle: bool = True,
) -> Iterator[int]:
    """The indices of ranges in wids' order for a generator; the samplers here have their own."""
    order = list(ranges)
    if shardshuffle:
        rng.shuffle(order)
    for start, stop in order:
        inside = list(range(start, stop))
        if indexshuffle:
            rng.shuffle(inside)
        yield from inside


class _RangeSampler(torch.utils.data.Sampler[int]):
    """Ranges by (seed, epoch), each shuffled; in order at first, without `shufflefirst`."""

    def __init__(
        self, ranges: Sequence[Range], *, seed: int, shuffle: bool, shufflefirst: bool
    ) -> None:
        self.ranges = list(ranges)
        self.seed = seed
        self.shuffle = shuffle
        self.shufflefirst = shufflefirst
        self.epoch = 0
        self._is_begun = False

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._is_begun = False

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of an epoch; without `set_epoch` each iteration is the next epoch."""
        self.epoch += self._is_begun
        self._is_begun = True
        return indices(self._line(), self.seed, self.epoch, shuffle=self.shuffle)

    @property
    def _moves(self) -> bool:
        return self.shuffle and (self.shufflefirst or self.epoch > 0)

    def _line(self) -> list[Range]:
        return shuffled(self.ranges, self.seed, self.epoch) if self._moves else self.ranges


class ShardListSampler(_RangeSampler):
    """Whole shards in another order each epoch, each one shuffled; not divided among ranks."""

    def __init__(
        self,
        dataset: Any,
        *,
        lengths: Sequence[int] | None = None,
        seed: int = 0,
        shufflefirst: bool = False,
    ) -> None:
        lengths = list(dataset.lengths) if lengths is None else lengths
        super().__init__(
            lengths_to_ranges(lengths), seed=seed, shuffle=True, shufflefirst=shufflefirst
        )


ShardedSampler = ShardListSampler


class ChunkedSampler(_RangeSampler):
    """Chunks of neighbours in another order each epoch, each one shuffled; not divided."""

    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        start, stop = _bounds(dataset, num_samples)
        super().__init__(
            chunked(start, stop, chunksize), seed=seed, shuffle=shuffle, shufflefirst=shufflefirst
        )
        length = dslength_per_replica if dslength_per_replica > 0 else stop - start
        self.dslength_per_replica = length

    def __len__(self) -> int:
        return self.dslength_per_replica

    def _line(self) -> list[Range]:
        return cut(super()._line(), 0, self.dslength_per_replica)


class DistributedChunkedSampler(ChunkedSampler, torch.utils.data.DistributedSampler[int]):
    """The chunks of one rank: an equal part of the epoch's line of all chunks.

    In the first epoch the line lies in storage order (unless `shufflefirst` is set); later it
    starts elsewhere and has its chunks in another order, so that ranks get other samples.

    A `torch.utils.data.DistributedSampler`, so that Lightning and Ray do not replace it. Where
    Accelerate divides the batches of a prepared loader, this sampler gives all of them. `rank` and
    `num_replicas` are found where they are None.

    Args:
        num_samples: a number of samples from the first on, or a pair of indices; None for all.
            Afterwards, as in torch, the attribute of this name is the number on this rank.
        shufflefirst: whether the first epoch changes the order of the chunks, too.
        drop_last: True leaves out what does not fill all ranks; else some samples are repeated.
        chunksize: samples in a chunk.

    Raises:
        ValueError: there are too few samples, or rank and num_replicas do not fit each other.
        RankError: rank and world size are not known for certain.

    Example:
        >>> options = {"num_replicas": 4, "shuffle": False, "chunksize": 2}
        >>> [list(DistributedChunkedSampler(range(10), rank=r, **options)) for r in range(4)]
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        num_samples: int | tuple[int, int] | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        shufflefirst: bool = False,
        seed: int = 0,
        drop_last: bool | None = None,
        chunksize: int = 1_000_000,
    ) -> None:
        ranks = _ranks(rank, num_replicas)
        ChunkedSampler.__init__(
            self,
            dataset,
            num_samples=num_samples,
            chunksize=chunksize,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
        count = self.dslength_per_replica
        size = count // ranks.world_size if drop_last else -(-count // ranks.world_size)
        if not size:
            raise ValueError(
                f"{count} samples for {ranks.world_size} ranks, drop_last={drop_last}: some ranks "
                "would get none; use fewer ranks, or drop_last=False"
            )
        # The attributes of torch's sampler, which frameworks read.
        self.dataset = dataset  # type: ignore[assignment]
        self.num_replicas = ranks.world_size
        self.rank = ranks.rank
        self.drop_last = bool(drop_last)
        self.dslength_per_replica = self.num_samples = size
        self.total_size = size * ranks.world_size
        self._chunks = self.ranges
        self._count = count
        self.ranges = self._part(self._chunks)

    def __len__(self) -> int:
        return self._count if dividing_caller() else self.num_samples

    def _line(self) -> list[Range]:
        line = self._chunks
        if self._moves:
            line = shuffled(line, self.seed, self.epoch, turn=True)
        return line if dividing_caller() else self._part(line)

    def _part(self, line: list[Range]) -> list[Range]:
        start = self.rank * self.num_samples
        return cut(line, start, start + self.num_samples)


def _bounds(dataset: Sized, num_samples: int | tuple[int, int] | None) -> tuple[int, int]:
    bounds = len(dataset) if num_samples is None else num_samples
    start, stop = (0, bounds) if isinstance(bounds, int) else bounds
    if not 0 <= start < stop <= len(dataset):
        raise ValueError(
            f"samples {start} to {stop} of a dataset of {len(dataset)}: num_samples must be a "
            "number or a pair (start, stop) of them that lies in the dataset and is not empty"
        )
    return start, stop


def _ranks(rank: int | None, num_replicas: int | None) -> Ranks:
    if rank is None and num_replicas is not None:
        rank = discover().rank
    elif rank is not None and num_replicas is None:
        num_replicas = discover().world_size
    return discover(rank, num_replicas)
