"""WebDataset: tar shards as a stream, with a shuffle buffer of 1,000 samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.task import BATCH, SIZE, WORKERS, decode_pil, forever, shards


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import webdataset as wds

    urls = shards(directory, task)
    if task == "tiny-raw":
        return (1 for _ in wds.WebDataset(urls, shardshuffle=False))
    ds = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
    if task == "image-batch":
        ds = ds.to_tuple("jpg", "cls").map_tuple(decode, int)
    else:
        ds = ds.to_tuple("bin", "cls").map_tuple(lambda d: np.frombuffer(d, np.uint8), int)
    loader = wds.WebLoader(ds.batched(BATCH[task]), batch_size=None, num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))


def load_decoded(directory: Path, task: str) -> Iterator[int]:
    """Pictures by WebDataset's own `.decode("rgb8")`, resized by OpenCV."""
    import cv2
    import webdataset as wds

    urls = shards(directory, task)
    ds = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
    ds = ds.decode("rgb8").to_tuple("jpg", "cls")
    ds = ds.map_tuple(lambda image: cv2.resize(image, (SIZE, SIZE)), int)
    loader = wds.WebLoader(ds.batched(BATCH[task]), batch_size=None, num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))
