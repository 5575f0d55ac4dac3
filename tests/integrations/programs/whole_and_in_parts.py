"""One rank: an example's training without a stop, and stopped and taken up again by new objects.

Arguments: the example's name, the shards, the directory to write to, the steps to stop after, and
which trainings to do: "whole", "first" (up to the stop) and "rest", with commas between them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path


def main(name, shards, out, stop_after, parts):
    import torch.distributed as dist

    shards, out = Path(shards), Path(out)
    if name == "with_deepspeed":
        prepare_deepspeed()
    elif not name.startswith("with_"):  # the other frameworks make the process group
        dist.init_process_group("gloo")
    train = importlib.import_module(f"examples.trainers.{name}").train
    results = {}
    for part in parts.split(","):
        directory = out / ("whole" if part == "whole" else "parts")
        directory.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):  # by the other rank, or by an earlier part
            (directory / "shards").symlink_to(shards)
        stop = {"stop_after": int(stop_after)} if part == "first" else {}
        results[part] = train(directory, **stop)
    (out / f"result-{os.environ['RANK']}.json").write_text(json.dumps(results))
    if dist.is_initialized():
        dist.destroy_process_group()


def prepare_deepspeed():
    import deepspeed

    # It would compile this for ranks of one machine, which takes longer than the training.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")


if __name__ == "__main__":
    main(*sys.argv[1:])
