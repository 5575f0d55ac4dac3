"""What a batch of 38.5 MB costs the main thread when it is ready, beside torch's DataLoader.

    python -m benchmarks.handover [--batches 20]

256 rows of 3x224x224 uint8 from a torch dataset in `sw.wrap`: arrays, tensors, arrays of two shapes
that are padded, and a `collate` of one's own that stacks tensors. The trainer pauses until batches
are ready, so that what `next()` takes is the hand-over: its CPU time in the main thread, the median
of the batches, and `stats()["seconds"]["hand over"]` a batch. The third column is the CPU time of
dropping a batch of which each page was read. torch's DataLoader is measured in the same run. It
needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import shardwise as sw

ROWS = 256
# Batches that start processes and threads, and tell the loader what is in one.
WARM = 3


class Rows(torch.utils.data.Dataset[Any]):
    """Rows in memory: nothing is read or decoded."""

    def __init__(self, num_rows: int, kind: str) -> None:
        self.num_rows, self.kind = num_rows, kind
        self.row = np.random.default_rng(0).integers(0, 255, (3, 224, 224), dtype=np.uint8)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> Any:
        if self.kind == "tensors":
            return {"x": torch.from_numpy(self.row)}
        return {"x": self.row[:, : 224 - (index % 2 if self.kind == "padded" else 0)]}


def stack(samples: list[dict[str, Any]]) -> torch.Tensor:
    """A collate of one's own."""
    return torch.stack([torch.from_numpy(sample["x"]) for sample in samples])


def main_thread_ms(batches: Iterator[Any], count: int, pause_s: float) -> tuple[float, float]:
    """CPU time of the main thread in `next()` and in dropping its batch, in ms a batch."""
    took, dropped = [], []
    for number in range(count):
        time.sleep(pause_s)
        began = time.thread_time()
        batch = next(batches)
        took.append(time.thread_time() - began)
        (batch["x"] if isinstance(batch, dict) else batch).sum()
        began = time.thread_time()
        del batch
        dropped.append(time.thread_time() - began)
        if number == WARM - 1:
            took.clear()
            dropped.clear()
    return 1e3 * statistics.median(took), 1e3 * statistics.median(dropped)


def main() -> None:
    """Print a row for each source and executor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.3, help="seconds that a batch has")
    options = parser.parse_args()
    count = WARM + options.batches
    print(f"{'source':10} {'loader':22} {'next, ms':>10} {'drop, ms':>10} {'hand over, ms':>14}")
    for kind in ("arrays", "tensors", "padded", "collate"):
        rows = Rows(ROWS * (count + 2), kind)
        for name, executor in (
            ("threads", {"num_threads": 2, "num_workers": 0}),
            ("processes", {"num_workers": 2}),
        ):
            more: dict[str, Any] = {"padded": {"ragged": "pad"}, "collate": {"collate": stack}}.get(
                kind, {}
            )
            with sw.DataLoader(
                sw.wrap(rows), ROWS, rank=0, world_size=1, **executor, **more
            ) as loader:
                took, dropped = main_thread_ms(iter(loader), count, options.pause)
                stats = loader.stats()
            handed = 1e3 * stats["seconds"]["hand over"] / stats["batches"]
            label = f"shardwise, {name}"
            print(f"{kind:10} {label:22} {took:10.2f} {dropped:10.2f} {handed:14.2f}", flush=True)
        if kind == "padded":
            continue
        peer = torch.utils.data.DataLoader(
            rows, ROWS, num_workers=2, collate_fn=stack if kind == "collate" else None
        )
        batches = iter(peer)
        took, dropped = main_thread_ms(batches, count, options.pause)
        print(f"{kind:10} {'torch, processes':22} {took:10.2f} {dropped:10.2f}", flush=True)
        del batches, peer


if __name__ == "__main__":
    main()
