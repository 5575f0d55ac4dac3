"""Write images and labels into tar shards, and read them back: python examples/write_shards.py.

Writes into a temporary directory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2
import numpy as np

import shardwise as sw


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        pattern = Path(directory) / "train-{shard:04d}.tar"
        # Shards of at most 200 samples; the index is written along with each.
        with sw.TarWriter(pattern, max_samples=200) as writer:
            for i in range(500):
                pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
                _, picture = cv2.imencode(".jpg", pixels)
                writer.write(
                    {
                        "__key__": f"{i:06d}",
                        "jpg": picture.tobytes(),
                        "cls": i % 10,
                        "json": {"source": "random", "number": i},
                    }
                )
        print(f"{writer.num_samples} samples in {len(writer.shards)} shards")

        data = sw.tar(directory).decode(jpg=sw.image("rgb"), cls=int, json=sw.json())
        sample = data[321]
        print(sample["__key__"], sample["jpg"].shape, sample["cls"], sample["json"])


if __name__ == "__main__":
    main()
