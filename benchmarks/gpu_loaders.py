"""Batches of images and labels from shardwise and from rivals, for `benchmarks.gpu`.

All read the same JPEG files, cut out the centre and resize it to one size, and shuffle. Rivals
decode as most programs have it: Pillow with draft decoding.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shardwise as sw
from benchmarks.corpora import image_samples

Batches = Iterator[tuple[Any, Any]]
# A line of the results.
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all parts of the benchmark share.

    Attributes:
        directory: has `tar/*.tar` and `files/*.jpg`, the same pictures.
        device: "cuda" or "cpu".
        size: of the images, squared.
        workers: threads or processes of a loader.
        seconds: of each measurement.
        is_toy: whether models and data are tiny, to walk through the parts.
        until: no measurement starts after this time of `time.perf_counter`.
    """

    directory: Path
    device: str
    batch_size: int
    size: int
    workers: int
    seconds: float
    is_toy: bool = False
    until: float = math.inf

    @property
    def is_cuda(self) -> bool:
        return self.device == "cuda"

    def measure(self, what: str, measured: Callable[[], Row]) -> Row:
        """The line of one measurement, or why there is none; other measurements follow."""
        if time.perf_counter() > self.until:
            return {"what": what, "skipped": "the budget is spent"}
        try:
            return {"what": what, **measured()}
        except (ImportError, ValueError) as error:
            return {"what": what, "skipped": str(error)[:200]}
        except Exception as error:  # noqa: BLE001 - a rival's, say: the others are measured
            return {"what": what, "error": f"{type(error).__name__}: {error}"[:400]}

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


# Other pictures: each takes 8 ms to make, and minutes on a GPU are dear.
_NUM_PICTURES = 2_000


def make_images(directory: Path, count: int) -> None:
    """Write the pictures as shards and as files; beyond 2,000 they repeat."""
    (directory / "files").mkdir(parents=True)
    pattern = str(directory / "tar" / "images-{shard:04d}.tar")
    pictures = [sample["jpg"] for sample in image_samples(min(count, _NUM_PICTURES))]
    with sw.TarWriter(pattern, max_samples=max(1, min(500, count // 4))) as writer:
        for i in range(count):
            jpeg, label = pictures[i % len(pictures)], i % 1000
            writer.write({"__key__": f"{i:06d}", "jpg": jpeg, "cls": label})
            (directory / "files" / f"{i:06d}-{label}.jpg").write_bytes(jpeg)


def shardwise_loader(
    setting: Setting, *, decode_on: Any = "cpu", crop: bool = False, **options: Any
) -> Any:
    """Make a loader of the shards; with `crop` of random crops, which are decoded at full size."""
    how: Any = {"crop": "random"} if crop else {"fit": "crop"}
    decoder = sw.image(size=setting.size, decode_on=decode_on, **how)
    data = sw.tar(str(setting.directory / "tar")).decode(jpg=decoder, cls=int)
    given = {"batch_size": setting.batch_size, "shuffle": True, "seed": 1, "timeout": 60}
    return sw.DataLoader(data, **{**given, "rank": 0, "world_size": 1, **options})


def from_shardwise(setting: Setting, **options: Any) -> Batches:
    device = setting.device if setting.is_cuda else None
    with shardwise_loader(setting, device=device, **options) as loader:
        while True:
            for batch in loader:
                yield batch["jpg"], batch["cls"]


def synthetic(setting: Setting) -> Batches:
    shape = (setting.batch_size, 3, setting.size, setting.size)
    images = torch.randint(0, 255, shape, dtype=torch.uint8, device=setting.device)
    labels = torch.zeros(setting.batch_size, dtype=torch.int64, device=setting.device)
    while True:
        yield images, labels


@dataclass(frozen=True)
class Decode:
    """JPEG to uint8 `[size, size, 3]` by Pillow; of whatever a rival hands to its workers."""

    size: int

    def __call__(self, data: bytes) -> torch.Tensor:
        from PIL import Image

        image: Any = Image.open(io.BytesIO(data))
        image.draft("RGB", (self.size, self.size))
        image = image.convert("RGB")
        side, (width, height) = min(image.size), image.size
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        resized = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        return torch.from_numpy(np.array(resized))

    def of_sample(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        return self(sample["jpg"]), int(sample["cls"])


class Files(torch.utils.data.Dataset[Any]):
    """The pictures as files, as most programs for torch's DataLoader have them."""

    def __init__(self, setting: Setting) -> None:
        self.paths = sorted((setting.directory / "files").glob("*.jpg"))
        self.decode = Decode(setting.size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        return self.decode(path.read_bytes()), int(path.stem.partition("-")[2])


def from_torch(setting: Setting) -> Batches:
    loader = torch.utils.data.DataLoader(
        Files(setting),
        setting.batch_size,
        shuffle=True,
        num_workers=setting.workers,
        pin_memory=setting.is_cuda,
        drop_last=True,
        persistent_workers=True,
        timeout=60,
    )
    while True:
        yield from loader


def from_webdataset(setting: Setting) -> Batches:
    import webdataset as wds  # type: ignore[import-not-found]

    urls = sorted(map(str, (setting.directory / "tar").glob("*.tar")))
    data = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
    data = data.shuffle(1000).map(Decode(setting.size).of_sample)
    loader = wds.WebLoader(
        data.batched(setting.batch_size, partial=False),
        batch_size=None,
        num_workers=min(setting.workers, len(urls)),
        pin_memory=setting.is_cuda,
        persistent_workers=True,
        timeout=60,
    )
    while True:
        yield from loader


LOADERS: dict[str, Callable[[Setting], Batches]] = {
    "synthetic": synthetic,
    "shardwise": from_shardwise,
    "shardwise, threads": lambda s: from_shardwise(s, num_threads=s.workers, num_workers=0),
    "shardwise, processes": lambda s: from_shardwise(s, num_workers=s.workers),
    "shardwise, device": lambda s: from_shardwise(s, decode_on="device"),
    "shardwise, auto": lambda s: from_shardwise(s, decode_on="auto"),
    "torch DataLoader": from_torch,
    "webdataset": from_webdataset,
    "synthetic again": synthetic,
}
