"""Grain: ArrayRecord files, one record a group, with its own loader and worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair, samples

NUM_FILES = 20


class Decode:
    """The record's bytes to a picture or payload, and its label."""

    def __init__(self, task: str, decode: Any) -> None:
        self.task = task
        self.decode = decode

    def __call__(self, record: bytes) -> Any:
        return pair(self.task, pickle.loads(record), self.decode)


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import grain.python as grain
    from array_record.python.array_record_module import ArrayRecordWriter

    converted = directory / f"array-record-{corpus(task)}"
    if not (converted / "done").exists():
        converted.mkdir(exist_ok=True)
        writers = [
            ArrayRecordWriter(str(converted / f"{i:03d}.array_record"), "group_size:1")
            for i in range(NUM_FILES)
        ]
        for i, sample in enumerate(samples(directory, task)):
            writers[i % NUM_FILES].write(pickle.dumps(sample))
        for writer in writers:
            writer.close()
        (converted / "done").touch()
    source = grain.ArrayRecordDataSource(sorted(map(str, converted.glob("*.array_record"))))
    if task == "tiny-raw":
        return (1 for i in range(len(source)) if pickle.loads(source[i]))

    class Map(grain.MapTransform):
        def __init__(self) -> None:
            self._decode = Decode(task, decode)

        def map(self, element: bytes) -> Any:
            return self._decode(element)

    def epoch() -> Iterator[int]:
        sampler = grain.IndexSampler(len(source), shuffle=True, seed=0, num_epochs=1)
        loader = grain.DataLoader(
            data_source=source,
            sampler=sampler,
            operations=[Map(), grain.Batch(BATCH[task], drop_remainder=True)],
            worker_count=WORKERS,
        )
        return (len(batch[1]) for batch in loader)

    return forever(epoch)
