"""What a training loop in pure Python loses beside a loader: its speed and its delays.

The loop gives Python's lock up between its slices, as calls of torch do, and may get it back late:
threads that decode take it, and cores are shared. Batches are taken as fast as the loader alone
makes them, so that it has work all the time; the wait for a batch is no part of the loop's time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

# Iterations of a slice, which take 10 to 30 µs alone.
_SLICE = 200
_RUN_S = 2.0


def measure_beside(batches: Iterator[Any], batch_s: float) -> dict[str, float]:
    """Measure the loop alone, and beside a loader that makes a batch in `batch_s` seconds."""
    spent: list[float] = []
    _spin(_RUN_S / 2, spent)
    alone_rate, alone_p99_s = _rate_of(spent)
    spent = []
    end = time.perf_counter() + _RUN_S
    while time.perf_counter() < end:
        next(batches)
        _spin(batch_s, spent)
    rate, p99_s = _rate_of(spent)
    return {
        "alone_per_s": alone_rate,
        "beside_per_s": rate,
        "ratio": rate / alone_rate,
        "alone_slice_p99_s": alone_p99_s,
        "beside_slice_p99_s": p99_s,
    }


def _spin(seconds: float, spent: list[float]) -> None:
    """Run slices for some time, one at least, and add what each took."""
    began = last = time.perf_counter()
    count = 0
    while True:
        for _ in range(_SLICE):
            count += 1
        time.sleep(0)
        now = time.perf_counter()
        spent.append(now - last)
        if now - began >= seconds:
            return
        last = now


def _rate_of(spent: list[float]) -> tuple[float, float]:
    """Iterations a second, and the 99th percentile of a slice in seconds."""
    return _SLICE * len(spent) / sum(spent), float(np.percentile(spent, 99))
