"""torchft's replicas: one is killed, one joins, and every global batch stays as it is.

The lighthouse of torchft names the participants of each step, and its manager averages their
gradients. A step counts only if all participants commit it. Each replica then continues as the rank
that it is now, by `loader.regroup`.

    python examples/torchft_replicas.py

Needs `pip install torchft`. What every replica committed is compared with the global batches of one
process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw

NUM_SAMPLES, GLOBAL_BATCH = 607, 24


def make_loader() -> sw.DataLoader:
    return sw.DataLoader(
        sw.wrap(np.arange(NUM_SAMPLES)),
        global_batch_size=GLOBAL_BATCH,
        shuffle=True,
        remainder="uneven",
        rank=0,
        world_size=1,
        num_workers=0,
    )


def run_replica(
    name: str, lighthouse: str, folder: Path, die_at: int | None, end_at: int | None
) -> None:
    """Train with the replicas that are there; be killed after some steps, or end it for all."""
    import torch
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo

    torch.set_num_threads(1)
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    loader = make_loader()
    weight = torch.zeros(1)
    committed = loader.state_dict()

    def load(state: dict[str, Any]) -> None:
        nonlocal committed
        weight.copy_(state["weight"])
        committed = state["loader"]

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        state_dict=lambda: {"weight": weight, "loader": committed},
        load_state_dict=load,
        use_async_quorum=False,
        replica_id=name,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=timedelta(seconds=20),
        quorum_timeout=timedelta(seconds=60),
    )
    num_steps, is_over = 0, False
    with (folder / f"{name}.jsonl").open("a", buffering=1) as log:
        while not is_over:
            manager.start_quorum()
            world = manager.participating_rank(), manager.num_participants()
            is_same = world == (loader.rank, loader.world_size)
            if committed["position"] == 0 or not is_same or loader.state_dict() != committed:
                loader.load_state_dict(committed)  # also takes back a step that was not committed
                loader.regroup(*world)
                batches = iter(loader)
            place, batch = [committed["epoch"], committed["position"]], next(batches)
            if num_steps == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            # A model's gradient over this replica's share, and whether the training is over.
            shared = torch.tensor([float(len(batch["__index__"])), float(num_steps == end_at)])
            manager.allreduce(shared).wait()
            num_steps += 1
            if manager.should_commit():
                weight += shared[0]
                committed, is_over = loader.state_dict(), bool(shared[1] > 0)
                line = {"place": place, "world": world, "ids": batch["__index__"].tolist()}
                log.write(json.dumps(line) + "\n")
    os._exit(0)  # without waiting for the threads of torchft's manager


def main() -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=2000, heartbeat_timeout_ms=4000
    )
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(number: int, die_at: int | None = None, end_at: int | None = None) -> Any:
            arguments = (f"replica{number}", lighthouse.address(), folder, die_at, end_at)
            process = context.Process(target=run_replica, args=arguments)
            process.start()
            return process

        victim = start(1, die_at=6)
        others = [start(0), start(2)]
        victim.join()
        others.append(start(3, end_at=6))
        for process in others:
            process.join()
        lighthouse.shutdown()
        shares = defaultdict(list)
        for path in folder.iterdir():
            for text in path.read_text().splitlines():
                line = json.loads(text)
                shares[tuple(line["place"])].append((line["world"], line["ids"]))

    one_process = make_loader()
    worlds = set()
    for epoch in range(max(shares)[0] + 1):
        position = 0
        for batch in one_process:
            parts = sorted(shares.pop((epoch, position), []))
            if not parts and not shares:
                break
            worlds.add(len(parts))
            assert [world for world, _ in parts] == [[r, len(parts)] for r in range(len(parts))]
            assert [i for _, ids in parts for i in ids] == batch["__index__"].tolist()
            position += len(batch["__index__"])
    assert not shares
    print(json.dumps({"killed": victim.exitcode, "worlds": sorted(worlds)}))


if __name__ == "__main__":
    main()
