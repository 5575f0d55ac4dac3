"""Waiting for samples whose times vary: torch's DataLoader and shardwise, order kept.

Samples sleep, so that cores play no part: 5 % of them 20 times as long as the others, lognormal
ones, or bursts of slow batches. A step takes 5 % more than the workers need on average. The share
of the time that a program waits is printed for the whole epoch, with the start of the workers and
the first batch, and for the steps after the first 16.

    python benchmarks/varying_times.py [--rounds 2]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

import shardwise as sw

NUM_SAMPLES, BATCH, WORKERS = 2560, 16, 4


def seconds_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "rare":
        return np.where(rng.random(NUM_SAMPLES) < 0.05, 0.08, 0.004)
    if kind == "lognormal":
        return rng.lognormal(np.log(0.004), 1.0, NUM_SAMPLES)
    return np.where((np.arange(NUM_SAMPLES) // BATCH) % 4 == 0, 0.02, 0.004)


class Sleeping:
    """Samples that take some seconds each."""

    def __init__(self, seconds: np.ndarray) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds[index])
        return {"x": np.float32(index)}


def wait_shares(loader: Any, step_s: float) -> tuple[float, float]:
    """Train for an epoch; return the shares waited: of the whole, and after the first 16 steps."""
    began, waits, batches = time.perf_counter(), [], iter(loader)
    asked = began
    while next(batches, None) is not None:
        waits.append(time.perf_counter() - asked)
        if len(waits) == 16:
            warm = time.perf_counter()
        time.sleep(step_s)
        asked = time.perf_counter()
    now = time.perf_counter()
    return sum(waits) / (now - began), sum(waits[16:]) / (now - warm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    for kind in ("rare", "lognormal", "bursts"):
        data = Sleeping(seconds_of(kind))
        step_s = data.seconds.sum() / WORKERS / (NUM_SAMPLES / BATCH) * 1.05
        for _ in range(parser.parse_args().rounds):
            torchs = torch.utils.data.DataLoader(data, BATCH, num_workers=WORKERS)
            shares = {"torch": wait_shares(torchs, step_s)}
            for name, options in (
                ("threads", {"num_workers": 0, "num_threads": WORKERS}),
                ("processes", {"num_workers": WORKERS}),
            ):
                with sw.DataLoader(sw.wrap(data), BATCH, **options) as loader:
                    shares[name] = wait_shares(loader, step_s)
            row = (f"{name} {whole:.1%} ({warm:.1%})" for name, (whole, warm) in shares.items())
            print(kind, ", ".join(row), flush=True)


if __name__ == "__main__":
    main()
