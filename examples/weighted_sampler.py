"""A sampler of your own: draws that become balanced from epoch to epoch.

`sw.WeightedSampler` draws by fixed weights. Here the weights change with the epoch: the first one
draws as the data are, the last one each class equally often, and those between a part of the way.

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


class AnnealedSampler:
    """Weights of count ** -t for a sample of a class of `count`; t goes from 0 to 1.

    Args:
        labels: the class of each sample.
        num_epochs: t is epoch / (num_epochs - 1), and 1 in all later epochs.
        num_samples: positions in an epoch.
        seed: any whole number; it also keys the randomness of transforms.
    """

    def __init__(
        self, labels: ArrayLike, *, num_epochs: int, num_samples: int, seed: int = 0
    ) -> None:
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        self._counts = counts[classes].astype(np.float64)
        self.num_epochs = num_epochs
        self.num_samples = num_samples
        self.seed = seed
        # The sampler of the epoch that was asked for last: dropping it changes the speed only.
        self._last: tuple[int, sw.WeightedSampler] | None = None

    def indices(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample ids drawn at `positions` of `epoch`, int64 `[k]`."""
        last = self._last
        if last is None or last[0] != epoch:
            share = min(1.0, epoch / max(1, self.num_epochs - 1))
            sampler = sw.WeightedSampler(
                self._counts**-share, num_samples=self.num_samples, seed=self.seed
            )
            last = self._last = epoch, sampler
        return last[1].indices(epoch, positions)

    def spec(self) -> dict[str, Any]:
        """What the order depends on: a state under 1 KB names the classes by a digest."""
        return {
            "sampler": "annealed",
            "counts": hashlib.sha256(self._counts.astype("<f8").tobytes()).hexdigest()[:16],
            "num_epochs": self.num_epochs,
            "num_samples": self.num_samples,
            "seed": self.seed,
        }


def main() -> None:
    """Balance two classes, of which the rare one has 50 of 1,000 samples, over three epochs."""
    labels = np.arange(1000) % 20 == 0
    dataset = sw.wrap([{"label": int(label)} for label in labels])
    sampler = AnnealedSampler(labels, num_epochs=3, num_samples=4000, seed=3)
    check_sampler(sampler, ids=np.arange(len(dataset)), repeats=True, process=False)

    loader = sw.DataLoader(dataset, batch_size=100, sampler=sampler, output="numpy")
    shares, state = [], {}
    for epoch in range(3):
        seen = []
        for step, batch in enumerate(loader):
            seen.append(batch["label"])
            if (epoch, step) == (2, 15):
                state = loader.state_dict()
        shares.append(float(np.concatenate(seen).mean()))
    print("the rare class has", ", ".join(f"{share:.0%}" for share in shares), "of the draws")
    assert 0.03 < shares[0] < 0.07
    assert 0.46 < shares[2] < 0.54

    # Resumed after 16 of 40 batches of the last epoch, the loader goes on with the 17th.
    loader.load_state_dict(state)
    rest = [batch["label"] for batch in loader]
    assert np.array_equal(np.concatenate(rest), np.concatenate(seen[16:]))


if __name__ == "__main__":
    main()
