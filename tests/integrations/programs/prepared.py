"""One of two ranks: loaders that Accelerate was told of, each in its way, and those it was not.

Argument: the directory to write to.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader

import shardwise as sw
from shardwise.integrations.accelerate import prepare

NUM_SAMPLES, BATCH_SIZE, STOP_AFTER = 203, 16, 3  # 6 steps of 32, and one of 11
DATA = sw.wrap(range(NUM_SAMPLES))
OPTIONS = {"batch_size": BATCH_SIZE, "shuffle": "full", "remainder": "pad"}


def loader(accelerator):
    return prepare(accelerator, sw.DataLoader(DATA, **OPTIONS))


def facade(accelerator):
    return accelerator.prepare(sw.DataLoader(DATA, **OPTIONS).as_torch_dataloader())


def stateful(accelerator):
    it = sw.torch.IterableDataset(DATA, **OPTIONS)
    return accelerator.prepare(sw.torch.StatefulDataLoader(it, batch_size=None, num_workers=1))


def batch_sampler(accelerator):
    sampler = sw.torch.BatchSampler(DATA, BATCH_SIZE, shuffle="full", remainder="drop")
    return accelerator.prepare(sw.torch.StatefulDataLoader(DATA, batch_sampler=sampler))


def main(out):
    out = Path(out)
    record = {
        kind.__name__: {"whole": trained(kind), "parts": trained(kind, out / kind.__name__)}
        for kind in (loader, facade, stateful, batch_sampler)
    }
    record["gathered"] = {f"{n} {r}": gathered(n, r) for n in (49, 101, 96) for r in (None, "pad")}
    record["refused"] = {name: message(fails) for name, fails in REFUSED.items()}
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(record))


def new_accelerator(**options):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def trained(kind, checkpoint=None):
    """Two epochs: the samples and the synchronised steps; with a checkpoint, begun anew there."""
    steps, synced = [], []
    for part in ("first", "rest") if checkpoint else ("whole",):
        accelerator = new_accelerator(gradient_accumulation_steps=5)
        batches = kind(accelerator)
        model = accelerator.prepare(torch.nn.Linear(1, 1))
        if part == "rest":
            accelerator.load_state(str(checkpoint))
        while batches.epoch < 2:
            for batch in batches:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["value"][:, None].float()).mean())
                    synced += [len(steps)] if accelerator.sync_gradients else []
                steps.append(batch["value"][batch.get("__valid__", ...)].tolist())
                if part == "first" and len(steps) == STOP_AFTER:
                    accelerator.save_state(str(checkpoint))
                    break
            if part == "first":
                break
    return steps, synced


def gathered(num_samples, remainder):
    """What an evaluation gathers, in its order."""
    accelerator = new_accelerator()
    data = sw.wrap(range(num_samples))
    options = {} if remainder is None else {"remainder": remainder}
    batches = prepare(accelerator, sw.DataLoader(data, batch_size=12, **options))
    tensors = [accelerator.gather_for_metrics(batch["value"]).tolist() for batch in batches]
    keys = [accelerator.gather_for_metrics(batch["__key__"]) for batch in batches]
    return [i for batch in tensors for i in batch], [int(key) for batch in keys for key in batch]


def prepared_plain(accelerator):
    list(accelerator.prepare(sw.DataLoader(DATA, batch_size=BATCH_SIZE)))


def facade_alone(_):
    list(sw.DataLoader(DATA, batch_size=BATCH_SIZE).as_torch_dataloader())


def uneven(accelerator):
    for batch in prepare(accelerator, sw.DataLoader(DATA, batch_size=12, remainder="uneven")):
        accelerator.gather_for_metrics(batch["value"])


def divided_twice(accelerator, part, *, num_workers=0, dispatched=False, **ranks):
    """torch's own loader around one of our parts, which has divided the data."""
    if part == "iterable":
        options = {"batch_size": None}
        data = sw.torch.IterableDataset(DATA, batch_size=BATCH_SIZE)
    elif part == "batch sampler":
        data, options = DATA, {"batch_sampler": sw.torch.BatchSampler(DATA, BATCH_SIZE, **ranks)}
    else:
        sampler = sw.torch.DistributedSampler(DATA, shuffle=False)
        data, options = DATA, {"batch_size": BATCH_SIZE, "sampler": sampler}
    loader = DataLoader(data, num_workers=num_workers, **options)
    device = {"device": accelerator.device, "put_on_device": True}
    list(prepare_data_loader(loader, dispatch_batches=dispatched, **device))


def skipped(accelerator):
    list(skip_first_batches(loader(accelerator), 3))


REFUSED = {
    "plain": prepared_plain,
    "facade alone": facade_alone,
    "uneven": uneven,
    "undivided": partial(divided_twice, part="batch sampler", rank=0, world_size=1),
    "skipped": skipped,
}
for part in ("iterable", "batch sampler", "sampler"):
    REFUSED[part] = partial(divided_twice, part=part)
    REFUSED[f"{part}, dispatched"] = partial(divided_twice, part=part, dispatched=True)
    REFUSED[f"{part} with workers"] = partial(divided_twice, part=part, num_workers=1)


def message(fails):
    try:
        fails(new_accelerator())
    except (sw.ShardwiseError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    main(*sys.argv[1:])
