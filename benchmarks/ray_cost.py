"""What Ray costs: batch servers and a build on Ray against local processes, in one run.

CPU is that of the program and of the processes that work for it; for Ray that is all of its own,
too (raylet, control store, agents). Both take turns. The cluster is started before, on this
machine, and its own idle CPU is told.

- servers: batches of 9.6 MB out of the server's cache, so that neither side decodes.
- build: shards of arrays that are made by a rule, 2 workers each.

    python -m benchmarks.ray_cost --batches 100 --shards 40 --rounds 3
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

import shardwise as sw
from benchmarks.service import ROWS, batch_server, data
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import BatchRequest

SAMPLES_PER_SHARD = 200


def cpu_s(*, of_children: bool) -> float:
    """CPU seconds of this process, and of all that it has started."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *(me.children(recursive=True) if of_children else ())):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def served(executor: Any, count: int, cpu: Callable[[], float]) -> tuple[float, float, float]:
    """Seconds to the first batch; then wall and CPU milliseconds a batch."""
    request = BatchRequest(0, 0, np.arange(ROWS, dtype=np.int64))
    began = time.perf_counter()
    batches = executor.run(request for _ in range(count + 30))
    next(batches)
    first = time.perf_counter() - began
    for _ in range(10):
        next(batches)
    used, began = cpu(), time.perf_counter()
    for _ in range(count):
        next(batches)
    wall, used = time.perf_counter() - began, cpu() - used
    batches.close()
    executor.close()
    return first, 1000 * wall / count, 1000 * used / count


@contextmanager
def local_server() -> Iterator[tuple[str, psutil.Process]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=batch_server, args=(theirs, "tcp"), daemon=True
    )
    process.start()
    yield ours.recv(), psutil.Process(process.pid)
    ours.send(None)
    process.join()


def servers(count: int) -> dict[str, tuple[float, float, float]]:
    """One server of each kind."""
    builder = BatchBuilder(data())
    began = time.perf_counter()
    with local_server() as (address, process):
        start_s = time.perf_counter() - began
        executor = sw.service(address)(builder, timeout=120)
        first, wall, used = served(
            executor, count, lambda: cpu_s(of_children=False) + sum(process.cpu_times()[:2])
        )
    results = {"server, local": (start_s + first, wall, used)}
    # Another name each time: the servers of a name that was dropped may not have ended yet.
    service = sw.service(ray=1, name=f"benchmark {time.monotonic_ns()}")
    executor = service(builder, timeout=120)
    results["server, Ray"] = served(executor, count, lambda: cpu_s(of_children=True))
    service.scale(0)
    return results


def sample(number: int) -> dict[str, object]:
    return {"npy": np.full((50, 100), number, dtype=np.float32), "cls": number}


def build(num_shards: int, options: dict[str, Any], *, of_children: bool) -> tuple[float, float]:
    """Wall and CPU seconds of a build."""
    with tempfile.TemporaryDirectory() as directory:
        used, began = cpu_s(of_children=of_children), time.perf_counter()
        numbers = range(num_shards * SAMPLES_PER_SHARD)
        pattern = Path(directory) / "{shard:04d}.tar"
        sw.build(numbers, pattern, map=sample, samples_per_shard=SAMPLES_PER_SHARD, **options)
        return time.perf_counter() - began, cpu_s(of_children=of_children) - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    began = time.perf_counter()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    print(f"load {os.getloadavg()[0]:.0f}; a cluster of this machine started in "
          f"{time.perf_counter() - began:.1f} s")  # fmt: skip
    used = cpu_s(of_children=True)
    time.sleep(10)
    print(f"idle, it takes {100 * (cpu_s(of_children=True) - used):.0f} ms of CPU a second")
    rounds = []
    for _ in range(options.rounds):
        found: dict[str, tuple[float, ...]] = dict(servers(options.batches))
        found["build, local"] = build(options.shards, {"num_workers": 2}, of_children=False)
        found["build, Ray"] = build(options.shards, {"ray": True}, of_children=True)
        rounds.append(found)
    for name in rounds[0]:
        columns = list(zip(*(found[name] for found in rounds), strict=True))
        medians = "  ".join(f"{statistics.median(values):8.2f}" for values in columns)
        every = "; ".join(", ".join(f"{value:.2f}" for value in values) for values in columns)
        print(f"{name:14} {medians}   ({every})")
    print("servers: s to the first batch, wall ms, CPU ms a batch; builds: wall s, CPU s")


if __name__ == "__main__":
    main()
