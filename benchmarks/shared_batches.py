"""CPU time of the ranks of one model for the same batches: alone, and with `share=`.

    python benchmarks/shared_batches.py

Ranks are processes with a gloo group and a mesh of 1 x N. They read a tar shard of 500 x 375 JPEGs,
decoded to 224 x 224 by two threads, and sum a row of each batch. Counted is the CPU time of all
ranks from their first batch on, without imports.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NUM_IMAGES, BATCH, EPOCHS = 512, 64, 2
CASES = [("one rank", 1, ""), ("4 ranks, each alone", 4, ""), ("4 ranks, share=", 4, "share")]


def write_shard(folder: Path) -> None:
    from PIL import Image

    import shardwise as sw

    rng = np.random.default_rng(0)
    with sw.TarWriter(str(folder / "{shard:03d}.tar")) as writer:
        for number in range(NUM_IMAGES):
            coarse = rng.integers(0, 256, (24, 32, 3), np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(coarse).resize((500, 375)).save(buffer, "jpeg", quality=90)
            writer.write({"__key__": f"{number:05d}", "jpg": buffer.getvalue()})


def run_rank(folder: str, share: str) -> None:
    import torch.distributed as dist

    import shardwise as sw

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    data = sw.tar(f"{folder}/*.tar").decode(jpg=sw.image(size=224))
    options = {"share": "tp"} if share else {}
    loader = sw.DataLoader(
        data, BATCH, shuffle=True, group=mesh["dp"], num_threads=2, num_workers=0, **options
    )
    next(iter(loader))
    dist.barrier()
    began = time.process_time()
    for _ in range(EPOCHS):
        for batch in loader:
            batch["jpg"][0].sum()
    print(time.process_time() - began, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def cpu_seconds(folder: Path, nproc: int, share: str) -> list[float]:
    """CPU time of each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), share],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(nproc)
    ]
    return [float(rank.communicate()[0].split()[-1]) for rank in ranks]


def main() -> None:
    if len(sys.argv) == 3:
        run_rank(*sys.argv[1:])
        return
    with tempfile.TemporaryDirectory() as folder:
        write_shard(Path(folder))
        print(f"{EPOCHS * NUM_IMAGES:,} images\n")
        print("| | CPU s | x one | of each rank |\n|---|---:|---:|---|")
        one = 0.0
        for name, nproc, share in CASES:
            seconds = cpu_seconds(Path(folder), nproc, share)
            one = one or sum(seconds)
            each = ", ".join(f"{s:.2f}" for s in seconds)
            print(
                f"| {name} | {sum(seconds):.2f} | {sum(seconds) / one:.2f} | {each} |", flush=True
            )


if __name__ == "__main__":
    main()
