"""One rank that trains two epochs through each of torch's doors; the run on two ranks is killed.

Arguments: directory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
import torch.utils.data

import shardwise as sw
from shardwise.torch import BatchSampler, DistributedSampler, IterableDataset, StatefulDataLoader

NUM, BATCH_SIZE = 105, 4


def doors(directory):
    """Each door's loader, and what has its state."""
    data = sw.wrap(range(NUM))

    def options(name):
        return {"shuffle": True, "coverage": directory / name}

    batches = {"batch_size": BATCH_SIZE, "remainder": "uneven"}
    iterable = IterableDataset(data, **batches, **options("iterable"))
    loader = StatefulDataLoader(iterable, batch_size=None, num_workers=1)
    yield "iterable", loader, loader
    sampler = BatchSampler(data, **batches, **options("batches"))
    loader = StatefulDataLoader(data, batch_sampler=sampler, collate_fn=list)
    yield "batches", loader, loader
    sampler = DistributedSampler(data, **options("indices"))
    loader = StatefulDataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    yield "indices", loader, loader
    sampler = DistributedSampler(data, **options("plain"))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    yield "plain", loader, sampler


def train(name, loader, part, directory, *, is_killed):
    """Go on from the checkpoint to the end; or leave after a checkpoint that is not saved."""
    saved = directory / f"{name}.json"
    epoch = 0
    if saved.exists():
        state = json.loads(saved.read_text())
        part.load_state_dict(state)
        epoch = state["epoch"]
    for number in range(epoch, 2):
        part.set_epoch(number)
        for step, _ in enumerate(loader, 1):
            if step % 3 == 0:
                taken = (min(step * BATCH_SIZE, part.num_left),) if part is not loader else ()
                state = part.state_dict(*taken)
                if is_killed and step == 6:
                    # The lines are written, and the checkpoint that they belong to never will be.
                    return
                dist.barrier()
                if dist.get_rank() == 0:
                    saved.write_text(json.dumps(state))
                dist.barrier()  # nobody is killed before it is there
    certificate = part.certificate()
    if dist.get_rank() == 0:
        print(json.dumps({"door": name, **certificate}), flush=True)


def main(directory):
    dist.init_process_group("gloo")
    directory = Path(directory)
    is_killed = dist.get_world_size() == 2
    for name, loader, part in doors(directory):
        train(name, loader, part, directory, is_killed=is_killed)
    if is_killed and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
