"""FSDP2 and torch.distributed.checkpoint, which lets another number of ranks take up the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

from examples.trainers.parts import (
    NUM_EPOCHS,
    Ledger,
    loss_of,
    network,
    run,
    train_loader,
)

GLOBAL_BATCH = 96  # 2 x 48 or 3 x 32


class Weights(Stateful):
    """The model's and the optimizer's state, by torch's own functions."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def train(directory: Path, *, stop_after: int | None = None) -> None:
    """Train on from the checkpoint, if there is one; stop after so many steps in all."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = fully_shard(network(), mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    # A loader has state_dict and load_state_dict: to torch it is Stateful as it is.
    loader = train_loader(directory, batch_size=GLOBAL_BATCH // mesh["dp"].size(), group=mesh["dp"])
    state = {"weights": Weights(model, optimizer), "loader": loader}
    checkpoint = directory / "checkpoint"
    if checkpoint.exists():
        dcp.load(state, checkpoint_id=checkpoint)
    ledger = Ledger(directory, loader.rank)

    step = 0
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            ledger.add_batch(loader.epoch, batch, loss)
            if step == stop_after:
                dcp.save(state, checkpoint_id=checkpoint)
                return


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(train)
    dist.destroy_process_group()
