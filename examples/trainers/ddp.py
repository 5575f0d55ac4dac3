"""DistributedDataParallel: the loader's state lies in the checkpoint, which one rank writes."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from examples.trainers.parts import (
    NUM_EPOCHS,
    Ledger,
    loss_of,
    network,
    run,
    save,
    train_loader,
)


def train(directory: Path, *, stop_after: int | None = None) -> None:
    """Train on from the checkpoint, if there is one; stop after so many steps in all."""
    loader = train_loader(directory)
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint, step = directory / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    parallel = DistributedDataParallel(model)
    ledger = Ledger(directory, loader.rank)

    while loader.epoch < NUM_EPOCHS:
        for batch in loader:  # iterating again goes on to the next epoch
            loss = loss_of(parallel, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            ledger.add_batch(loader.epoch, batch, loss)
            if step == stop_after:
                # On every rank: each writes down what it has handed out up to here.
                position = loader.state_dict()
                dist.barrier()
                if loader.rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    save(checkpoint, {**state, "loader": position, "step": step})
                dist.barrier()
                return
        certificate = loader.certificate()  # of all ranks
        if loader.rank == 0:
            print(certificate["verdict"])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(train)
    dist.destroy_process_group()
