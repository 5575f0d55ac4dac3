"""How long `loader.regroup` takes, and the first batch after it, beside making a loader anew.

python benchmarks/regroup.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import shardwise as sw

ROUNDS = 20


def milliseconds(began: float) -> float:
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    data = sw.wrap([{"x": np.zeros((64, 64), np.float32)} for _ in range(20_000)])
    for name, options in {
        "inline": {"num_workers": 0, "num_threads": 0},
        "threads": {"num_workers": 0, "num_threads": 2},
        "processes": {"num_workers": 2},
    }.items():
        made: dict[str, Any] = {
            "global_batch_size": 96,
            "shuffle": True,
            "output": "numpy",
            **options,
        }
        with sw.DataLoader(data, rank=0, world_size=4, **made) as loader:
            batches = iter(loader)
            next(batches)
            calls, firsts = [], []
            for number in range(ROUNDS):
                began = time.perf_counter()
                loader.regroup(0, 3 + number % 4)
                calls.append(milliseconds(began))
                next(batches)
                firsts.append(milliseconds(began))
            state = loader.state_dict()
        anew = []
        for _ in range(3):
            began = time.perf_counter()
            with sw.DataLoader(data, rank=0, world_size=3, **made) as loader:
                loader.load_state_dict(state)
                next(iter(loader))
                anew.append(milliseconds(began))
        print(
            f"{name}: regroup {statistics.median(calls):.2f} ms, with the first batch "
            f"{statistics.median(firsts):.1f} ms; a new loader {statistics.median(anew):.1f} ms"
        )


if __name__ == "__main__":
    main()
