"""Everything that has ranks, made in one process and used in others that are ranks of a group.

Arguments: how to start them ("fork", "spawn"), and the directory to write to. Each rank writes
`<rank>.json`: by what was read, the length and the ids, or the error.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

import shardwise as sw

NUM_SAMPLES, WORLD_SIZE = 53, 2


def make() -> dict[str, Any]:
    """Things by name; those that begin with "given" are told a rank."""
    data = sw.wrap(range(NUM_SAMPLES))
    resumed = sw.DataLoader(data, batch_size=5)
    resumed.load_state_dict({**resumed.state_dict(), "position": 13})
    begun = sw.DataLoader(data, batch_size=5, num_threads=2)
    next(iter(begun))
    return {
        "loader": sw.DataLoader(data, batch_size=5),
        "resumed": resumed,
        "begun": begun,
        "iterable": DataLoader(sw.torch.IterableDataset(data, batch_size=5), batch_size=None),
        "iterable in workers": DataLoader(
            sw.torch.IterableDataset(data, batch_size=5), batch_size=None, num_workers=2
        ),
        "batch sampler": DataLoader(data, batch_sampler=sw.torch.BatchSampler(data, 5)),
        "sampler": DataLoader(
            data, batch_size=5, sampler=sw.torch.DistributedSampler(data, shuffle=False)
        ),
        "given": sw.DataLoader(data, batch_size=5, rank=1, world_size=WORLD_SIZE),
        "given for a part": sw.DataLoader(data, batch_size=5, rank=2, world_size=3),
        "given all": sw.DataLoader(data, batch_size=5, rank=0, world_size=1),
    }


def rank_of(rank: int, things: dict[str, Any], out: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/store", rank=rank, world_size=WORLD_SIZE
    )
    found = {}
    for name, thing in things.items():
        try:
            length = len(thing)
            found[name] = [length, [batch["value"].tolist() for batch in thing]]
        except sw.ShardwiseError as error:
            found[name] = [type(error).__name__, str(error)]
    # A part of the ranks, divided where it is used: the user's right.
    data = sw.wrap(range(NUM_SAMPLES))
    here = sw.DataLoader(data, batch_size=5, rank=0, world_size=3)
    found["a part, made here"] = [len(here), [b["value"].tolist() for b in islice(here, 1)]]
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(
        rank_of, args=(make(), sys.argv[2]), nprocs=WORLD_SIZE, start_method=sys.argv[1]
    )
