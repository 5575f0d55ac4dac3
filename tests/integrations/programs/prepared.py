"""One of two ranks: what comes out of loaders that Accelerate was asked to prepare, each its way.

Argument: the directory to write to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

import shardwise as sw
from shardwise.integrations.accelerate import prepare

NUM_SAMPLES, BATCH_SIZE = 1000, 16  # 31 steps of 32, and one of 8


def main(out):
    accelerator = Accelerator(cpu=True)
    data = sw.wrap(range(NUM_SAMPLES))
    options = {"batch_size": BATCH_SIZE, "shuffle": "full", "remainder": "uneven"}
    loaders = {
        "plain": accelerator.prepare(sw.DataLoader(data, **options)),
        "registered": accelerator.prepare_data_loader(sw.DataLoader(data, **options)),
        "facade": accelerator.prepare(sw.DataLoader(data, **options).as_torch_dataloader()),
        "integration": accelerator.prepare(prepare(accelerator, sw.DataLoader(data, **options))),
        "stateful": accelerator.prepare(
            sw.torch.StatefulDataLoader(
                sw.torch.IterableDataset(data, **options), batch_size=None, num_workers=1
            )
        ),
    }
    record = {
        name: [i for batch in b for i in batch["value"].tolist()] for name, b in loaders.items()
    }
    tensors = TensorDataset(torch.arange(NUM_SAMPLES))
    sampler = sw.torch.BatchSampler(tensors, BATCH_SIZE, remainder="drop")
    indices = sw.torch.StatefulDataLoader(tensors, batch_sampler=sampler)
    record["sampler"] = [i for (batch,) in accelerator.prepare(indices) for i in batch.tolist()]
    record["metrics"] = metrics(
        accelerator, sw.DataLoader(data, batch_size=BATCH_SIZE, remainder="pad")
    )
    record["sums"] = sums(data)
    (Path(out) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(record))


def metrics(accelerator, loader):
    """All ranks' samples, as an evaluation gathers them."""
    gathered = []
    for batch in prepare(accelerator, loader):
        ids, valid = accelerator.gather_for_metrics((batch["value"], batch["__valid__"]))
        gathered += ids[valid].tolist()
    return gathered


def sums(data):
    """In which steps of two epochs gradients are summed up, with and without the integration."""
    from accelerate.state import AcceleratorState, GradientState

    found = []
    for known in (True, False):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=5)
        loader = sw.DataLoader(data, batch_size=BATCH_SIZE)
        loader = prepare(accelerator, loader) if known else loader
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        steps = []
        for _ in range(2):
            for step, _ in enumerate(loader, start=1):
                with accelerator.accumulate(model):
                    if accelerator.sync_gradients:
                        steps.append(step)
        found.append(steps)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
