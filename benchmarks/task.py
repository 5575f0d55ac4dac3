"""The three tasks: their sizes, their shards, and the decoders that loaders are given."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 2
SIZE = 224
BATCH = {"image-batch": 64, "tiny-batch": 256, "tiny-raw": 1}


def corpus(task: str) -> str:
    """The name of the corpus that a task reads."""
    return "images" if task == "image-batch" else "tiny"


def shards(directory: Path, task: str) -> list[str]:
    """The tar shards of a task's corpus."""
    return sorted(map(str, (directory / corpus(task)).glob("*.tar")))


def samples(directory: Path, task: str) -> Iterator[dict[str, Any]]:
    """All samples as bytes by field, for peers with a format of their own."""
    import shardwise as sw

    for sample in sw.tar(shards(directory, task)):
        yield {name: value for name, value in sample.items() if name != "__key__"}


def forever(epoch: Callable[[], Iterable[int]]) -> Iterator[int]:
    """Epoch after epoch."""
    while True:
        yield from epoch()


def decode_pil(data: bytes) -> Any:
    """JPEG to RGB [3, 224, 224] as most programs have it: Pillow, with draft decoding."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (SIZE, SIZE))
    resized = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1))


def decode_ours(data: bytes) -> Any:
    """The same with shardwise's decoder."""
    import shardwise as sw

    return sw.image(size=SIZE, interpolation="linear")(data)


def pair(task: str, sample: dict[str, Any], decode: Callable[[bytes], Any]) -> Any:
    """A sample's picture or payload, and its label."""
    if task == "image-batch":
        return decode(bytes(sample["jpg"])), int(bytes(sample["cls"]))
    return np.frombuffer(bytes(sample["bin"]), np.uint8).copy(), int(bytes(sample["cls"]))
