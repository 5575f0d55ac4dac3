"""Hugging Face datasets: Parquet files, map-style, with torch's own DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow import parquet

from benchmarks.peers.tables import record_batches
from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair


class Pairs:
    """A batch of columns to pictures or payloads, and labels."""

    def __init__(self, task: str, decode: Any) -> None:
        self.task = task
        self.decode = decode

    def __call__(self, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = [
            pair(self.task, dict(zip(columns, values, strict=True)), self.decode)
            for values in zip(*columns.values(), strict=True)
        ]
        return {"data": [first for first, _ in rows], "label": [label for _, label in rows]}


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import datasets

    folder = directory / f"parquet-{corpus(task)}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        for i, batch in enumerate(record_batches(directory, task)):
            parquet.write_table(pa.Table.from_batches([batch]), folder / f"{i:05d}.parquet")
        (folder / "done").touch()
    datasets.disable_progress_bars()
    ds = datasets.load_dataset(
        "parquet",
        data_files=sorted(map(str, folder.glob("*.parquet"))),
        split="train",
        cache_dir=str(directory / "hf-cache"),
    )
    if task == "tiny-raw":
        return (1 for _ in ds)
    loader = torch.utils.data.DataLoader(
        ds.with_transform(Pairs(task, decode)),
        batch_size=BATCH[task],
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return forever(lambda: (len(batch["label"]) for batch in loader))
