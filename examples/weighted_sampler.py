"""A sampler of your own: each sample is drawn with replacement, by its weight.

A sampler has three members: `num_samples`, the positions of an epoch; `indices(epoch, positions)`,
the sample ids there; and `spec()`, what the order depends on, as JSON for the loader's state.
`indices` is a pure function of its arguments. So each rank computes its own part of the order, any
number of ranks sees the same one, and a resumed run goes on without the state of a generator.

    python examples/weighted_sampler.py
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import shardwise as sw
from shardwise.testing import check_sampler


class WeightedSampler:
    """Draws with replacement: sample i has the probability `weights[i] / sum(weights)`.

    Args:
        weights: one finite number from 0 on for each sample, not all 0.
        num_draws: positions in an epoch.
        seed: any whole number; it also keys the randomness of transforms.
    """

    def __init__(self, weights: ArrayLike, *, num_draws: int, seed: int = 0) -> None:
        values = np.asarray(weights, dtype=np.float64)
        if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
            raise ValueError("weights must be one finite number from 0 on for each sample")
        if not values.sum():
            raise ValueError(f"all {len(values)} weights are 0: no sample can be drawn")
        self.num_samples = num_draws
        self.seed = seed
        # Sample i has the interval [ends[i - 1], ends[i]) of [0, 1); a weight of 0 an empty one.
        self._ends = np.cumsum(values) / values.sum()
        self._last = int(np.flatnonzero(values)[-1])

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids drawn at `positions` of `epoch`, int64 `[k]`."""
        if positions.size and not 0 <= positions.min() <= positions.max() < self.num_samples:
            raise ValueError(f"positions must lie in [0, {self.num_samples})")
        numbers = uniform(self.seed, epoch, positions)
        ids = np.searchsorted(self._ends, numbers, side="right")
        # Rounding may leave the last end below 1.
        return np.minimum(ids, self._last).astype(np.int64)

    def spec(self) -> dict[str, Any]:
        """What the order depends on: a state under 1 KB names the weights by a digest."""
        digest = hashlib.sha256(self._ends.astype("<f8").tobytes()).hexdigest()[:16]
        draws, seed = self.num_samples, self.seed
        return {"sampler": "weighted", "weights": digest, "num_draws": draws, "seed": seed}


def uniform(seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each position: SplitMix64 (Steele et al., 2014), keyed by epoch."""
    key, step = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    word = key + positions.astype(np.uint64) * (step | np.uint64(1))
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return (word >> np.uint64(11)) * 2.0**-53


def main() -> None:
    """Balance two classes, of which the rare one has 50 of 1,000 samples."""
    labels = np.arange(1000) % 20 == 0
    dataset = sw.wrap([{"label": int(label)} for label in labels])
    weights = np.where(labels, 1 / labels.sum(), 1 / (~labels).sum())
    sampler = WeightedSampler(weights, num_draws=4000, seed=3)
    check_sampler(sampler, ids=np.arange(len(dataset)), repeats=True, process=False)

    loader = sw.DataLoader(dataset, batch_size=100, sampler=sampler, output="numpy")
    seen, state = [], {}
    for step, batch in enumerate(loader):
        seen.append(batch["label"])
        if step == 15:
            state = loader.state_dict()
    share = np.concatenate(seen).mean()
    print(f"the rare class has {labels.mean():.0%} of the samples and {share:.0%} of the draws")
    assert 0.46 < share < 0.54

    # Resumed after 16 of 40 batches, the loader goes on with the 17th.
    loader.load_state_dict(state)
    rest = [batch["label"] for batch in loader]
    assert np.array_equal(np.concatenate(rest), np.concatenate(seen[16:]))


if __name__ == "__main__":
    main()
