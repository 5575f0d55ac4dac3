"""MosaicML Streaming: MDS shards of 64 MB, with its own loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair, samples


def without_torchvision() -> None:
    """Let `import streaming` pass: it names parts of a package that needs torch with CUDA."""
    for name, attribute in (
        ("torchvision", ""),
        ("torchvision.datasets", "VisionDataset"),
        ("torchvision.transforms", ""),
        ("torchvision.transforms.functional", "to_tensor"),
    ):
        module = ModuleType(name)
        # Others ask whether it is there.
        module.__spec__ = ModuleSpec(name, None)
        if attribute:
            setattr(module, attribute, object)
        sys.modules.setdefault(name, module)


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    without_torchvision()
    import streaming

    converted = directory / f"mds-{corpus(task)}"
    if not (converted / "index.json").exists():
        columns = dict.fromkeys(next(samples(directory, task)), "bytes")
        with streaming.MDSWriter(out=str(converted), columns=columns, size_limit=64 << 20) as out:
            for sample in samples(directory, task):
                out.write(sample)

    class Data(streaming.StreamingDataset):
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            return sample if task == "tiny-raw" else pair(task, sample, decode)

    streaming.base.util.clean_stale_shared_memory()
    shuffled = task != "tiny-raw"
    ds = Data(local=str(converted), shuffle=shuffled, batch_size=BATCH[task])
    if task == "tiny-raw":
        return (1 for _ in ds)
    loader = streaming.StreamingDataLoader(ds, batch_size=BATCH[task], num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))
