"""Two ranks by torch.multiprocessing.spawn that meet at a file: the environment names no rank.

Arguments: the shards' directory and the directory to write to.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path


def read(rank, shards, out):
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    import shardwise as sw
    from tests.torch_layer.programs.matrix import BATCH_SIZE, SEED

    multiprocessing.set_forkserver_preload(["torch", "shardwise.torch"])
    meeting = (Path(out) / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    with open(Path(out) / f"rank-{rank}.jsonl", "w") as lines:
        # A spawned worker imports torch anew, those of a forkserver share one import.
        for start, num_workers in (("spawn", 1), ("forkserver", 2)):
            it = sw.torch.IterableDataset(
                sw.tar(shards).select(),
                batch_size=BATCH_SIZE,
                shuffle="full",
                seed=SEED,
                remainder="uneven",
            )
            loader = DataLoader(
                it, batch_size=None, num_workers=num_workers, multiprocessing_context=start
            )
            batches = [(batch["__index__"].tolist(), None) for batch in loader]
            lines.write(json.dumps({"start": start, "batches": batches}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing

    torch.multiprocessing.spawn(read, args=tuple(sys.argv[1:]), nprocs=2)
