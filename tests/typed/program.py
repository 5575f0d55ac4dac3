"""A user's program, which type checkers read: what a loader, a build and a proof return.

Nobody runs it. `assert_type` fails where a type is another one, Any among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import torch

import shardwise as sw

data = sw.tar("train-{000..003}.tar").decode(jpg=sw.image(size=224), cls=int)
loader = sw.DataLoader(data, batch_size=64, shuffle=True)
assert_type(loader, sw.DataLoader[sw.Batch])


def step(images: torch.Tensor, labels: torch.Tensor) -> float:
    return float(images.sum() + labels.sum())


def first(batches: Iterator[sw.Batch]) -> dict[str, Any]:
    return next(batches)


for batch in loader:
    assert_type(batch, sw.Batch)
    step(batch["jpg"].float() / 255, batch["cls"])
    names: list[str] = list(batch.keys())
first(iter(loader))

for images, labels in sw.DataLoader(data, 64, as_tuple=("jpg", "cls"), output="torch"):
    step(images, labels)


def take(pair: tuple[Any, ...]) -> None: ...


tuples: sw.DataLoader[tuple[Any, ...]] = sw.DataLoader(data, 64, as_tuple=("jpg", "cls"))
for pair in tuples:
    take(pair)


class Pairs:
    def __init__(self, samples: list[Any]) -> None:
        self.count = len(samples)


for made in sw.DataLoader(data, 64, collate=Pairs):
    assert_type(made, Pairs)
for same in sw.DataLoader(data, 64, collate_fn=Pairs):
    assert_type(same.count, int)

with sw.DataLoader([1, 2, 3], batch_size=2) as opened:
    assert_type(opened.batch_at(0), sw.Batch)
    stats = opened.stats()
    assert_type(stats, sw.Stats)
    assert_type(stats["rate"], float)
    assert_type(stats["seconds"], dict[str, float])
    later = opened.stats(since=stats)
    proof = opened.certificate()
    assert_type(proof["ok"], bool)
    verdict: str = proof["verdict"] + later["verdict"]

report = sw.build(data, "out/{shard:06d}.tar", num_workers=0)
assert_type(report["out"], int)
assert_type(report["manifest"], str | None)
sw.show(data, num_samples=4).save("samples.png")

# Mistakes that a type checker must find: without one, "unused ignore" is an error.
sw.DataLoader(data, batchsize=64)  # type: ignore[call-arg]
loader.stats()["samplse"]  # type: ignore[typeddict-item]
sw.DataLoader(data, shuffle="ful")  # type: ignore[arg-type]
report["outt"]  # type: ignore[typeddict-item]
