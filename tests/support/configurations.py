"""Random configurations of a loader: data, decoders, transforms, damage, plan. Drawn by number.

Configuration n is the same one on every machine. Imported by worker processes, where the
transforms run: so it imports little.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.schedule import epoch_requests
from shardwise.engine.request import BatchRequest
from tests.support.decoders import InPlace, WholeColumn
from tests.support.memory_source import MemorySource

# Batches of one configuration that are made: the first ones and the last one.
_NUM_FIRST = 4


@dataclass(frozen=True)
class Configuration:
    """What a loader is made of, as its executor sees it.

    Attributes:
        number: which one it is.
        traits: names of what it exercises.
        maker: makes its batches.
        works: the work, of one or two epochs.
    """

    number: int
    traits: frozenset[str]
    maker: BatchBuilder
    works: tuple[BatchRequest, ...]


def configuration(number: int) -> Configuration:
    rng = np.random.default_rng([number, 2024])
    traits: set[str] = set()
    sizes = rng.integers(0, 100, rng.integers(1, 5))
    sizes[0] += 1
    damaged = _damaged(rng, int(sizes.sum()), traits)
    dataset = _decoded(rng, sizes, damaged, traits)
    if rng.random() < 0.2:
        traits.add("subset")
        dataset = dataset.subset(rng.integers(0, len(dataset), rng.integers(1, 2 * len(dataset))))
    collate = [None, None, None, list, summarised][rng.integers(5)]
    if collate is not None:
        traits.add("user collate")
    on_error = "raise"
    if damaged:
        on_error = ["skip", "replace", "raise"][rng.integers(3)]
        traits.add(on_error)
    seed = int(rng.integers(1 << 40))
    padded = collate is None and number % 4 == 0
    if padded:
        traits.add("padded")
    maker = BatchBuilder(
        dataset,
        seed=seed,
        collate=collate,
        ragged="pad" if padded else "list",
        on_error=on_error,
    )
    if dataset.layout():
        traits.add("filled in place")
    works = tuple(_works(rng, dataset, traits))
    return Configuration(number, frozenset(traits), maker, works)


# Data.


def _damaged(rng: np.random.Generator, num_samples: int, traits: set[str]) -> set[int]:
    if rng.random() < 0.6:
        return set()
    share = rng.choice([0.0, 0.1, 0.1, 0.5])
    several = set(np.flatnonzero(rng.random(num_samples) < share).tolist())
    traits.add("damage")
    return several or {int(rng.integers(num_samples))}


def _decoded(
    rng: np.random.Generator, sizes: np.ndarray, damaged: set[int], traits: set[str]
) -> sw.Dataset:
    """A dataset whose damaged samples fail in reading, in a decoder or in a transform."""
    num_samples = int(sizes.sum())
    where = ["read", "decoder", "transform"][rng.integers(3)] if damaged else ""
    broken = damaged if where == "decoder" else set()
    samples = [_sample(i, broken=i in broken) for i in range(num_samples)]
    transforms = _transforms(rng, traits)
    if where == "transform":
        transforms.append(FailsAt(tuple(sorted(damaged))))
    if rng.random() < 0.1 and where != "read":
        traits.add("wrapped")
        # Values as they are. All items have the fields of the first one.
        for index, sample in enumerate(samples):
            sample["value"] = index
            sample.pop("opt", None)
        dataset = sw.wrap(samples)
        decoders = {"cls": int, "txt": bytes.upper}
    else:
        source = MemorySource(samples, sizes.tolist())
        if where == "read":
            for index in damaged:
                source.fail_at(index)
        name = list(DECODERS)[rng.integers(len(DECODERS))]
        traits.add(name)
        decoders = DECODERS[name]
        dataset = sw.Dataset(source)
    if broken or rng.random() < 0.5 or transforms:
        # Without the field that some samples lack.
        dataset = dataset.select(*decoders, *(["bin"] if "bin" not in decoders else []))
    dataset = dataset.decode(**decoders)
    for transform in transforms:
        dataset = dataset.map(transform)
    return dataset


def _sample(index: int, *, broken: bool) -> dict[str, Any]:
    # Runs of samples that fit into one array, beside others that don't: what a column is may
    # differ from piece to piece, what a batch is may not.
    run = index // 16 % 3
    kinds = {
        "png": _image(index % 7),
        "bin": np.array([index, -index], "<i8").tobytes(),
        "cls": str(index * 3).encode(),
        "txt": f"text {index} é".encode(),
        "json": json.dumps({"id": index, "parts": list(range(index % 4))}).encode(),
        "npy": _npy(index if run else 3),
        "vec": bytes(4 if run == 1 else 6),
    }
    if broken:
        # In another field than its neighbour, so that it matters who is looked at first. Images
        # are cut: some of one may be written before its decoder notices.
        for name in [("png", "cls", "npy"), ("bin", "txt", "json", "vec")][index % 2]:
            kinds[name] = kinds[name][:-3] if name in ("png", "npy") else b"\xff"
    if index % 3:
        kinds["opt"] = b"only some have it"
    return {"__key__": f"{index:05d}", **kinds}


@cache
def _image(number: int) -> bytes:
    height, width = 9 + number, 16 - number
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG" if number % 2 else "PNG")
    return file.getvalue()


def _npy(index: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(index % 5, dtype=np.float32))
    return file.getvalue()


# Each set that fills rows in place has a layout of its own, so that it needs processes of its own.
DECODERS: dict[str, dict[str, Any]] = {
    "raw bytes": {},
    "text, json, int": {"txt": sw.text(), "json": sw.json(), "cls": int},
    "ragged": {"npy": sw.npy(), "png": sw.image("gray"), "vec": sw.array("<i2")},
    "float": {"cls": float, "txt": str},
    "CHW uint8": {"png": sw.image(size=8), "bin": sw.array("<i8", (2,)), "txt": str},
    "HWC float32": {
        "png": sw.image(size=(6, 10), layout="HWC", dtype="float32", fit="crop"),
        "cls": int,
    },
    "gray": {"png": sw.image("gray", size=5), "json": sw.json(), "bin": sw.array("uint8", (4, 4))},
    "scalar rows": {"bin": WholeColumn(), "cls": int},
    "row by row": {"bin": InPlace(), "npy": sw.npy()},
}


# Transforms and collate functions: importable, so that the workers' are these very ones.


def _transforms(rng: np.random.Generator, traits: set[str]) -> list[Callable[..., Any]]:
    if rng.random() < 0.45:
        return []
    traits.add("map")
    chosen = rng.choice(len(TRANSFORMS), rng.integers(1, 4), replace=False)
    transforms = [TRANSFORMS[i] for i in chosen]
    traits.update(transform.__name__ for transform in transforms)
    return transforms


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Augmentation, with generators of its own beside the given one."""
    [other] = rng.spawn(1)
    return {**sample, "noise": rng.random(5, dtype=np.float32), "flip": bool(other.integers(2))}


def ragged(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Arrays of another length for each sample, and one that is large now and then."""
    large = 20_000 if rng.random() < 0.02 else 2
    return {**sample, "ragged": rng.integers(0, 9, rng.integers(4)), "large": np.ones(large)}


def objects(sample: dict[str, Any]) -> dict[str, Any]:
    """All kinds of Python objects; not all come back as arrays."""
    number = int(sample["__key__"])
    return {
        **sample,
        "nested": {"a": [number, None, ("é", b"\x00")], "b": frozenset([number])},
        "huge": (1 << 70) + number,
        "none": None,
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3) + number),
        "scalar": np.float16(number % 100),
        "truth": number % 2 == 0,
    }


def moody(sample: dict[str, Any]) -> dict[str, Any]:
    """Types and shapes that change every 16 samples: pieces agree in themselves, batches don't."""
    number = int(sample["__key__"])
    mood = number // 16 % 3
    return {
        **sample,
        "number": [number, float(number), str(number)][mood],
        "nearly int": [number, number, float(number)][mood],
        "shape": np.zeros([(2, 3), (3, 2), (2, 3)][mood], dtype=["f4", "f4", "i2"][mood]),
        "maybe": None if mood == 1 else np.int16(number),
    }


def new(sample: dict[str, Any]) -> dict[str, Any]:
    """Another dict with other fields, and without the key."""
    return {"size": len(sample), "first": sorted(sample)[0]}


TRANSFORMS: list[Callable[..., Any]] = [noisy, noisy, ragged, objects, moody, new]


@dataclass(frozen=True)
class FailsAt:
    """Raises at some samples."""

    ids: tuple[int, ...]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["__key__"]) in self.ids:
            raise RuntimeError(f"does not like {sample['__key__']}")
        return sample


def summarised(samples: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """A user's collate: nested, with arrays and objects."""
    ids = np.array([sample["__index__"] for sample in samples], dtype=np.int32)
    return {"ids": ids, "rows": [list(sample.items()) for sample in samples]}, ids.astype("f8")


# Plans.


def _works(rng: np.random.Generator, dataset: sw.Dataset, traits: set[str]) -> list[BatchRequest]:
    world_size = int(rng.integers(1, 5))
    shuffle = [False, "full", "window"][rng.integers(3)]
    remainder = ["drop", "pad", "uneven"][rng.integers(3)]
    epoch_size = int(rng.integers(1, 2 * len(dataset) + 1)) if rng.random() < 0.25 else None
    batch_size = int(rng.integers(1, 71))
    num_samples = epoch_size or len(dataset)
    if remainder == "drop":
        batch_size = max(1, min(batch_size, num_samples // world_size))
        world_size = min(world_size, num_samples)
    plan = sw.Plan(
        len(dataset),
        batch_size=batch_size,
        world_size=world_size,
        seed=int(rng.integers(1000)),
        shuffle=shuffle,
        remainder=remainder,
        shard_sizes=dataset.shard_sizes if shuffle == "window" else None,
        epoch_size=epoch_size,
    )
    traits.update({f"shuffle={shuffle}", remainder, f"world_size={world_size}"})
    if epoch_size:
        traits.add("epoch_size")
    if rng.random() < 0.3 and plan.num_steps > 1:
        traits.add("resumed")
        resumed = plan.resumed(int(rng.integers(1, num_samples)))
        plan = resumed if resumed.num_steps else plan
    rank = int(rng.integers(world_size))
    if batch_size > 16:
        traits.add("several pieces")
    first_epoch = int(rng.integers(5))
    works: list[BatchRequest] = []
    for epoch in range(first_epoch, first_epoch + int(rng.integers(1, 3))):
        steps = list(epoch_requests(plan, epoch=epoch, rank=rank))
        works += steps[:_NUM_FIRST] + steps[_NUM_FIRST:][-1:]
    return works
