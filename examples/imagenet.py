"""WebDataset's ImageNet recipe, with random crops in the decoder: python examples/imagenet.py.

Shards of JPEG files and labels; for training a random part of each picture at 32 x 32, mirrored or
not, for evaluation its centre. The part follows from seed, epoch and picture, so that a run gives
the same pixels with any number of threads, processes and ranks, and after any resume. The pictures
are cut from the two photographs that scikit-learn brings.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

import shardwise as sw

SIZE, BATCH, EPOCHS = 32, 32, 3
NUM_TRAIN, NUM_TEST = 256, 64


def write(directory: Path, num_samples: int, seed: int) -> None:
    """Write JPEG files of odd sizes: parts of a temple (label 0) and of a flower (label 1)."""
    rng = np.random.default_rng(seed)
    photographs = load_sample_images().images
    with sw.TarWriter(directory / "{shard:04d}.tar", max_samples=128) as writer:
        for number in range(num_samples):
            label = number % 2
            height, width = rng.integers(80, 160, 2)
            top, left = rng.integers(0, 427 - height), rng.integers(0, 640 - width)
            part = photographs[label][top : top + height, left : left + width]
            file = io.BytesIO()
            Image.fromarray(part).save(file, "JPEG", quality=90)
            writer.write({"__key__": f"{number:06d}", "jpg": file.getvalue(), "cls": label})


def train_data(directory: Path) -> sw.Dataset:
    """What a recipe writes as shuffle, decode, RandomResizedCrop and RandomHorizontalFlip."""
    crop = sw.image("rgb", size=SIZE, crop="random", scale=(0.25, 1.0), flip=0.5, dtype="float32")
    return sw.tar(directory).decode(jpg=crop, cls=int)


def test_data(directory: Path) -> sw.Dataset:
    """The centre of each picture."""
    return sw.tar(directory).decode(
        jpg=sw.image("rgb", size=SIZE, fit="crop", dtype="float32"), cls=int
    )


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


def accuracy(net: nn.Module, loader: sw.DataLoader) -> float:
    num_right = num_seen = 0
    net.eval()
    with torch.no_grad():
        for batch in loader:
            num_right += int((net(batch["jpg"]).argmax(1) == batch["cls"]).sum())
            num_seen += len(batch["cls"])
    net.train()
    return num_right / num_seen


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a model gains nothing from more
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder, "train"), Path(folder, "test")
        write(train, NUM_TRAIN, seed=0)
        write(test, NUM_TEST, seed=1)
        data = train_data(train)
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        with (
            sw.DataLoader(data, BATCH, shuffle=True, seed=0) as loader,
            sw.DataLoader(test_data(test), BATCH) as held_out,
        ):
            for epoch in range(EPOCHS):
                for batch in loader:
                    loss = nn.functional.cross_entropy(net(batch["jpg"]), batch["cls"])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(f"epoch {epoch}: {accuracy(net, held_out):.0%} of {NUM_TEST} are right")
        final = accuracy(net, sw.DataLoader(test_data(test), BATCH))
        assert final > 0.7, final

        # Another executor makes the same crops.
        pixels = []
        for options in ({"executor": "inline"}, {"executor": "processes", "num_workers": 2}):
            with sw.DataLoader(data, BATCH, shuffle=True, seed=0, **options) as loader:
                pixels.append([batch["jpg"] for batch in loader])
        assert all(torch.equal(one, other) for one, other in zip(*pixels, strict=True))
        print("one thread and two processes made the same pixels")


if __name__ == "__main__":
    main()
