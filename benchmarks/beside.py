"""Decoding threads and worker processes, and what a Python loop keeps of its speed beside them.

    python -m benchmarks.beside [--cores 1 2] [--seconds 2] [--layout channels_last]

2,000 JPEGs of about 500x400 to 224x224, batches of 64, shuffled. Each row is a fresh process that
may use so many cores (as by `taskset`): the time from making the loader to its first batch, images
a second alone, the loop's speed beside the loader as a share of its speed alone, and the 99th
percentile of its slices (see `shardwise bench --beside`). `default` leaves the choice to the
loader, and is measured once its processes have taken over. "floor" decodes the same images with no
loader, in as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
from benchmarks.corpora import image_samples
from shardwise.extensions.tools.bench_beside import measure_beside

BATCH, SIZE, NUM_IMAGES = 64, 224, 2_000
LOADERS: dict[str, dict[str, int]] = {
    **{f"{n} threads": {"num_threads": n, "num_workers": 0} for n in (1, 2, 4, 8)},
    **{f"{n} processes": {"num_workers": n} for n in (1, 2, 4, 8)},
    "default": {},
}


def decode(directory: str, layout: str, seconds: float) -> float:
    """Images a second of one process that only decodes."""
    decoder = sw.image(size=SIZE, layout=layout, interpolation="linear")
    source = sw.tar(f"{directory}/*.tar").source
    files = list(map(bytes, source.read(np.arange(256), ("jpg",)).fields["jpg"]))
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        decoder(files[count % len(files)])
        count += 1
    return count / passed


def measure_floor(directory: str, layout: str, seconds: float, cores: int) -> dict[str, float]:
    """The images a second of so many processes without a loader."""
    with get_context("spawn").Pool(cores) as pool:
        rates = pool.starmap(decode, [(directory, layout, seconds)] * cores, chunksize=1)
    return {"images_per_s": sum(rates)}


def measure(directory: str, layout: str, seconds: float, options: dict[str, int]) -> dict[str, Any]:
    """Measure one loader in this process."""
    data = sw.tar(f"{directory}/*.tar").decode(
        jpg=sw.image(size=SIZE, layout=layout, interpolation="linear"), cls=int
    )
    # A trainer has imported torch: its 1.3 s are not the loader's.
    importlib.import_module("torch")
    began = time.perf_counter()
    with sw.DataLoader(
        data, BATCH, shuffle=True, rank=0, world_size=1, remainder="drop", **options
    ) as loader:
        batches: Iterator[Any] = chain.from_iterable(repeat(loader))
        next(batches)
        first_s = time.perf_counter() - began
        while loader.stats()["next_executor"]:
            next(batches)
        for _ in range(4):
            next(batches)
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            next(batches)
            count += 1
        beside = measure_beside(batches, passed / count)
    return {"first_s": first_s, "images_per_s": count * BATCH / passed, **beside}


def main() -> None:
    """Print a row for each loader and number of cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--layout", default="CHW")
    parser.add_argument("--loader", nargs="+", choices=["floor", *LOADERS])
    parser.add_argument("--in", dest="directory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.directory:
        [cores], [name] = options.cores, options.loader
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        arguments = (options.directory, options.layout, options.seconds)
        print(json.dumps(
            measure_floor(*arguments, cores) if name == "floor"
            else measure(*arguments, LOADERS[name])
        ))  # fmt: skip
        return
    with tempfile.TemporaryDirectory() as directory:
        pattern = str(Path(directory) / "{shard:03d}.tar")
        with sw.TarWriter(pattern, max_samples=250) as writer:
            for sample in image_samples(NUM_IMAGES):
                writer.write(sample)
        print("| cores | loader | first batch, s | images/s | loop keeps | 99 % of slices, ms |")
        print("|---|---|---:|---:|---:|---:|")
        for cores in options.cores:
            for name in options.loader or ["floor", *LOADERS]:
                command = [sys.executable, "-m", "benchmarks.beside", "--in", directory]
                command += ["--cores", str(cores), "--loader", name, "--layout", options.layout]
                command += ["--seconds", str(options.seconds)]
                line = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                found = {"first_s": float("nan"), "ratio": float("nan"), **json.loads(line)}
                slices = 1e3 * found.get("beside_slice_p99_s", float("nan"))
                print(
                    f"| {cores} | {name} | {found['first_s']:.2f} | {found['images_per_s']:,.0f} "
                    f"| {found['ratio']:.2f} | {slices:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
