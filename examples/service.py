"""Pictures decoded by two server processes feed two ranks; a server is killed in the middle.

The servers and the ranks open the same dataset, from this file. Each rank asks for its batches by
number, so whoever answers gives the same ones: the proof at the end is that of any other run. The
ranks are two loaders here; under torchrun each would be made in its own process, with rank and
world size found there.

    python examples/service.py
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shardwise as sw

NUM_SAMPLES, BATCH_SIZE, NUM_RANKS = 400, 8, 2


def brighter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """An augmentation, keyed by seed, epoch and sample: on every machine the same."""
    return {**sample, "jpg": sample["jpg"] * np.float32(rng.uniform(0.8, 1.2))}


def dataset() -> sw.Dataset:
    """What the servers and the ranks open, in the working directory."""
    decoded = sw.tar("pictures-*.tar").decode(jpg=sw.image(size=64), cls=int)
    return decoded.map(brighter)


def write_pictures() -> None:
    """Shards of noise."""
    rng = np.random.default_rng(0)
    with sw.TarWriter("pictures-{shard:03d}.tar", max_samples=100) as writer:
        for number in range(NUM_SAMPLES):
            picture = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(picture, "jpeg")
            writer.write({"__key__": f"{number:05d}", "jpg": picture.getvalue(), "cls": number})


def start_server(port: int = 0) -> tuple[subprocess.Popen[str], str]:
    """Start a server that ends 30 s after its last client; its address."""
    target = f"{Path(__file__).resolve()}:dataset"
    command = [sys.executable, "-m", "shardwise", "serve", target, "--port", str(port)]
    process = subprocess.Popen([*command, "--job", "30"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip().removeprefix("ready: ")


def main() -> None:
    """One epoch on two ranks, with a server killed on the way, and its proof."""
    write_pictures()
    dataset().fingerprint  # noqa: B018 - makes the indexes once, before the servers look for them
    processes, addresses = zip(*(start_server() for _ in range(2)), strict=True)
    ranks = [
        sw.DataLoader(
            dataset(),
            batch_size=BATCH_SIZE,
            shuffle=True,
            remainder="uneven",
            rank=rank,
            world_size=NUM_RANKS,
            executor=sw.service(addresses),
            coverage="coverage",
        )
        for rank in range(NUM_RANKS)
    ]
    for step, batches in enumerate(zip(*ranks, strict=True)):
        assert all(batch["jpg"].shape[1:] == (3, 64, 64) for batch in batches)
        if step == 10:
            processes[0].kill()
            print("killed a server")
    for rank, loader in enumerate(ranks):
        counts = loader.stats()["service"]
        answers = [server["answers"] for server in counts["servers"].values()]
        print(f"rank {rank}: {answers} batches by server, {counts['resent']} asked for again")
        loader.close()
    for process in processes:
        process.terminate()
        process.wait()
    certified = subprocess.run(
        [sys.executable, "-m", "shardwise", "certify", "coverage"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    print(certified.stdout)
    assert f"every one of {NUM_SAMPLES} samples exactly once" in certified.stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        main()
