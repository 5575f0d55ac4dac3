"""LitData: its own chunks of 64 MB, with its own loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair, samples


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import litdata

    converted = directory / f"litdata-{corpus(task)}"
    if not (converted / "index.json").exists():
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(converted), chunk_bytes="64MB")
        for i, sample in enumerate(samples(directory, task)):
            writer.add_item(i, sample)
        writer.done()
        writer.merge(1)

    class Data(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return sample if task == "tiny-raw" else pair(task, sample, decode)

    ds = Data(str(converted), shuffle=task != "tiny-raw")
    if task == "tiny-raw":
        return (1 for _ in ds)
    loader = litdata.StreamingDataLoader(ds, batch_size=BATCH[task], num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))
