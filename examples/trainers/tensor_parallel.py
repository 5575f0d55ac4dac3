"""Data x tensor parallel: ranks that share a copy of the model get equal batches.

The loader divides over one dimension of the mesh. Start it with an even number of ranks.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from examples.trainers.parts import NUM_EPOCHS, Ledger, loss_of, network, run, train_loader


def train(directory: Path, *, stop_after: int | None = None) -> None:
    """Train up to so many steps; each rank of a pair holds half of the layers' rows or columns."""
    shape = (dist.get_world_size() // 2, 2)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    model = network()
    parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = train_loader(directory, group=mesh["dp"])
    ledger = Ledger(directory, dist.get_rank())

    step = 0
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():  # the mean over the copies of the model
                gradient = parameter.grad.to_local()
                dist.all_reduce(gradient, group=mesh["dp"].get_group())
                gradient /= mesh["dp"].size()
            optimizer.step()
            ledger.add_batch(loader.epoch, batch, loss)
            step += 1
            if step == stop_after:
                loader.state_dict()  # writes down what this rank has got up to here
                return


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(train)
    dist.destroy_process_group()
