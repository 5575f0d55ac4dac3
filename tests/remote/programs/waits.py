"""Reads an epoch on this rank and prints what came: `waits.py MODE URL...`."""

from __future__ import annotations

import json
import sys
import threading

import shardwise as sw
from shardwise.base.counters import outages


def tell() -> None:
    """Say on stderr when this process begins to wait for a store."""
    while not outages():
        threading.Event().wait(0.02)
    sys.stderr.write("waits\n")


if __name__ == "__main__":
    mode, *urls = sys.argv[1:]
    if mode == "ranks":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        options = {"num_workers": 1} if dist.get_rank() else {"num_threads": 2}
    else:
        options = {"num_threads": 2}
        threading.Thread(target=tell, daemon=True).start()
    storage = {"prefetch_bytes": 4 << 20}
    data = sw.tar(urls, storage=storage).decode(cls=int)
    loader = sw.DataLoader(
        data, batch_size=2, shuffle=True, remainder="pad", output="numpy", **options
    )
    ids, checks = [], []
    for step, batch in enumerate(loader):
        if step == 0:
            sys.stderr.write("begun\n")
        ids += batch["__index__"][batch["__valid__"]].tolist()
        checks += [len(each) for each in batch["bin"]]
        if mode == "ranks":
            dist.barrier()
    stats = loader.stats()
    result = {"ids": ids, "sizes": sorted(set(checks)), "outage_s": stats["outage_s"]}
    # One write a line: print makes two, between which the other rank's line may come.
    sys.stdout.write(json.dumps(result) + "\n")
    if mode == "ranks":
        dist.destroy_process_group()
