"""Draws by weight: each position's sample is computed, and no generator has a state.

With replacement a position is one random word, looked up in the sums of the weights. Without, each
sample gets the key -log(u) / weight for its own word u, and the smallest keys come in order:
the same as drawing one after the other from what is left (Efraimidis and Spirakis, "Weighted random
sampling with a reservoir", 2006).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.arguments import suggest_names
from shardwise.plan.arguments import whole
from shardwise.plan.lengths import rows_where
from shardwise.plan.permute import MAX_SIZE, LastValues, as_positions, mix, mix_array

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]

# Weights whose sums a draw adds up; of the others only the sum at each block's end is kept.
_BLOCK, _DRAWN_AT_ONCE = 64, 8192
_PART = _BLOCK << 14
_LOG_2 = 0.6931471805599453
_LOG_THREE_QUARTERS = -0.2876820724517809


@suggest_names
class WeightedSampler:
    """Samples drawn by their weights, for `sampler=`; any number of ranks, resumed at once.

    Args:
        weights: one finite number from 0 on for each sample, not all 0; they need not sum to 1.
        num_samples: positions in an epoch, over all ranks. None for as many as there are weights,
            and without replacement as there are weights above 0.
        seed: any whole number; it also keys the randomness of transforms.
        replacement: True draws each position independently: sample i with the probability
            `weights[i] / sum(weights)`. False draws no sample twice in an epoch: one of a large
            weight comes sooner, and is more likely to be among the first `num_samples`.

    A pure function of (epoch, position), at about 1 us a position with replacement. In memory are 8
    bytes a sample, or 0.13 of a read-only array, such as a mapped file, which stays as it is.
    Without replacement also 8 bytes a position, made by one pass over the weights an epoch (about
    0.3 us a sample).

    Raises:
        ValueError: a weight is negative or not finite, all are 0, or more samples are to be drawn
            without replacement than have a weight.

    Examples:
        >>> import shardwise as sw
        >>> sampler = sw.WeightedSampler([0, 3, 1], num_samples=8, seed=5)
        >>> sampler.indices(0, np.arange(8))
        array([1, 1, 1, 2, 2, 1, 1, 1])
    """

    def __init__(
        self,
        weights: ArrayLike,
        *,
        num_samples: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        replacement: bool = True,
    ) -> None:
        self._weights, self._scale = _check_weights(weights)
        self.num_ids = len(self._weights)
        self.seed = whole("seed", seed)
        self.replacement = bool(replacement)
        above_zero = int(np.count_nonzero(self._weights))
        default = self.num_ids if self.replacement else above_zero
        count = default if num_samples is None else num_samples
        self.num_samples = whole("num_samples", count, least=0, most=MAX_SIZE)
        if not self.replacement and self.num_samples > above_zero:
            raise ValueError(
                f"num_samples={self.num_samples} without replacement, and {above_zero} of "
                f"{self.num_ids} weights are above 0: draw fewer, or with replacement=True"
            )
        self._drawn: LastValues[int, NDArray[np.int64]] = LastValues()

    @classmethod
    @suggest_names
    def balanced(
        cls,
        labels: ArrayLike,
        *,
        num_samples: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        replacement: bool = True,
    ) -> WeightedSampler:
        """Draw every class equally often: weights of 1 / the number of samples of the class.

        Args:
            labels: the class of each sample, such as `ds.column("cls")`: numbers or strings.
            num_samples: as for the class.
            seed: as for the class.
            replacement: as for the class.

        Raises:
            ValueError: there is not one label a sample.
            TypeError: labels of different kinds can't be sorted.

        Examples:
            >>> import shardwise as sw
            >>> labels = np.array([0] * 990 + [1] * 10)
            >>> drawn = sw.WeightedSampler.balanced(labels).indices(0, np.arange(1000))
            >>> bool(450 < labels[drawn].sum() < 550)
            True
        """
        array = np.asarray(labels)
        if array.ndim != 1:
            raise ValueError(f"labels must be one a sample, not an array of shape {array.shape}")
        try:
            _, classes, counts = np.unique(array, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise TypeError(f"labels must be of one kind, to tell them apart: {error}") from None
        weights = 1.0 / counts[classes]
        return cls(weights, num_samples=num_samples, seed=seed, replacement=replacement)

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`."""
        places = as_positions(positions, self.num_samples)
        if not self.replacement:
            return self._drawn.get(epoch, self._draw)[places]
        drawn = _unit(mix_array(mix(self.seed, epoch), places)) * self._sums[-1]
        starts = range(0, len(drawn), _DRAWN_AT_ONCE)
        parts = [self._look_up(drawn[at : at + _DRAWN_AT_ONCE]) for at in starts]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _look_up(self, drawn: Floats) -> NDArray[np.int64]:
        """The first sample with a larger sum of the weights up to it, for each number."""
        blocks = np.minimum(np.searchsorted(self._sums[1:], drawn, "right"), len(self._sums) - 2)
        rows = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        sums = np.zeros((len(rows), 1 + _BLOCK))
        sums[:, 0] = self._sums[blocks]
        is_there = rows < self.num_ids
        sums[:, 1:][is_there] = self._weights[rows[is_there]] / self._scale
        np.cumsum(sums, axis=1, out=sums)
        ids = blocks * _BLOCK + (sums[:, 1:] <= drawn[:, None]).sum(axis=1)
        # Rounding may reach the last sum itself.
        found: NDArray[np.int64] = np.minimum(ids, self._last)
        return found

    def epoch_ids(self, epoch: int) -> list[range | NDArray[np.int64]] | None:  # noqa: ARG002
        """The ids of an epoch, where every sample that has a weight comes once."""
        if self.replacement or self.num_samples < np.count_nonzero(self._weights):
            return None
        has_all = self.num_samples == self.num_ids
        return [range(self.num_ids) if has_all else np.flatnonzero(self._weights)]

    def spec(self) -> dict[str, Any]:
        """Everything that the order depends on, as JSON; a digest stands for the weights."""
        return {
            "sampler": "weighted",
            "weights": self._digest,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "replacement": self.replacement,
        }

    def _parts(self) -> Iterator[Floats]:
        """The weights as fractions of the largest, some blocks at a time."""
        for start in range(0, self.num_ids, _PART):
            yield self._weights[start : start + _PART].astype(np.float64) / self._scale

    @cached_property
    def _sums(self) -> Floats:
        """The sum before each block, and that of all weights."""
        ends = [np.zeros(1)]
        for part in self._parts():
            # One after the other, so that rounding is the same on every machine.
            sums = np.cumsum(np.concatenate([ends[-1][-1:], part]))
            ends.append(np.append(sums[_BLOCK:-1:_BLOCK], sums[-1]))
        return np.concatenate(ends)

    @cached_property
    def _last(self) -> int:
        # From the end. A fraction may be 0 where its weight is not.
        for stop in range(self.num_ids, 0, -_PART):
            start = max(0, stop - _PART)
            found = np.flatnonzero(self._weights[start:stop] / self._scale)
            if len(found):
                return start + int(found[-1])
        raise AssertionError("the largest weight is above 0")

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for part in self._parts():
            digest.update(part.astype("<f8").data)
        return digest.hexdigest()[:16]

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        ids = np.flatnonzero(self._weights)
        words = mix_array(mix(self.seed, epoch), ids)
        keys = -_log(_unit(words)) / (self._weights[ids] / self._scale)
        if self.num_samples < len(ids):
            first = np.sort(np.argpartition(keys, self.num_samples)[: self.num_samples])
            ids, keys = ids[first], keys[first]
        return ids[np.argsort(keys, kind="stable")].astype(np.int64)

    def __repr__(self) -> str:
        how = "" if self.replacement else ", replacement=False"
        return (
            f"WeightedSampler(<{self.num_ids} weights>, num_samples={self.num_samples}, "
            f"seed={self.seed}{how})"
        )


def _check_weights(weights: ArrayLike) -> tuple[NDArray[Any], float]:
    """Weights, and what they are divided by: so scaled, no sum overflows, and ratios stay."""
    array = np.asarray(weights)
    if array.ndim != 1:
        raise ValueError(f"weights must be one a sample, not an array of shape {array.shape}")
    if array.size and array.dtype.kind not in "biuf":
        raise TypeError(f"weights must be numbers, not {array.dtype}")
    wrong = rows_where(lambda block: ~np.isfinite(block) | (block < 0), array)
    if len(wrong):
        raise ValueError(
            f"{len(wrong)} of {len(array)} weights are negative or not finite, the first is "
            f"{array[wrong[0]]:g} of sample {wrong[0]}: use 0 for samples that are not to come"
        )
    largest = float(array.max(initial=0))
    if not largest:
        raise ValueError(f"all {len(array)} weights are 0: no sample can be drawn")
    return (array.astype(np.float64) / largest, 1.0) if array.flags.writeable else (array, largest)


def _unit(words: Words) -> Floats:
    """Numbers in (0, 1), from the upper 52 bits: the ends are left out, for the logarithm."""
    numbers: Floats = (words >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-52
    return numbers


def _log(values: Floats) -> Floats:
    """The natural logarithm of numbers above 0, to 1e-15, to the bit the same on every machine."""
    fraction: Floats
    fraction, exponent = np.frexp(values)  # fraction in [0.5, 1)
    ratio = (fraction - 0.75) / (fraction + 0.75)  # log(f / 0.75) = 2 artanh(ratio), |ratio| <= 0.2
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for power in range(21, -1, -2):
        series = series * square + 1.0 / power
    return exponent * _LOG_2 + _LOG_THREE_QUARTERS + 2.0 * ratio * series
