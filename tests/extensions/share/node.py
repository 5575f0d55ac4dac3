"""A rank with a cache directory of its own, as a node has: run by run_ranks. Prints bytes by epoch.

The argument is JSON: `folder`, `urls`, `storage`, `log` and `front` (of the gateway), `prefix`,
`shuffle`, `epochs`, `rooms` (bytes of each node's disk), `loader` (options), `kill` (rank, number
of samples), `hosts` (of the nodes), `evaluates` (rank 0 reads all alone after the first epoch),
`pause` (the epoch in which all wait after a batch until a file `go` is there), `out` (the file of
the lines, in place of the output).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

import shardwise as sw
from shardwise.base.ranks import discover
from shardwise.extensions.share import block_server, peers, sharing
from tests.support.hosts import enter_host
from tests.support.remote_shards import body
from tests.support.servers import HttpServer
from tests.support.waiting import wait_for


def sent(options: dict) -> int:
    """Bytes of shards that the gateway sent so far."""
    seen = HttpServer(options["front"], Path(options["log"])).requests()
    return sum(
        each["num_bytes"]
        for each in seen
        if each["method"] == "GET"
        and f"/{options['prefix']}/" in each["path"]
        and each["path"].partition("?")[0].endswith(".tar")
        and each["status"] < 400
    )


def say(options: dict, line: str) -> None:
    """Write a line to the file `out`, or to the output."""
    if "out" in options:
        with Path(options["out"]).open("a") as file:
            file.write(f"{line}\n")
    else:
        print(line, flush=True)


def main(options: dict) -> None:
    ranks = discover()
    rank, world_size = ranks.rank, ranks.world_size
    number = options["nodes"][rank] if "nodes" in options else rank
    if not {"kill", "pause"} & options.keys():
        # On a busy machine a node that answers late is not one that failed.
        peers.CONNECT_S = sharing.CONNECT_S = peers._ANSWER_S = peers._HOLDER_S = 60.0
        block_server._FETCH_S = 50.0
    if "hosts" in options:
        enter_host(options["hosts"][number])
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    settings = sw.CacheSettings(
        f"{options['folder']}/node{number}",
        max_bytes=options["rooms"][number],
        block_bytes=options.get("block_bytes", 64 << 10),
        share=options.get("share", True),
    )
    storage = {"config": options["storage"], "hedge": options.get("hedge", False)}
    data = sw.tar(options["urls"], storage=storage, cache=settings).select("bin")
    loader = sw.DataLoader(
        data,
        shuffle=options["shuffle"],
        remainder="uneven",
        **{"timeout": 120, **options["loader"]},
    )
    if "state" in options:
        loader.load_state_dict(options["state"])
    assert len(data)
    dist.barrier()
    before = [sent(options)]
    folder = Path(options["folder"])
    for epoch in range(options["epochs"]):
        ids = []
        for batch in loader:
            ids += batch["__index__"].tolist()
            for index, data_of in zip(batch["__index__"].tolist(), batch["bin"], strict=True):
                assert bytes(data_of) == body(index, len(data_of))
            if options.get("pause") == epoch and len(ids) == len(batch["__index__"]):
                (folder / f"paused{rank}").touch()
                wait_for((folder / "go").exists)
            if options.get("kill") == [rank, len(ids)]:
                os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"read{rank}").touch()
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
            say(options, f"LINE {json.dumps(line)}")
        if epoch == 0 and rank == 0 and options.get("evaluates"):
            with sw.DataLoader(data, batch_size=8, rank=0, world_size=1) as alone:
                assert sum(len(batch["__index__"]) for batch in alone) == len(data)
            before.append(sent(options))
        dist.barrier()
    state = loader.state_dict()
    dist.barrier()
    if rank == 0:
        say(options, f"STATE {json.dumps(state)}")
    loader.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    dist.destroy_process_group()
