"""On two ranks: a wids program with Accelerate's and Lightning's hands on its loader.

Writes what each rank got to `<directory>/<rank>.json`, by the name of the case.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
import torch.utils.data
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from shardwise.compat import wids

directory, index = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
found: dict[str, object] = {}


def loader(dataset, batch_size=5):
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=10)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler)


def drain(batches):
    numbers = [batch.tolist() for batch in batches]
    return {"batches": numbers, "len": len(batches)}


dataset = wids.ShardListDataset(index, transformations=lambda sample: int(sample["__index__"]))
found["plain"] = drain(loader(dataset))

for name, options in {
    "prepared": {},
    "seedable": {"use_seedable_sampler": True},
    "split": {"split_batches": True},
    "dispatched": {"dispatch_batches": True},
}.items():
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    given = loader(dataset, batch_size=10 if name == "split" else 5)
    prepared = accelerator.prepare(given)
    found[name] = drain(prepared)
    found[name + " again"] = drain(prepared)

whole = torch.utils.data.DataLoader(dataset, batch_size=5, sampler=wids.ShardedSampler(dataset))
found["undivided"] = drain(Accelerator(cpu=True).prepare(whole))

(directory / f"{rank}.json").write_text(json.dumps(found))
dist.destroy_process_group()
