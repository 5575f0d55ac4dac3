"""Directories of metrics: of real loaders, and written by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

_SUMS = ("samples", "batches", "wait_s", "bytes_fetched", "hits", "misses")


def lines_of(directory: Path) -> list[list[dict[str, Any]]]:
    """The whole lines of each file; the end of one may be on its way."""
    texts = [path.read_text() for path in sorted(directory.glob("metrics-*.jsonl"))]
    files = [[json.loads(line) for line in text.split("\n")[:-1]] for text in texts]
    return [lines for lines in files if lines]


def write_rank(directory: Path, rank: int, waits: list[float], /, **changes: Any) -> Path:
    """A file of a rank of four that waits for these shares of each interval of 10 s.

    `changes` are made to each line. The last line is written now.
    """
    directory.mkdir(exist_ok=True)
    path = directory / f"metrics-20260101T000000-{rank:08x}-{rank:05d}.jsonl"
    began = time.time() - 10 * len(waits)
    lines = []
    for number in range(len(waits) + 1):
        waited = 10 * sum(waits[:number])
        sums = {**dict.fromkeys(_SUMS, 0), "samples": 640 * number, "batches": 10 * number}
        pairs = [[100.0, 10 * number]] if number else []
        totals = {**sums, "wait_s": waited, "seconds": {"read": waited}, "wait_ms": pairs}
        line = {
            "version": 1,
            "time": began + 10 * number,
            "interval_s": 10.0,
            "rank": rank,
            "world_size": 4,
            "epoch": 0,
            "progress": number / 100,
            "totals": totals,
            "waiting_s": 0.0,
            "bound_by": "read",
            "verdict": "read-bound",
            "slowest_shards": [{"url": f"s/{rank}.tar", "seconds_a_sample": 0.01}],
        }
        lines.append(json.dumps(line | changes) + "\n")
    path.write_text("".join(lines))
    return path
