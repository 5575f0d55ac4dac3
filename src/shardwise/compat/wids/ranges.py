"""Ranges of indices: what the samplers deal out, in chunks that lie together in the data.

A line is a row of half-open ranges, read one after another.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from shardwise.plan import Permutation, mix

Range = tuple[int, int]

# Words that keep the keys of different uses apart.
_ORDER, _TURN, _WITHIN = 1, 2, 3
# Indices that are computed at a time.
_BLOCK = 8192


def lengths_to_ranges(lengths: Sequence[int]) -> list[Range]:
    """One range a shard, for the lengths of shards that follow one another.

    >>> lengths_to_ranges([3, 0, 2])
    [(0, 3), (3, 3), (3, 5)]
    """
    ends = np.cumsum(np.asarray(lengths, dtype=np.int64)).tolist()
    return [(end - int(length), end) for end, length in zip(ends, lengths, strict=True)]


def chunked(start: int, stop: int, size: int) -> list[Range]:
    """Cut [start, stop) into ranges of `size`; the last one may be shorter."""
    if size < 1:
        raise ValueError(f"chunksize={size}: at least one sample")
    return [(low, min(low + size, stop)) for low in range(start, stop, size)]


def shuffled(ranges: Sequence[Range], seed: int, epoch: int, *, turn: bool = False) -> list[Range]:
    """The ranges in the order of an epoch.

    With `turn` the line begins somewhere in the middle of itself, so that its equal parts hold
    other samples in every epoch, however few the ranges are.
    """
    order = Permutation(len(ranges), mix(_ORDER, seed, epoch))(np.arange(len(ranges)))
    line = [ranges[place] for place in order.tolist()]
    length = sum(stop - start for start, stop in line)
    if not turn or not length:
        return line
    first = mix(_TURN, seed, epoch) % length
    return cut(line, first, first + length)


def cut(line: Sequence[Range], start: int, stop: int) -> list[Range]:
    """The part of a line between two positions; past its end the line begins again.

    >>> cut([(0, 4), (10, 13)], 3, 9)
    [(3, 4), (10, 13), (0, 2)]
    """
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
    """The indices of ranges, one range after another; each one shuffled if asked for."""
    for number, (start, stop) in enumerate(ranges):
        size = stop - start
        within = Permutation(size, mix(_WITHIN, seed, epoch, number, start)) if shuffle else None
        for first in range(0, size, _BLOCK):
            places = np.arange(first, min(first + _BLOCK, size), dtype=np.int64)
            yield from ((places if within is None else within(places)) + start).tolist()


def intersect_range(a: Range, b: Range) -> Range | None:
    """What two ranges share; None if that is nothing."""
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None


def intersect_ranges(rangelist: Iterable[Range], r: Range) -> list[Range]:
    """What a range shares with each of others, where that is something."""
    return [shared for a in rangelist if (shared := intersect_range(a, r)) is not None]


def iterate_ranges(
    ranges: Sequence[Range],
    rng: random.Random,
    indexshuffle: bool = True,
    shardshuffle: bool = True,
) -> Iterator[int]:
    """The indices of ranges in wids' order for a generator; the samplers here have their own."""
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for place in order:
        inside = list(range(*ranges[place]))
        if indexshuffle:
            rng.shuffle(inside)
        yield from inside
