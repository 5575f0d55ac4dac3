"""Random augmentation that does not depend on who does it: python examples/keyed_augmentation.py.

A transform with a parameter `rng` gets a generator made from (seed, epoch, sample), so that a
sample looks the same whichever thread or rank makes it, and different in the next epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import shardwise as sw


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Flip half of the pictures, and change their brightness."""
    picture = sample["picture"]
    if rng.random() < 0.5:
        picture = picture[:, ::-1]
    return {**sample, "picture": (picture * rng.uniform(0.8, 1.2)).astype(np.float32)}


def main() -> None:
    pictures = np.random.default_rng(0).random((96, 16, 16), dtype=np.float32)
    data = sw.wrap([{"picture": picture} for picture in pictures]).map(augment)

    alone = sw.DataLoader(data, batch_size=32, shuffle=True, num_threads=0, output="numpy")
    together = sw.DataLoader(data, batch_size=32, shuffle=True, num_threads=4, output="numpy")
    epochs = []
    for loader in (alone, together):
        with loader:
            epochs.append([[batch["picture"] for batch in loader] for _ in range(2)])
    for epoch in range(2):
        for one, other in zip(epochs[0][epoch], epochs[1][epoch], strict=True):
            assert np.array_equal(one, other)
    assert not np.array_equal(epochs[0][0][0], epochs[0][1][0])
    print("no threads and four threads made the same pictures; the second epoch has others")


if __name__ == "__main__":
    main()
