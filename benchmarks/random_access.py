"""What one sample costs, read by its id in any order from 20 shards, and what batches cost.

Run: `python benchmarks/random_access.py [DIRECTORY]`. Writes 20 shards of 1,000 samples (1 KiB
`bin`, `cls`, small `json`) into the directory (default: a temporary one) and reads them with a warm
page cache; CPU time a sample, the best of five runs.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.source import TarSource

RUNS = 5
NUM_SHARDS, SHARD_SIZE = 20, 1000
PAYLOADS = {"bin": bytes(1024), "cls": b"7", "json": b'{"caption": "a small one"}'}


def write(directory: Path) -> list[str]:
    urls = []
    for shard in range(NUM_SHARDS):
        urls.append(str(directory / f"{shard:03d}.tar"))
        with tarfile.open(urls[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(SHARD_SIZE):
                for field, data in PAYLOADS.items():
                    info = tarfile.TarInfo(f"{shard:03d}-{i:06d}.{field}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    build_indexes(urls, force=True, jobs=1)
    return urls


def best_of(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def main(directory: Path) -> None:
    source = TarSource(write(directory))
    num_samples = source.manifest.num_samples
    ids = np.random.default_rng(0).permutation(num_samples)
    source.read(ids)
    print(f"{'read':34} {'us/sample':>10} {'samples/s':>12}")
    for name, order, size, fields in (
        ("single, random, all fields", ids, 1, None),
        ("single, random, one field", ids, 1, ("cls",)),
        ("16 at once, random, all fields", ids, 16, None),
        ("64 at once, random, all fields", ids, 64, None),
        ("256 at once, random, all fields", ids, 256, None),
        ("64 at once, in order, all fields", np.arange(num_samples), 64, None),
        ("1024 at once, in order, all fields", np.arange(num_samples), 1024, None),
    ):
        parts = [order[i : i + size] for i in range(0, num_samples, size)]
        seconds = best_of(lambda p=parts, f=fields: [source.read(part, f) for part in p])
        print(f"{name:34} {seconds / num_samples * 1e6:10.1f} {num_samples / seconds:12,.0f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
