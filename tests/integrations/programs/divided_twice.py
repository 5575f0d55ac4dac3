"""A rank that has Accelerate prepare torch's loader around each of our parts, and reads it.

Argument: the directory to write to. Each rank writes `<rank>.json`: by part, the ids or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

import shardwise as sw

NUM_SAMPLES = 54  # the last batches of two ranks are equal, as Accelerate gathers them


def read(prepare: Callable[[], Any]) -> Any:
    try:
        return [i for batch in prepare() for i in batch["value"].tolist()]
    except sw.ShardwiseError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    accelerator = Accelerator(cpu=True)
    data = sw.wrap(range(NUM_SAMPLES))
    batches, undivided = (
        sw.torch.BatchSampler(data, 5),
        sw.torch.BatchSampler(data, 5, rank=0, world_size=1),
    )
    indices = sw.torch.DistributedSampler(data, shuffle=False)
    loaders = {
        "batch sampler": DataLoader(data, batch_sampler=batches),
        "sampler": DataLoader(data, batch_size=5, sampler=indices),
        "iterable": DataLoader(sw.torch.IterableDataset(data, batch_size=5), batch_size=None),
        "stateful": sw.torch.StatefulDataLoader(data, batch_sampler=batches),
        "undivided": DataLoader(data, batch_sampler=undivided),
    }
    found = {}
    for name, loader in loaders.items():
        if name == "stateful":
            found[name] = read(lambda loader=loader: accelerator.prepare(loader))
            continue
        for how, dispatch in (("", False), (", dispatched", True)):
            found[name + how] = read(
                lambda loader=loader, dispatch=dispatch: prepare_data_loader(
                    loader,
                    device=accelerator.device,
                    put_on_device=True,
                    dispatch_batches=dispatch,
                )
            )
            if name == "undivided":
                break  # one rank would read for all; keys can't be sent to the others
    Path(sys.argv[1], f"{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main()
