"""One rank of the training: what a user would write, and a ledger of the samples it took.

Started by torchrun. Any number of ranks that divides the global batch gives the same global
batches, so a checkpoint of two ranks goes on with three.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import shardwise as sw
from examples.digits import GLOBAL_BATCH
from examples.digits.ledger import Ledger

CHECKPOINT_EVERY = 10


def digits(directory: Path) -> sw.Dataset:
    """The images as float32 [1, 8, 8] in [0, 1] and their labels."""
    data = sw.tar(directory).select("png", "cls")
    return data.decode(png=sw.image("gray", size=8, layout="CHW", dtype="float32"), cls=int)


def network() -> nn.Module:
    """A small convolutional network: float32 [B, 1, 8, 8] to logits [B, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 96, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(96, 96, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96 * 16, 10),
    )


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a kill leaves the old one or the new one, never a half."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def accuracy(model: nn.Module, loader: sw.DataLoader) -> float:
    """The share of test samples that are told right, counted over all ranks."""
    counts = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for batch in loader:
            right = model(batch["png"]).argmax(1) == batch["cls"]
            counts += torch.tensor([right.sum(), len(right)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(directory: Path, *, run: int, num_epochs: int) -> None:
    """Train to the end of `num_epochs`, from the checkpoint in `directory` if there is one."""
    world_size = dist.get_world_size()
    loader = sw.DataLoader(
        digits(directory / "train"),
        batch_size=GLOBAL_BATCH // world_size,
        shuffle=True,
        seed=0,
        remainder="uneven",
        coverage=directory / "coverage",
    )
    test_loader = sw.DataLoader(digits(directory / "test"), batch_size=60, remainder="uneven")

    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    step, resumed_from = 0, None
    checkpoint = directory / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step, resumed_from = state["step"], (state["run"], state["step"])
    parallel = DistributedDataParallel(model)

    def checkpoint_now() -> None:
        # Every rank has written its ledger and its coverage up to this step before the checkpoint
        # counts on it.
        state = loader.state_dict()
        dist.barrier()
        if dist.get_rank() == 0:
            save(
                checkpoint,
                {
                    "run": run,
                    "step": step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": state,
                },
            )

    with Ledger(directory / "ledger", run=run, rank=dist.get_rank()) as ledger:
        ledger.start(world_size=world_size, resumed_from=resumed_from)
        for epoch in range(loader.epoch, num_epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                optimizer.zero_grad()
                # Every sample weighs the same: DDP averages over ranks, whose last batches differ
                # in size. A rank whose batch is empty takes part in the averaging all the same.
                losses = cross_entropy(parallel(batch["png"]), batch["cls"], reduction="sum")
                (losses * world_size / GLOBAL_BATCH).backward()
                optimizer.step()
                step += 1
                ledger.trained(epoch=epoch, step=step, ids=batch["__index__"].tolist())
                if step % CHECKPOINT_EVERY == 0:
                    checkpoint_now()
            ledger.tested(epoch=epoch, accuracy=accuracy(model, test_loader))
        checkpoint_now()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(options.directory, run=options.number, num_epochs=options.epochs)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
