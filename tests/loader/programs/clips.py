"""One rank that reads clips for two epochs and certifies them; a first run on two is killed.

Arguments: shard, directory.
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
from tests.support.media import numbers_in


def main(shard, directory):
    dist.init_process_group("gloo")
    directory = Path(directory)
    saved = directory / "state.json"
    data = sw.tar(shard).select("mp4").clips("mp4", frames=4, step=6, jitter=6, size=(60, 80))
    loader = sw.DataLoader(
        data,
        batch_size=12 // dist.get_world_size(),
        shuffle=True,
        remainder="uneven",
        coverage=directory / "coverage",
    )
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    is_killed = dist.get_world_size() == 2
    step = 0
    name = f"{dist.get_world_size()}-{loader.rank}.jsonl"
    with open(directory / name, "w") as lines:
        while loader.epoch < 2:
            for batch in loader:
                epoch = loader.epoch
                for i, clip, media in zip(
                    batch["__index__"].tolist(), batch["mp4"], batch["__media__"], strict=True
                ):
                    assert numbers_in(clip.numpy(), "TCHW") == media["frames"]
                    lines.write(json.dumps([epoch, i, media["frames"][0]]) + "\n")
                lines.flush()
                dist.all_reduce(torch.ones(1))
                step += 1
                state = loader.state_dict()
                dist.barrier()
                if loader.rank == 0:
                    saved.write_text(json.dumps(state))
                dist.barrier()
                if is_killed and step == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
