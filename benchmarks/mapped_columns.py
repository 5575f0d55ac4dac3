"""A plan by the lengths of a billion samples in a mapped file, and workers of a mapped subset.

    python benchmarks/mapped_columns.py [SAMPLES]

Private memory is what the process has for itself (RssAnon), by its peak; pages of the file are the
system's and shared by all ranks of a machine. The file, 2 bytes a length, is made in the working
directory and removed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import shardwise as sw
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.plan import Plan

WORLD_SIZE, BLOCK = 1024, 1 << 24


def private_mb() -> float:
    """Memory that this process shares with no other."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Print the seconds of a block, and the most private memory in it."""
    peak, is_over = [private_mb()], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak.append(private_mb())

    thread = threading.Thread(target=watch)
    thread.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        is_over.set()
        thread.join()
        print(f"| {what} | {seconds:.2f} | {cpu_s:.2f} | {max(peak) - peak[0]:.0f} |", flush=True)


def write(path: Path, count: int, values: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Write a .npy file block by block, and map it."""
    first = values(0, 1)
    file = np.lib.format.open_memmap(path, "w+", first.dtype, (count,))
    for begin in range(0, count, BLOCK):
        stop = min(begin + BLOCK, count)
        file[begin:stop] = values(begin, stop)
    del file
    return np.load(path, mmap_mode="r")


def main() -> None:
    count = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**9
    rng = np.random.default_rng(0)
    folder = Path("mapped_columns")
    folder.mkdir()
    try:
        lengths = write(
            folder / "lengths.npy", count, lambda a, b: rng.integers(1, 9000, b - a, np.uint16)
        )
        print(f"{count:.0e} samples, {WORLD_SIZE:,} ranks of 64\n")
        print("| | s | CPU s | private MB |\n|---|---:|---:|---:|")
        with measured("plan by lengths, first batch"):
            by = sw.buckets(lengths)
            plan = Plan(count, world_size=WORLD_SIZE, seed=1, shuffle="full", batch_by=by)
            plan.indices(0, 0, 5)
        with measured("its description, for the first state"):
            plan.sampler.spec()
        with measured("100 steps"):
            for step in range(100):
                plan.indices(0, step, 5)
        with measured("another epoch"):
            plan.indices(1, 77, 5)
        with measured("as weights, first batch"):
            sampler = sw.WeightedSampler(lengths)
            sampler.indices(0, np.arange(64))
        with measured("their description, for the first state"):
            sampler.spec()
        half = write(
            folder / "half.npy", count // 10, lambda a, b: np.arange(a, b, dtype=np.int64) * 10
        )
        for name, ids in (("mapped", half), ("in memory", np.array(half))):
            with measured(f"subset of {len(ids):.0e}, {name}"):
                data = sw.wrap(range(count)).subset(ids)
            print(f"| pickled for workers, bytes: {len(pickle_by_value(data, [])):,} | | | |")
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


if __name__ == "__main__":
    main()
