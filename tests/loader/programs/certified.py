"""One rank that trains two epochs with a coverage directory; a first run on two ranks is killed.

Arguments: shards, directory.
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


def main(*arguments):
    *shards, directory = arguments
    dist.init_process_group("gloo")
    saved = Path(directory) / "state.json"
    loader = sw.DataLoader(
        sw.tar(shards).select("cls").decode(cls=int),
        batch_size=12 // dist.get_world_size(),
        shuffle=True,
        remainder="uneven",
        num_threads=2,
        coverage=Path(directory) / "coverage",
    )
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    is_killed = dist.get_world_size() == 2
    step = 0
    while loader.epoch < 2:
        for _ in loader:
            step += 1
            dist.all_reduce(torch.ones(1))
            if step % 3 == 0:
                state = loader.state_dict()
                if is_killed and step == 6 and loader.rank == 1:
                    # Its line is written, and the checkpoint that it belongs to never will be.
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.barrier()
                if loader.rank == 0:
                    saved.write_text(json.dumps(state))
    certificate = loader.certificate()
    # One write, so that two ranks' lines stay apart.
    sys.stdout.write(json.dumps(certificate) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
