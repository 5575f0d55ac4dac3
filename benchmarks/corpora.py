"""Makes the two corpora that the benchmarks read, once, from pictures that packages ship.

`tiny`: 200,000 samples (1 KiB `bin`, `cls` as digits, a small `json`) in 20 tar shards.
`images`: 12,000 JPEGs of about 500x400 and 50 kB, cut from scikit-learn's photographs, with `cls`,
in 24 tar shards.

    python -m benchmarks.corpora DIRECTORY [--scale 0.1]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import shardwise as sw

TINY_SHARDS, IMAGE_SHARDS = 20, 24


def tiny_samples(num_samples: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for i in range(num_samples):
        yield {
            "__key__": f"{i:08d}",
            "bin": rng.bytes(1024),
            "cls": i % 1000,
            "json": {"id": i, "text": f"sample {i}"},
        }


def image_samples(num_samples: int) -> Iterator[dict[str, Any]]:
    import cv2
    from sklearn.datasets import load_sample_images

    photographs = [cv2.cvtColor(image, cv2.COLOR_RGB2BGR) for image in load_sample_images().images]
    # Enlarged, so that crops differ, with a little noise so that they weigh what photographs do.
    photographs = [cv2.resize(image, None, fx=2, fy=2) for image in photographs]
    rng = np.random.default_rng(0)
    for i in range(num_samples):
        whole = photographs[i % len(photographs)]
        height, width = int(rng.integers(360, 440)), int(rng.integers(460, 540))
        top = int(rng.integers(0, whole.shape[0] - height))
        left = int(rng.integers(0, whole.shape[1] - width))
        crop = whole[top : top + height, left : left + width].astype(np.int16)
        crop += rng.integers(-6, 7, crop.shape, dtype=np.int16)
        image = np.clip(crop, 0, 255).astype(np.uint8)
        ok, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])
        assert ok
        yield {"__key__": f"{i:06d}", "jpg": data.tobytes(), "cls": i % 1000}


def make(directory: Path, *, scale: float = 1.0) -> None:
    """Write both corpora unless they are there already at this scale."""
    done = directory / "done.json"
    if done.exists() and json.loads(done.read_text()) == {"scale": scale}:
        return
    sizes = {"tiny": int(200_000 * scale), "images": int(12_000 * scale)}
    for name, samples, num_shards in (
        ("tiny", tiny_samples, TINY_SHARDS),
        ("images", image_samples, IMAGE_SHARDS),
    ):
        size = sizes[name]
        pattern = directory / name / f"{name}-{{shard:06d}}.tar"
        with sw.TarWriter(
            str(pattern), max_samples=-(-size // num_shards), overwrite=True
        ) as writer:
            for sample in track(samples(size), total=size, description=f"writing {name}"):
                writer.write(sample)
    done.write_text(json.dumps({"scale": scale}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    make(arguments.directory, scale=arguments.scale)
