"""Rates over Lance tables: this library and Lance's own loaders, in turn, several times.

`tiny-batch`: shuffled batches of 256 rows (1 KiB `bin`, int64 `cls`), and `vector-batch`: the same
with float32 `[256]` for `bin`; Lance reads with its safe loader (`SafeLanceDataset`: random rows by
`take`). `image-batch`: shuffled batches of 64 JPEGs, decoded to 224 x 224; Lance reads with
`LanceDataset` over runs of rows in random order. All have two workers. Rates count from after the
first batch; "a core" is rows by CPU seconds of the loader and its workers, which says more on a
machine that others use. Each run is a process of its own.

    python -m benchmarks.tables_lance [--scale 0.25] [--rounds 3] [--seconds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.corpora import image_samples, tiny_samples
from benchmarks.tables import measure
from benchmarks.tasks import SIZE, WORKERS, decode_ours, decode_pil, forever

BATCH = {"tiny-batch": 256, "vector-batch": 256, "image-batch": 64}
ROWS = {"tiny-batch": 200_000, "vector-batch": 200_000, "image-batch": 12_000}
FRAGMENTS = 20


def make(directory: Path, scale: float) -> None:
    """Write both tables, unless they are there."""
    import lance
    import pyarrow as pa

    for task, name, samples in (
        ("tiny-batch", "bin", tiny_samples),
        ("vector-batch", "bin", tiny_samples),
        ("image-batch", "jpg", image_samples),
    ):
        num_rows = int(ROWS[task] * scale)
        path = directory / f"{task}-{num_rows}.lance"
        if path.exists():
            continue
        kind = pa.list_(pa.float32(), 256) if task == "vector-batch" else pa.binary()
        schema = pa.schema({name: kind, "cls": pa.int64()})
        reader = pa.RecordBatchReader.from_batches(
            schema, record_batches(samples(num_rows), schema)
        )
        lance.write_dataset(reader, str(path), max_rows_per_file=-(-num_rows // FRAGMENTS))


def record_batches(rows: Iterator[dict[str, Any]], schema: Any) -> Iterator[Any]:
    """Samples as batches of this schema: its first column are bytes, or vectors made of them."""
    import pyarrow as pa

    name = schema.names[0]
    while part := [row for _, row in zip(range(1000), rows, strict=False)]:
        data = pa.array([row[name] for row in part])
        if not pa.types.is_binary(schema.field(name).type):
            values = np.frombuffer(b"".join(data.to_pylist()), np.uint8).astype(np.float32)
            values = values.reshape(-1, 1024)[:, :256].reshape(-1)
            data = pa.FixedSizeListArray.from_arrays(pa.array(values), 256)
        yield pa.record_batch([data, [row["cls"] for row in part]], schema=schema)


# Ours.


def shardwise_loader(path: str, task: str, **options: Any) -> Iterator[int]:
    import shardwise as sw

    if task == "image-batch":
        ds = sw.lance(path, columns=("jpg", "cls")).decode(
            jpg=sw.image(size=SIZE, interpolation="linear")
        )
    else:
        ds = sw.lance(path, columns=("bin", "cls"))
    if task == "tiny-batch":
        ds = ds.decode(bin=sw.array("uint8", (1024,)))
    loader = sw.DataLoader(
        ds, batch_size=BATCH[task], shuffle=True, rank=0, world_size=1, **options
    )
    return forever(lambda: (len(batch["cls"]) for batch in loader))


# Lance's.


class Images:
    """Makes tensors of a table's rows."""

    def __init__(self, decode: Any) -> None:
        self.decode = decode

    def __call__(self, rows: Any, **_: Any) -> Any:
        """Decode the images of a batch."""
        import torch

        images = np.stack([self.decode(data) for data in rows["jpg"].to_pylist()])
        return torch.from_numpy(images), torch.from_numpy(rows["cls"].to_numpy())


def lance_runs(path: str, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import torch
    from lance.sampler import ShardedBatchSampler
    from lance.torch.data import LanceDataset

    # Each worker reads all rows, so that each is read twice: rates are not harmed by that. Forked
    # workers crash now and then.
    sampler = ShardedBatchSampler(0, 1, randomize=True)
    ds = LanceDataset(path, batch_size=BATCH[task], sampler=sampler, to_tensor_fn=Images(decode))
    loader = torch.utils.data.DataLoader(
        ds, batch_size=None, num_workers=WORKERS, multiprocessing_context="spawn"
    )
    return forever(lambda: (len(batch[1]) for batch in loader))


def tiny_collate(rows: list[dict[str, Any]]) -> Any:
    import torch

    if isinstance(rows[0]["bin"], bytes):
        data = np.stack([np.frombuffer(row["bin"], np.uint8) for row in rows])
    else:
        data = np.array([row["bin"] for row in rows], np.float32)
    return torch.from_numpy(data), torch.tensor([row["cls"] for row in rows])


def lance_safe(path: str, task: str) -> Iterator[int]:
    from lance.torch.data import SafeLanceDataset, get_safe_loader

    loader = get_safe_loader(
        SafeLanceDataset(path),
        batch_size=BATCH[task],
        num_workers=WORKERS,
        shuffle=True,
        collate_fn=tiny_collate,
    )
    return forever(lambda: (len(batch[1]) for batch in loader))


ROW_LOADERS: dict[str, Callable[..., Iterator[int]]] = {
    "shardwise threads": lambda p, t: shardwise_loader(p, t, num_threads=WORKERS),
    "shardwise processes": lambda p, t: shardwise_loader(p, t, num_workers=WORKERS),
    "lance, safe loader": lance_safe,
}
LOADERS: dict[str, dict[str, Callable[..., Iterator[int]]]] = {
    "tiny-batch": ROW_LOADERS,
    "vector-batch": ROW_LOADERS,
    "image-batch": {
        "shardwise threads": lambda p, t: shardwise_loader(p, t, num_threads=WORKERS),
        "shardwise processes": lambda p, t: shardwise_loader(p, t, num_workers=WORKERS),
        "lance, LanceDataset": lance_runs,
        "lance, our decoder": lambda p, t: lance_runs(p, t, decode=decode_ours),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=Path(tempfile.gettempdir()) / "sw-tables")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--task", choices=list(BATCH), action="append")
    parser.add_argument("--one", nargs=3, metavar=("PATH", "TASK", "LOADER"))
    arguments = parser.parse_args()
    if arguments.one:
        path, task, name = arguments.one
        measure(lambda: LOADERS[task][name](path, task), arguments.seconds)
    arguments.tables.mkdir(parents=True, exist_ok=True)
    make(arguments.tables, arguments.scale)
    loaders = {task: LOADERS[task] for task in arguments.task or LOADERS}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):
        for task, names in loaders.items():
            path = arguments.tables / f"{task}-{int(ROWS[task] * arguments.scale)}.lance"
            for name in names:
                command = [sys.executable, "-m", "benchmarks.tables_lance"]
                command += ["--seconds", str(arguments.seconds), "--one", str(path), task, name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
                found.setdefault((task, name), []).append(json.loads(lines[-1]))
    for task, names in loaders.items():
        show(task, {name: found[task, name] for name in names})


def show(task: str, runs: dict[str, list[dict[str, float]]]) -> None:
    """Print the medians of one task."""
    table = Table(title=f"{task} of a Lance table, batches of {BATCH[task]}, medians")
    for column in ("loader", "rows/s", "x Lance", "a core", "x Lance", "first batch, s"):
        table.add_column(column, justify="left" if column == "loader" else "right")
    medians = {
        name: {what: statistics.median(run[what] for run in of) for what in of[0]}
        for name, of in runs.items()
    }
    theirs = next(of for name, of in medians.items() if name.startswith("lance"))
    for name, of in sorted(medians.items(), key=lambda item: -item[1]["rate"]):
        cells = [
            cell
            for what in ("rate", "core_rate")
            for cell in (f"{of[what]:,.0f}", f"{of[what] / theirs[what]:.2f}")
        ]
        table.add_row(name, *cells, f"{of['first_batch_s']:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
