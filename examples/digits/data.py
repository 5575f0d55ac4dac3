"""Real data for the demo: scikit-learn's handwritten digits as PNG files in tar shards."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import shardwise as sw

__all__ = ["TEST_SHARDS", "TRAIN_SHARDS", "write_shards"]

# Uneven on purpose, as real shards are; one holds a single sample. With a global batch of 60 the
# last step of an epoch has one sample as well, so that most ranks get an empty batch there.
TRAIN_SHARDS = (310, 2, 287, 423, 1, 418)
TEST_SHARDS = (200, 156)


def write_shards(directory: Path, *, seed: int = 0) -> None:
    """Write `directory/train/*.tar` and `directory/test/*.tar`: 1,441 and 356 samples.

    Each sample is an 8 x 8 PNG and its label. What the directories held before is removed.
    """
    # scikit-learn takes 2 s to import, and ranks and tests need the sizes only.
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(images))
    train, test = np.split(order, [sum(TRAIN_SHARDS)])
    for split, chosen, sizes in (("train", train, TRAIN_SHARDS), ("test", test, TEST_SHARDS)):
        shutil.rmtree(directory / split, ignore_errors=True)
        (directory / split).mkdir(parents=True)
        for number, rows in enumerate(np.split(chosen, np.cumsum(sizes)[:-1])):
            path = directory / split / f"{split}-{number:03d}.tar"
            with sw.TarWriter(str(path)) as shard:
                for row in rows.tolist():
                    label = int(digits.target[row])
                    shard.write({"__key__": f"{row:04d}", "png": _png(images[row]), "cls": label})


def _png(image: NDArray[np.uint8]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(image).save(data, format="PNG")
    return data.getvalue()
