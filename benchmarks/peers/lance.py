"""Lance: its table format, with its safe loader for random access (spawned workers)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from benchmarks.peers.tables import record_batches
from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair


class Convert:
    """A list of rows to a batch."""

    def __init__(self, task: str, decode: Any) -> None:
        self.task = task
        self.decode = decode

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        pairs = [pair(self.task, row, self.decode) for row in rows]
        return torch.utils.data.default_collate(pairs)


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import lance
    from lance.torch.data import SafeLanceDataset, get_safe_loader

    converted = directory / f"{corpus(task)}.lance"
    if not converted.exists():
        batches = list(record_batches(directory, task))
        lance.write_dataset(pa.Table.from_batches(batches), str(converted))
    if task == "tiny-raw":
        ds = lance.dataset(str(converted))
        return (1 for batch in ds.to_batches() for _ in batch.to_pylist())
    loader = get_safe_loader(
        SafeLanceDataset(str(converted)),
        batch_size=BATCH[task],
        shuffle=True,
        num_workers=WORKERS,
        collate_fn=Convert(task, decode),
    )
    return forever(lambda: (len(batch[1]) for batch in loader))
