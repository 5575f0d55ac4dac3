"""The schedule of a mixture: from a draw to a dataset, over segments of weights.

Draws stand in blocks, and those of a block are permuted among each other by a key: in a regular
sequence, rank r of W would see another mixture than rank 0. Segments start at blocks, so that a
later segment moves no draw before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.mixtures.options import MAX_DRAW, WeightChange
from shardwise.extensions.mixtures.segments import ConstantSegment, RampSegment, Segment
from shardwise.plan.permute import mix, mix_array, permute_within

Ints = NDArray[np.int64]

# Blocks that are computed at a time: of 256 draws each, 512 KiB an array.
_MAX_BLOCKS = 256


class MixtureSchedule:
    """The dataset of each draw.

    Args:
        names: the datasets. Their order means nothing: the same draws follow from any.
        changes: weights, from samples on; relative ones.
        seed: permutes the draws of each block in another way.
        unit: samples a draw; changes start at the next whole draw and block.
        block: draws that are permuted among each other.

    Over any whole blocks each dataset has its weight's share of the draws, up to 2.4.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        changes: tuple[WeightChange, ...],
        *,
        seed: int,
        unit: int,
        block: int,
    ) -> None:
        self.names = names
        self.changes = changes
        self.seed = seed
        self.unit = unit
        self.block = block
        # The segments know the datasets sorted by name.
        order = sorted(range(len(names)), key=names.__getitem__)
        self._to_names = np.array(order, dtype=np.int64)
        self.segments = self._segments([names[k] for k in order])
        self._starts = np.array([segment.start for segment in self.segments], dtype=np.int64)

    def _segments(self, names: Sequence[str]) -> list[Segment]:
        size = self.unit * self.block
        before, due = [0] * len(names), [Fraction(0)] * len(names)
        first, *later = self.changes
        segments: list[Segment] = [ConstantSegment(0, _shares(first, names), before, due)]
        for change in later:
            weights, last = _shares(change, names), segments[-1]
            # A ramp is a block long at least.
            start = max(-(-change.start // size) * self.block, last.start)
            before, due = last.counts(start), last.due(start)
            if last.start == start:
                # Two changes in one block: the later one is all there is of them.
                segments.pop()
            if change.stop is None:
                segments.append(ConstantSegment(start, weights, before, due))
                continue
            stop = max(-(-change.stop // size) * self.block, start + self.block)
            both = last.last_weights, weights
            ramp = RampSegment((start, stop), both, before, due, block=self.block)
            after = ConstantSegment(stop, weights, ramp.counts(stop), ramp.due(stop))
            segments += [ramp, after]
        return segments

    def starts(self) -> list[int]:
        """The samples at which the segments start, after rounding up to whole blocks."""
        return [segment.start * self.unit for segment in self.segments]

    def weights(self) -> list[float]:
        """The weights of the last segment, in the order of `names`; their sum is 1."""
        weights = [0.0] * len(self.names)
        last = self.segments[-1].last_weights
        for place, weight in zip(self._to_names.tolist(), last, strict=True):
            weights[place] = float(weight)
        return weights

    def is_drawn(self) -> list[bool]:
        """Whether each dataset is ever drawn, in the order of `names`."""
        return [any(change.weights.get(name) for change in self.changes) for name in self.names]

    def split(self, draws: Ints) -> tuple[Ints, Ints]:
        """For each draw its dataset, and how many draws that dataset had before: int64 `[k]` each.

        Args:
            draws: int64 `[k]`, in [0, 2**62).
        """
        if self.block == 1:
            return self._split(draws)
        blocks, owners = np.unique(draws // self.block, return_inverse=True)
        places = owners * self.block + draws % self.block
        if len(blocks) <= _MAX_BLOCKS:
            which, numbers = self._blocks(blocks)
            return which[places], numbers[places]
        all_which, all_numbers = np.empty_like(draws), np.empty_like(draws)
        for first in range(0, len(blocks), _MAX_BLOCKS):
            here = np.flatnonzero((owners >= first) & (owners < first + _MAX_BLOCKS))
            which, numbers = self._blocks(blocks[first : first + _MAX_BLOCKS])
            places_here = places[here] - first * self.block
            all_which[here], all_numbers[here] = which[places_here], numbers[places_here]
        return all_which, all_numbers

    def _blocks(self, blocks: Ints) -> tuple[Ints, Ints]:
        """The draws of whole blocks one after the other: as `split`, int64 `[blocks * block]`."""
        size = self.block
        within = np.tile(np.arange(size, dtype=np.int64), len(blocks))
        first = np.repeat(blocks * size, size)
        which, numbers = self._split(first + within)
        keys = np.repeat(mix_array(mix(self.seed, 1), blocks), size)
        sizes = np.full(len(within), size, dtype=np.uint64)
        moved = permute_within(within.view(np.uint64), sizes, keys).view(np.int64)
        moved += np.repeat(np.arange(len(blocks)) * size, size)
        # Each dataset keeps the order of its draws: which ones come when is permuted, not they.
        # The r-th draw of a dataset in the block gets its r-th number.
        label = np.repeat(np.arange(len(blocks)) * len(self.names), size) + which
        label = label.astype(np.int16 if len(blocks) * len(self.names) < 2**15 else np.int64)
        shuffled = which[moved]
        in_order = np.empty_like(numbers)
        in_order[np.argsort(label[moved], kind="stable")] = numbers[
            np.argsort(label, kind="stable")
        ]
        return shuffled, in_order

    def _split(self, draws: Ints) -> tuple[Ints, Ints]:
        """The draws by the segments, before they are permuted."""
        if len(self.segments) == 1:
            which, numbers = self.segments[0].split(draws)
            return self._to_names[which], numbers
        which, numbers = np.empty_like(draws), np.empty_like(draws)
        owners = np.searchsorted(self._starts, draws, side="right") - 1
        for number in np.unique(owners).tolist():
            here = np.flatnonzero(owners == number)
            which[here], numbers[here] = self.segments[number].split(draws[here])
        return self._to_names[which], numbers

    def counts(self, draw: int) -> list[int]:
        """Count each dataset's draws before `draw`, in the order of `names`."""
        whole_blocks = draw // self.block * self.block
        counts = self._counts(whole_blocks)
        if whole_blocks < draw:
            which, _ = self.split(np.arange(whole_blocks, draw, dtype=np.int64))
            here = np.bincount(which, minlength=len(counts)).tolist()
            counts = [count + more for count, more in zip(counts, here, strict=True)]
        return counts

    def _counts(self, draw: int) -> list[int]:
        """The same, of whole blocks."""
        owner = max(0, int(np.searchsorted(self._starts, draw, side="left")) - 1)
        counts = [0] * len(self.names)
        here = self.segments[owner].counts(draw)
        for place, count in zip(self._to_names.tolist(), here, strict=True):
            counts[place] = count
        return counts

    def draws_until(self, dataset: int, num_draws: int) -> int | None:
        """The number of draws until the first `num_draws` of a dataset have come; None if never."""
        low, high = 0, 1
        last = int(self._starts[-1]) // self.block + 1
        while self._counts(high * self.block)[dataset] < num_draws:
            name = self.names[dataset]
            is_over = high >= last and not self.changes[-1].weights.get(name)
            if is_over or 2 * high * self.block >= MAX_DRAW:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._counts(middle * self.block)[dataset] < num_draws:
                low = middle
            else:
                high = middle
        first = low * self.block
        which, numbers = self.split(np.arange(first, first + self.block, dtype=np.int64))
        return first + 1 + int(np.flatnonzero((which == dataset) & (numbers < num_draws))[-1])


def _shares(change: WeightChange, names: Sequence[str]) -> list[Fraction]:
    """The weights of all datasets; their sum is 1."""
    total = sum(change.weights.values())
    return [change.weights.get(name, Fraction(0)) / total for name in names]
