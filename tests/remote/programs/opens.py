"""A rank with caches of its own that opens datasets of stores, and then reads them."""

from __future__ import annotations

import json
import os
import sys

import torch.distributed as dist

import shardwise as sw
from shardwise.storage import read_whole

settings = json.loads(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
# As on a node of its own.
os.environ["XDG_CACHE_HOME"] = f"{sys.argv[2]}/{rank}"
storage = sw.StorageOptions(config=settings["config"], hedge=False)
datasets = [
    getattr(sw, name)(url, storage=storage, **options)
    for name, url, options in settings["datasets"]
]
for dataset in datasets:
    assert len(dataset) * len(dataset.fields)
dist.barrier()
if not rank:
    read_whole(settings["mark"], options=storage)
dist.barrier()
found = []
for dataset in datasets:
    options = {"shuffle": "full", "remainder": "uneven", "executor": "inline", "output": "numpy"}
    loader = sw.DataLoader(dataset, batch_size=7, **options)
    found.append([index for batch in loader for index in batch["__index__"].tolist()])
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
