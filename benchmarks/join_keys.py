"""Matching the keys of two datasets: `sw.join` against a dict in memory.

    python benchmarks/join_keys.py [SAMPLES]

The right dataset has the left's keys in another order. "again" is a second join of the same data,
whose matches are kept beside the indexes and mapped.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw


def write(folder: Path, keys: list[str], field: str) -> sw.Dataset:
    with sw.TarWriter(folder / "{shard:06d}.tar", max_samples=100_000) as writer:
        for key in keys:
            writer.write({"__key__": key, field: b"x"})
    return sw.tar(str(folder))


def measured(what: str, made: Callable[[], Any]) -> Any:
    began, cpu = time.perf_counter(), time.process_time()
    result = made()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {what} | {seconds:.2f} | {cpu_s:.2f} | {peak:.0f} |", flush=True)
    return result


def match_by_dict(left: sw.Dataset, right: sw.Dataset) -> list[int]:
    places = {key: place for place, key in enumerate(right.column("__key__").tolist())}
    return [places[key] for key in left.column("__key__").tolist()]


def main() -> None:
    count = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1_000_000
    keys = [f"{number:012d}" for number in range(count)]
    order = np.random.default_rng(0).permutation(count)
    with tempfile.TemporaryDirectory() as name:
        left = write(Path(name) / "left", keys, "bin")
        right = write(Path(name) / "right", [keys[at] for at in order], "txt")
        for side in (left, right):
            side.column("__key__")  # both ways read it from the file where it is kept
        print("| | s | CPU s | peak MB |\n|---|---:|---:|---:|")
        joined = measured("sw.join", lambda: sw.join(left, right))
        measured("again", lambda: sw.join(left, right))
        measured("a dict", lambda: match_by_dict(left, right))
        assert joined[count - 1]["__key__"] == keys[-1]


if __name__ == "__main__":
    main()
