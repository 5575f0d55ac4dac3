"""One rank of the matrix: reads the shards in every way it is told, and writes down what it got.

Arguments: the shards' directory, the directory to write to, and a file with a JSON list of
configurations: {"workers", "start", "remainder", "shuffle", "persistent", "group"}.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import warnings
from pathlib import Path

BATCH_SIZE, NUM_EPOCHS, SEED = 4, 3, 11
RANK_VARIABLES = ("RANK", "WORLD_SIZE")


def main(shards, out, configurations):
    import torch.distributed as dist

    import shardwise as sw

    warnings.simplefilter("error", UserWarning)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    # One import of torch for all workers of this rank that a forkserver makes.
    multiprocessing.set_forkserver_preload(["torch", "shardwise.torch"])
    todo = json.loads(Path(configurations).read_text())
    rank = os.environ["RANK"]
    ds = sw.tar(shards).select("bin").decode(bin=sw.array("<i8", shape=(2,)))
    with open(Path(out) / f"rank-{rank}.jsonl", "w") as lines:
        records = {}
        for grouped in (False, True):
            if grouped:
                dist.init_process_group("gloo")
            for number, configuration in enumerate(todo):
                if configuration["group"] == grouped:
                    records[number] = read(sw, ds, configuration)
        for number, configuration in enumerate(todo):
            lines.write(json.dumps({"configuration": configuration, **records[number]}) + "\n")
        train(sw, ds)
        lines.write(json.dumps({"samplers": samplers(sw, ds)}) + "\n")
        lines.write(json.dumps({"meshes": meshes(sw, ds)}) + "\n")
        dist.destroy_process_group()


def read(sw, ds, configuration):
    from torch.utils.data import DataLoader

    workers = configuration["workers"]
    it = sw.torch.IterableDataset(
        ds,
        batch_size=BATCH_SIZE,
        shuffle=configuration["shuffle"],
        seed=SEED,
        remainder=configuration["remainder"],
    )
    options = {}
    if workers:
        options["multiprocessing_context"] = configuration["start"]
        options["persistent_workers"] = configuration["persistent"]
    loader = DataLoader(it, batch_size=None, num_workers=workers, **options)
    # From here on the environment lies: rank and world size must have been found already.
    hidden = {name: os.environ.pop(name) for name in RANK_VARIABLES}
    epochs = []
    try:
        for epoch in range(NUM_EPOCHS):
            it.set_epoch(epoch)
            batches = []
            for batch in loader:
                ids = batch["__index__"].tolist()
                assert batch["__key__"] == [f"s{i:08d}" for i in ids]
                assert batch["bin"].tolist() == [[i, i] for i in ids]
                valid = batch["__valid__"].tolist() if "__valid__" in batch else None
                batches.append([ids, valid])
            assert len(batches) == len(loader), (len(batches), len(loader))
            epochs.append(batches)
    finally:
        os.environ.update(hidden)
    return {"rank": it.rank, "world_size": it.world_size, "epochs": epochs}


def train(sw, ds):
    """DDP over every remainder: unequal steps would leave a rank waiting for the others."""
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    for remainder in ("drop", "pad", "uneven"):
        it = sw.torch.IterableDataset(ds, batch_size=BATCH_SIZE, shuffle=True, remainder=remainder)
        for batch in DataLoader(it, batch_size=None):
            model(batch["bin"].float()).sum().backward()


def samplers(sw, ds):
    """What both samplers give this rank; its place is taken from the process group."""
    from torch.utils.data import DataLoader

    found = []
    for drop_last in (False, True):
        sampler = sw.torch.DistributedSampler(ds, seed=SEED, drop_last=drop_last)
        loader = DataLoader(ds, batch_size=BATCH_SIZE, sampler=sampler)
        epochs = []
        for epoch in range(NUM_EPOCHS):
            sampler.set_epoch(epoch)
            epochs.append([i for batch in loader for i in batch["bin"][:, 0].tolist()])
        found.append({"len": len(sampler), "valid": sampler.valid.tolist(), "epochs": epochs})
    batches = sw.torch.BatchSampler(ds, BATCH_SIZE, shuffle=True, seed=SEED)
    loader = DataLoader(ds, batch_sampler=batches)
    read = [batch["bin"][:, 0].tolist() for batch in loader]
    assert len(loader) == len(read)
    return {"rank": batches.rank, "distributed": found, "batches": read}


def meshes(sw, ds):
    import torch.distributed as dist

    from tests.torch_layer.programs.meshes import read_by_groups

    if dist.get_world_size() != 4:
        return None
    record = read_by_groups(
        sw, ds, batch_size=BATCH_SIZE, shuffle="full", seed=SEED, remainder="uneven"
    )
    dist.barrier()
    return record


if __name__ == "__main__":
    main(*sys.argv[1:])
