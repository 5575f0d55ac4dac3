"""Megatron-Energon: the tar shards themselves, prepared, with its own loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair, shards

DATASET = """__module__: megatron.energon
__class__: CrudeWebdataset
"""


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    if task == "tiny-raw":
        raise NotImplementedError("energon has no loader without batches")
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
        stateless,
    )
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory

    folder = directory / f"energon-{corpus(task)}"
    if not (folder / ".nv-meta" / "dataset.yaml").exists():
        folder.mkdir(exist_ok=True)
        for url in shards(directory, task):
            (folder / Path(url).name).symlink_to(url)
        BaseWebdatasetFactory.prepare_dataset(
            EPath(str(folder)),
            [Path(url).name for url in shards(directory, task)],
            split_parts_ratio=[("train", 1.0)],
        )
        (folder / ".nv-meta" / "dataset.yaml").write_text(DATASET)

    @stateless
    def cook(sample: dict[str, Any]) -> dict[str, Any]:
        first, label = pair(task, sample, decode)
        return {"__key__": sample["__key__"], "data": first, "label": label}

    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(cook),)
        decoder = None

        def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
            return {
                "data": np.stack([sample["data"] for sample in samples]),
                "label": np.array([sample["label"] for sample in samples]),
            }

    ds = get_train_dataset(
        str(folder),
        batch_size=BATCH[task],
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=WORKERS),
        task_encoder=Encoder(),
    )
    loader = get_loader(ds)
    return forever(lambda: (len(batch["label"]) for batch in loader))
