"""wids: tar shards, indexed, map-style."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.task import BATCH, WORKERS, decode_pil, forever, shards


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import wids

    index = directory / f"wids-{task}.json"
    if not index.exists():
        listed = []
        for url in shards(directory, task):
            with tarfile.open(url) as tar:
                count = sum(name.endswith(".cls") for name in tar.getnames())
            listed.append({"url": url, "nsamples": count, "filesize": Path(url).stat().st_size})
        index.write_text(
            json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed})
        )

    def convert(sample: dict[str, Any]) -> Any:
        if task == "image-batch":
            return decode(sample[".jpg"].read()), int(sample[".cls"].read())
        return np.frombuffer(sample[".bin"].read(), np.uint8), int(sample[".cls"].read())

    ds = wids.ShardListDataset(str(index), transformations=[] if task == "tiny-raw" else [convert])
    if task == "tiny-raw":
        return (1 for i in range(len(ds)) if ds[i])
    loader = torch.utils.data.DataLoader(
        ds, batch_size=BATCH[task], sampler=wids.ShardedSampler(ds), num_workers=WORKERS
    )
    return forever(lambda: (len(batch[1]) for batch in loader))
