"""One rank that reads until it is done or until it kills itself, and writes down what it got.

Arguments: shards, directory, number of the run, global batch, epochs, step after which rank 0 kills
itself (-1: never). Every step ends with a collective, as training does, and rank 0 then saves the
loader's state.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import shardwise as sw


def main(shards, directory, run, global_batch, num_epochs, last_step):
    dist.init_process_group("gloo")
    directory = Path(directory)
    data = sw.tar(shards).select("cls").decode(cls=int)
    loader = sw.DataLoader(
        data,
        batch_size=int(global_batch) // dist.get_world_size(),
        shuffle=True,
        seed=7,
        remainder="uneven",
        num_threads=2,
    )
    saved = directory / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    step = 0
    with open(directory / f"run-{run}-rank-{loader.rank}.jsonl", "w") as lines:
        while loader.epoch < int(num_epochs):
            for batch in loader:
                ids = batch["__index__"].tolist()
                state = loader.state_dict()
                after = [state["epoch"], state["position"]]
                lines.write(json.dumps({"after": after, "rank": loader.rank, "ids": ids}) + "\n")
                lines.flush()
                dist.all_reduce(torch.ones(1))
                if loader.rank == 0:
                    if step == int(last_step) and int(run) % 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    new = directory / "state.new"
                    new.write_text(json.dumps(state))
                    new.replace(saved)
                    if step == int(last_step):
                        os.kill(os.getpid(), signal.SIGKILL)
                step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
