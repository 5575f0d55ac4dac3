"""A file a payload, and torch's own DataLoader: what there is without any library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.task import BATCH, WORKERS, corpus, decode_pil, forever, pair, samples


class Files(torch.utils.data.Dataset[Any]):
    """Sample i of a folder of files."""

    def __init__(self, folder: Path, task: str, decode: Any) -> None:
        self.stems = sorted(str(path.with_suffix("")) for path in folder.glob("*/*.cls"))
        self.fields = sorted(p.suffix for p in Path(self.stems[0]).parent.glob("00000000.*"))
        self.task = task
        self.decode = decode

    def __len__(self) -> int:
        return len(self.stems)

    def read(self, index: int) -> dict[str, bytes]:
        stem = self.stems[index]
        return {field[1:]: Path(stem + field).read_bytes() for field in self.fields}

    def __getitem__(self, index: int) -> Any:
        stem = self.stems[index]
        first = "jpg" if self.task == "image-batch" else "bin"
        sample = {name: Path(f"{stem}.{name}").read_bytes() for name in (first, "cls")}
        return pair(self.task, sample, self.decode)


def load(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    folder = directory / f"files-{corpus(task)}"
    if not (folder / "done").exists():
        for i, sample in enumerate(samples(directory, task)):
            part = folder / f"{i // 1000:04d}"
            part.mkdir(parents=True, exist_ok=True)
            for name, value in sample.items():
                (part / f"{i:08d}.{name}").write_bytes(value)
        (folder / "done").touch()
    ds = Files(folder, task, decode)
    if task == "tiny-raw":
        return (1 for i in range(len(ds)) if ds.read(i))
    loader = torch.utils.data.DataLoader(
        ds, batch_size=BATCH[task], shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return forever(lambda: (len(batch[1]) for batch in loader))
