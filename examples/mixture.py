"""A mixture of two datasets: seven samples of the first to three of the second, in every batch.

The datasets stand behind one another (`sw.concat`), and a sampler interleaves their ids. Each keeps
its own epochs: all of its samples come once before one comes again, however small it is beside the
other. The mixture has epochs of any length, which walk on where the last one ended.

    python examples/mixture.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardwise as sw
from shardwise.testing import check_sampler


class MixtureSampler:
    """Rounds of sum(parts) positions, in each of them `parts[k]` samples of dataset k.

    Args:
        sizes: samples of each dataset, in the order of `sw.concat`.
        parts: samples of each dataset in a round, 1 or more.
        num_samples: positions in an epoch of the mixture.
        seed: any whole number; it also keys the randomness of transforms.
    """

    def __init__(
        self, sizes: Sequence[int], parts: Sequence[int], *, num_samples: int, seed: int = 0
    ) -> None:
        if len(sizes) != len(parts) or min(sizes) < 1 or min(parts) < 1:
            raise ValueError(f"sizes={sizes} and parts={parts}: give 1 or more of each dataset")
        self.sizes, self.parts = tuple(sizes), tuple(parts)
        self.num_samples = num_samples
        self.seed = seed
        self._orders = [sw.FullSampler(size, seed=seed + k) for k, size in enumerate(sizes)]
        self._starts = np.cumsum([0, *sizes[:-1]])
        # A round's slots, evenly interleaved: which dataset, and its how-many-th of the round.
        spread = np.concatenate([(np.arange(part) + 0.5) / part for part in parts])
        slots = np.argsort(spread, kind="stable")
        self._dataset_of_slot = np.repeat(np.arange(len(parts)), parts)[slots]
        self._rank_in_round = np.concatenate([np.arange(part) for part in parts])[slots]

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids at `positions` of `epoch`, int64 `[k]`."""
        if positions.size and not 0 <= positions.min() <= positions.max() < self.num_samples:
            raise ValueError(f"positions must lie in [0, {self.num_samples})")
        rounds, slots = np.divmod(positions + epoch * self.num_samples, sum(self.parts))
        datasets = self._dataset_of_slot[slots]
        ids = np.empty(len(positions), dtype=np.int64)
        for k, (size, part) in enumerate(zip(self.sizes, self.parts, strict=True)):
            rows = np.flatnonzero(datasets == k)
            # Where dataset k stands in its own epochs, which follow one another.
            own = rounds[rows] * part + self._rank_in_round[slots[rows]]
            own_epochs, own_positions = np.divmod(own, size)
            for own_epoch in np.unique(own_epochs).tolist():
                here = own_epochs == own_epoch
                order = self._orders[k].indices(own_epoch, own_positions[here])
                ids[rows[here]] = self._starts[k] + order
        return ids

    def spec(self) -> dict[str, Any]:
        """What the order depends on."""
        return {
            "sampler": "mixture",
            "sizes": list(self.sizes),
            "parts": list(self.parts),
            "num_samples": self.num_samples,
            "seed": self.seed,
        }


def main() -> None:
    """Mix 700 samples of text from the web with 90 of code."""
    web = sw.wrap([{"text": f"web {i}"} for i in range(700)])
    code = sw.wrap([{"text": f"code {i}"} for i in range(90)])
    dataset = sw.concat([web, code])
    sampler = MixtureSampler([len(web), len(code)], [7, 3], num_samples=600, seed=5)
    check_sampler(sampler, ids=np.arange(len(dataset)), repeats=True, process=False)

    loader = sw.DataLoader(dataset, batch_size=20, sampler=sampler, output="numpy")
    for batch in loader:
        assert sum(text.startswith("code") for text in batch["text"]) == 6
    print(f"{len(loader)} batches of 14 samples from the web and 6 of code")

    # In two epochs of the mixture, the 90 samples of code came four times each.
    drawn = np.concatenate([sampler.indices(epoch, np.arange(600)) for epoch in range(2)])
    assert (np.bincount(drawn, minlength=len(dataset))[len(web) :] == 4).all()

    # Two ranks share the batches of one: the same samples at the same step.
    alone = sw.Plan(len(dataset), batch_size=20, sampler=sampler)
    shared = sw.Plan(len(dataset), batch_size=10, world_size=2, sampler=sampler)
    for step in range(alone.num_steps):
        halves = [shared.indices(0, step, rank) for rank in range(2)]
        assert np.array_equal(np.concatenate(halves), alone.indices(0, step, 0))


if __name__ == "__main__":
    main()
