"""SPDL: shards read whole by threads, shuffled within, batches decoded by FFmpeg in threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.task import BATCH, SIZE, WORKERS, decode_pil, forever, pair, shards


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def read(url: str) -> list[dict[str, Any]]:
        samples: dict[str, dict[str, Any]] = {}
        for name, data in spdl.io.iter_tarfile(Path(url).read_bytes()):
            key, _, field = name.partition(".")
            samples.setdefault(key, {})[field] = data
        found = list(samples.values())
        if task != "tiny-raw":
            random.shuffle(found)
        return found

    def batch(samples: list[dict[str, Any]]) -> Any:
        labels = np.array([int(bytes(sample["cls"])) for sample in samples])
        if task == "image-batch" and decode is decode_pil:
            # Its own decoder in place of Pillow.
            frames = spdl.io.load_image_batch(
                [bytes(sample["jpg"]) for sample in samples],
                width=SIZE,
                height=SIZE,
                pix_fmt="rgb24",
            )
            return spdl.io.to_numpy(frames), labels
        return np.stack([pair(task, sample, decode)[0] for sample in samples]), labels

    def epoch() -> Iterator[int]:
        urls = shards(directory, task)
        if task != "tiny-raw":
            random.shuffle(urls)
        builder = PipelineBuilder().add_source(urls)
        if task == "tiny-raw":
            pipeline = builder.pipe(read).add_sink(2).build(num_threads=1)
            with pipeline.auto_stop():
                for samples in pipeline:
                    yield from (1 for _ in samples)
            return
        builder.pipe(read).disaggregate().aggregate(BATCH[task], drop_last=True)
        builder.pipe(batch, concurrency=WORKERS)
        pipeline = builder.add_sink(4).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            for _, labels in pipeline:
                yield len(labels)

    return epoch() if task == "tiny-raw" else forever(epoch)
