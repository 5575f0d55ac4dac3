"""Rates over a Parquet table: this library and Hugging Face datasets, in turn, several times.

Shuffled batches of 256 rows (1 KiB `bin`, int64 `cls`), two workers, as tensors. Datasets reads
with torch's DataLoader in two ways: rows at random, and streamed with its shuffle buffer of 1,000
rows. (Its numpy format would cut the zeros off the end of binary values.) "take" is one core alone:
random rows from a row group that is decoded. "a core" is rows by CPU seconds of the loader and its
workers, which says more on a machine that others use. Rates count from after the first batch; each
run is a process of its own. Lance tables: `benchmarks/tables_lance.py`.

    python -m benchmarks.tables [--scale 1.0] [--rounds 3] [--seconds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.corpora import tiny_samples
from benchmarks.tasks import WORKERS, forever

NUM_ROWS, NUM_FILES = 200_000, 20
BATCH_SIZE = 256


def make(directory: Path, scale: float) -> None:
    """Write the table, unless it is there: as many files as `tiny` has tar shards."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if directory.exists():
        return
    draft = directory.with_suffix(".draft")
    draft.mkdir(parents=True, exist_ok=True)
    per_file = int(NUM_ROWS * scale) // NUM_FILES
    samples = tiny_samples(per_file * NUM_FILES)
    for number in range(NUM_FILES):
        rows = [row for _, row in zip(range(per_file), samples, strict=False)]
        columns = {name: [row[name] for row in rows] for name in ("bin", "cls")}
        # As pyarrow writes them: one row group a file.
        pq.write_table(pa.table(columns), draft / f"tiny-{number:03d}.parquet")
    draft.rename(directory)


def shardwise_loader(path: str, **options: Any) -> Iterator[int]:
    import shardwise as sw

    ds = sw.parquet(path, columns=("bin", "cls")).decode(bin=sw.array("uint8", (1024,)))
    loader = sw.DataLoader(ds, batch_size=BATCH_SIZE, shuffle=True, rank=0, world_size=1, **options)
    return forever(lambda: (len(batch["cls"]) for batch in loader))


def collate(rows: list[dict[str, Any]]) -> Any:
    import torch

    data = np.stack([np.frombuffer(row["bin"], np.uint8) for row in rows])
    return torch.from_numpy(data), torch.tensor([row["cls"] for row in rows])


def hugging_face(path: str, *, streaming: bool = False) -> Iterator[int]:
    import datasets
    import torch

    ds = datasets.load_dataset(
        "parquet",
        data_files=f"{path}/*.parquet",
        split="train",
        streaming=streaming,
        cache_dir=f"{path}.cache",
    )
    options: dict[str, Any] = {"shuffle": True}
    if streaming:
        ds, options = ds.shuffle(buffer_size=1000), {}
    loader = torch.utils.data.DataLoader(
        ds, batch_size=BATCH_SIZE, num_workers=WORKERS, collate_fn=collate, **options
    )
    return forever(lambda: (len(batch[1]) for batch in loader))


def take(path: str) -> Iterator[int]:
    """Random rows of the first row group, by batches: no loader, one thread."""
    from shardwise.extensions.tables.parquet.source import ParquetSource

    source = ParquetSource(path)
    rng = np.random.default_rng(0)
    num_rows = source.manifest.shards[0].num_samples
    while True:
        source.read(rng.integers(0, num_rows, BATCH_SIZE))
        yield BATCH_SIZE


LOADERS: dict[str, Callable[[str], Iterator[int]]] = {
    "shardwise threads": lambda path: shardwise_loader(path, num_threads=WORKERS),
    "shardwise processes": lambda path: shardwise_loader(path, num_workers=WORKERS),
    "datasets, rows": hugging_face,
    "datasets, streaming": lambda path: hugging_face(path, streaming=True),
    "take": take,
}


def cpu_seconds() -> float:
    """What this process and its workers have used, those that have ended too."""
    import psutil

    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return ended + sum(each.user + each.system for each in times)


def measure(load: Callable[[], Iterator[int]], seconds: float) -> None:
    """One loader in this process, which ends; prints one line of JSON."""
    import torch  # noqa: F401 - the trainer has it already

    began = time.perf_counter()
    batches = load()
    next(batches)
    first = time.perf_counter() - began
    count, began, cpu_s = 0, time.perf_counter(), cpu_seconds()
    while (elapsed := time.perf_counter() - began) < seconds:
        count += next(batches)
    cpu_s = cpu_seconds() - cpu_s
    found = {"rate": count / elapsed, "first_batch_s": first, "core_rate": count / cpu_s}
    print(json.dumps(found), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=Path(tempfile.gettempdir()) / "sw-tables")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--one", nargs=2, metavar=("PATH", "LOADER"))
    arguments = parser.parse_args()
    if arguments.one:
        path, name = arguments.one
        measure(lambda: LOADERS[name](path), arguments.seconds)
    arguments.tables.mkdir(parents=True, exist_ok=True)
    path = arguments.tables / f"tiny-{int(NUM_ROWS * arguments.scale)}"
    make(path, arguments.scale)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
    for number in range(arguments.rounds + 1):
        for name in LOADERS:
            command = [sys.executable, "-m", "benchmarks.tables", "--one", str(path), name]
            command += ["--seconds", str(arguments.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if number:  # the first round makes what datasets keeps on disk, and warms the cache
                found[name].append(json.loads(lines[-1]))
    table = Table(title=f"Parquet, batches of {BATCH_SIZE}, medians of {arguments.rounds}")
    for column in ("loader", "rows/s", "x datasets", "a core", "x datasets", "first batch, s"):
        table.add_column(column, justify="left" if column == "loader" else "right")
    rates, core_rates, firsts = (
        {name: statistics.median(run[key] for run in runs) for name, runs in found.items()}
        for key in ("rate", "core_rate", "first_batch_s")
    )
    theirs = max(rate for name, rate in rates.items() if name.startswith("datasets"))
    core_theirs = max(rate for name, rate in core_rates.items() if name.startswith("datasets"))
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        numbers = f"{rate:,.0f}", f"{rate / theirs:.2f}", f"{core_rates[name]:,.0f}"
        ratio = f"{core_rates[name] / core_theirs:.2f}"
        table.add_row(name, *numbers, ratio, f"{firsts[name]:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
