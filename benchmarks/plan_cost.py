"""What a plan costs: time to the first batch, memory, and time an index, for 1e6 and 1e9 samples.

Each row is measured in a fresh process. "first batch" is from the shards' sizes to the indices of
one rank's first batch, "next epoch" to the first batch of another epoch, "memory" what the peak of
the process grew by. An index in blocks of 256 costs mostly numpy's calls; `Plan.indices` asks for
blocks of some thousand and hands out steps of them.

    python benchmarks/plan_cost.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardwise.plan import Plan

NUM_SHARDS = 10_000
BATCH_SIZE = 64
WORLD_SIZE = 8
CASES = [(10**6, "full"), (10**6, "window"), (10**9, "full"), (10**9, "window")]


def peak_bytes() -> int:
    """The most memory that this process had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status: this benchmark needs Linux")


def best(call: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(num_samples: int, shuffle: str) -> dict[str, float]:
    sizes = np.full(NUM_SHARDS, num_samples // NUM_SHARDS)
    before = peak_bytes()
    began = time.perf_counter()
    plan = Plan(
        num_samples,
        batch_size=BATCH_SIZE,
        world_size=WORLD_SIZE,
        shuffle=shuffle,
        shard_sizes=sizes,
    )
    plan.indices(0, 0, 0)
    first = time.perf_counter() - began
    began = time.perf_counter()
    plan.indices(1, 0, 0)
    second = time.perf_counter() - began
    memory = peak_bytes() - before
    sampler = plan.sampler
    large, small = np.arange(65_536) + num_samples // 2, np.arange(256) + num_samples // 2
    num_steps = min(plan.num_steps, 2_000)
    steps = best(lambda: [plan.indices(0, s, 0) for s in range(num_steps)], 3)
    return {
        "first": first,
        "second": second,
        "memory": memory,
        "large": best(lambda: sampler.indices(0, large), 20) / large.size,
        "small": best(lambda: sampler.indices(0, small), 200) / small.size,
        "steps": steps / num_steps / BATCH_SIZE,
    }


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
        return
    print(
        f"{NUM_SHARDS:,} shards, batches of {BATCH_SIZE}, {WORLD_SIZE} ranks; "
        "the last three columns are ns an index\n"
    )
    print(
        "| samples | shuffle | first batch, ms | next epoch, ms | memory, MB "
        "| blocks of 64k | blocks of 256 | Plan.indices |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for num_samples, shuffle in CASES:
        done = subprocess.run(
            [sys.executable, __file__, str(num_samples), shuffle],
            stdout=subprocess.PIPE,
            check=True,
        )
        row = json.loads(done.stdout)
        print(
            f"| {num_samples:.0e} | {shuffle} | {row['first'] * 1e3:.1f} "
            f"| {row['second'] * 1e3:.1f} | {row['memory'] / 1e6:.1f} | {row['large'] * 1e9:.0f} "
            f"| {row['small'] * 1e9:.0f} | {row['steps'] * 1e9:.0f} |"
        )


if __name__ == "__main__":
    main()
