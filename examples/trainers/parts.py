"""What the examples share: digits in tar shards, a small network, and a ledger of what was used."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import shardwise as sw

__all__ = ["NUM_EPOCHS", "Ledger", "digits", "loss_of", "network", "run", "save", "train_loader"]

NUM_EPOCHS = 2
BATCH_SIZE = 50  # a rank; with 1,441 samples the last step of two ranks is padded


def digits(directory: Path, split: str = "train") -> sw.Dataset:
    """The images as float32 [64] in [0, 1] and their labels, from `directory/shards`."""
    data = sw.tar(directory / "shards" / split).select("png", "cls")
    return data.decode(png=sw.image("gray", size=8, dtype="float32"), cls=int)


def train_loader(directory: Path, **options: Any) -> sw.DataLoader:
    """Shuffled batches of this rank, the same number on each; `shardwise certify` proves them."""
    options = {"batch_size": BATCH_SIZE, "shuffle": True, "remainder": "pad", **options}
    options.setdefault("coverage", directory / "coverage")
    return sw.DataLoader(digits(directory), **options)


def network() -> nn.Module:
    """Images of 64 pixels to logits [B, 10]; the same weights on every rank and in every run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], batch: dict[str, Any]) -> torch.Tensor:
    """The mean loss of the batch's samples; the repeats that fill a batch don't count."""
    losses = cross_entropy(model(batch["png"]), batch["cls"], reduction="none")
    return (losses * batch["__valid__"]).sum() / len(losses)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a kill leaves the old one or the new one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


class Ledger:
    """Which samples each step took, one line of JSON a step and rank."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / f"ledger-{rank}.jsonl"

    def add(
        self, *, epoch: int, ids: torch.Tensor, valid: torch.Tensor, loss: torch.Tensor
    ) -> None:
        """Note the samples of a step of this rank, its repeats left out."""
        line = {"epoch": epoch, "ids": ids[valid].tolist(), "loss": round(loss.item(), 5)}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def add_batch(self, epoch: int, batch: dict[str, Any], loss: torch.Tensor) -> None:
        """Note the samples of a batch."""
        self.add(epoch=epoch, ids=batch["__index__"], valid=batch["__valid__"], loss=loss)


def run(train: Callable[..., None]) -> None:
    """Call `train(directory, stop_after=...)` with what the command line says, and certify it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--stop-after", type=int, metavar="STEPS")
    options = parser.parse_args()
    if not (options.directory / "shards").exists():
        raise SystemExit(
            f"no shards yet: python -m examples.trainers.parts {options.directory} writes them"
        )
    train(options.directory, stop_after=options.stop_after)
    if dist.is_initialized():
        dist.barrier()  # all ranks have written their lines
    if not dist.is_initialized() or dist.get_rank() == 0:
        certify = [sys.executable, "-m", "shardwise", "certify", options.directory / "coverage"]
        subprocess.run(certify, check=True)


if __name__ == "__main__":
    from examples.digits.data import write_shards

    write_shards(Path(sys.argv[1]) / "shards")
