"""One rank that reads a mixture until it is done or until rank 0 kills itself, and writes it down.

Arguments: shards, directory, number of the run, global batch, "sample" or "batch", steps in all,
step before which rank 0 kills itself (-1: never), whether the weights change at 192 (0 or 1). After
each step rank 0 saves the loader's state.
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


def mixture(shards, per, *, changes):
    """Tars in windows and a small list, until 200 samples have come, in changing shares."""
    tars = sw.tar(shards).select("cls").decode(cls=int)
    small = sw.wrap([{"cls": 1000 + i} for i in range(17)])
    schedule = [(0, {"tars": 0.75, "small": 0.25}), *[(192, {"small": 1})][:changes]]
    parts = {"tars": tars, "small": small}
    return sw.mix(parts, schedule=schedule, until=240, per=per, block=16, seed=3)


def main(shards, directory, run, global_batch, per, num_steps, last_step, changes):
    dist.init_process_group("gloo")
    directory = Path(directory)
    data = mixture(shards, per, changes=int(changes))
    loader = sw.DataLoader(data, batch_size=int(global_batch) // dist.get_world_size())
    saved = directory / "state.json"
    done = 0
    if saved.exists():
        state = json.loads(saved.read_text())
        loader.load_state_dict(state)
        done = (state["epoch"] * 240 + state["position"]) // int(global_batch)
    with open(directory / f"run-{run}-rank-{loader.rank}.jsonl", "w") as lines:
        while done < int(num_steps):
            for batch in loader:
                if done == int(last_step) and loader.rank == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                ids, names = batch["__index__"].tolist(), batch["__source__"]
                lines.write(json.dumps({"step": done, "ids": ids, "names": names}) + "\n")
                lines.flush()
                dist.all_reduce(torch.ones(1))
                done += 1
                if loader.rank == 0:
                    new = directory / "state.new"
                    new.write_text(json.dumps(loader.state_dict()))
                    new.replace(saved)
                if done == int(num_steps):
                    break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
