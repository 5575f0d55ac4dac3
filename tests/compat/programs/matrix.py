"""Two ranks, two workers each, with some start methods; the environment names no rank.

`matrix.py METHODS OUT URL...` writes what this rank reads: for each start method, three epochs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.utils.data import DataLoader

import shardwise.compat.webdataset as wds


def key(sample):
    return sample["__key__"]


def my_nodesplitter(source):
    rank, world_size, _, _ = wds.utils.pytorch_worker_info()
    for i, item in enumerate(source):
        if i % world_size == rank:
            yield item


def epochs(dataset, method, *, loader=DataLoader, persistent=True, num=3):
    loader = loader(
        dataset,
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    return [list(loader) for _ in range(num)]


def read(methods, urls):
    # One import for all workers of this rank that a forkserver makes.
    multiprocessing.set_forkserver_preload(["torch", "shardwise.compat.webdataset"])
    found = {}
    for method in methods:
        dataset = wds.WebDataset(urls, shardshuffle=True, seed=5).shuffle(20).map(key)
        found[method] = epochs(dataset, method)
    for method in set(methods) - {"spawn"}:
        dataset = wds.DataPipeline(
            wds.SimpleShardList(urls),
            wds.shuffle(100),
            my_nodesplitter,
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.shuffle(20),
            wds.map(key),
        )
        found[f"{method} by hand"] = epochs(dataset, method, persistent=False, num=1)
    dataset = wds.WebDataset(urls, shardshuffle=True, seed=5).shuffle(20).map(key)
    found["fork again"] = epochs(dataset, "fork", persistent=False)
    found["WebLoader"] = epochs(dataset, "fork", loader=wds.WebLoader, persistent=False)
    return found


if __name__ == "__main__":
    methods, out, *urls = sys.argv[1:]
    rank = os.environ["RANK"]
    # As in ranks that no launcher started: only the process group knows them.
    for name in list(os.environ):
        if "RANK" in name or "WORLD_SIZE" in name or name.startswith("TORCHELASTIC_"):
            del os.environ[name]
    dataset = wds.WebDataset(urls)
    dist.init_process_group(
        "gloo", init_method=f"file://{out}/rendezvous", rank=int(rank), world_size=2
    )
    Path(out, f"{rank}.json").write_text(json.dumps(read(methods.split(","), urls)))
    dist.destroy_process_group()
