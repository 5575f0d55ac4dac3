"""A rank with a cache directory of its own, as a node has: run by run_ranks. Prints bytes by epoch.

The argument is JSON: `folder`, `urls`, `storage`, `log` and `front` (of the gateway), `prefix`,
`shuffle`, `epochs`, `rooms` (bytes of each node's disk), `loader` (options), `kill` (rank, step).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

import shardwise as sw
from tests.support.servers import HttpServer


def sent(options: dict) -> int:
    """Bytes of shards that the gateway sent so far."""
    seen = HttpServer(options["front"], Path(options["log"])).requests()
    return sum(
        each["num_bytes"]
        for each in seen
        if each["method"] == "GET"
        and f"/{options['prefix']}/" in each["path"]
        and each["path"].partition("?")[0].endswith(".tar")
    )


def main(options: dict) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    number = options.get("nodes", [*range(world_size)])[rank]
    settings = sw.CacheSettings(
        f"{options['folder']}/node{number}",
        max_bytes=options["rooms"][number],
        block_bytes=options.get("block_bytes", 64 << 10),
        share=options.get("share", True),
    )
    storage = {"config": options["storage"], "hedge": False}
    data = sw.tar(options["urls"], storage=storage, cache=settings).select("bin")
    loader = sw.DataLoader(
        data, shuffle=options["shuffle"], remainder="uneven", timeout=120, **options["loader"]
    )
    if "state" in options:
        loader.load_state_dict(options["state"])
    assert len(data)
    dist.barrier()
    before = [sent(options)]
    for _ in range(options["epochs"]):
        ids = []
        for batch in loader:
            ids += batch["__index__"].tolist()
            if options.get("kill") == [rank, len(ids)]:
                os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        before.append(sent(options) if rank == 0 else 0)
        every = [None] * world_size
        dist.all_gather_object(every, (ids, loader.stats()["bytes_from"]))
        if rank == 0:
            seen = sorted(index for each, _ in every for index in each)
            line = {
                "sent": before[-1] - before[-2],
                "is_exact": seen == [*range(len(data))],
                "from": [each for _, each in every],
            }
            print("LINE", json.dumps(line), flush=True)
    state = loader.state_dict()
    dist.barrier()
    if rank == 0:
        print("STATE", json.dumps(state), flush=True)
    loader.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
