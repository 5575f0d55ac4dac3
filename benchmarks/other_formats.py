"""CPU time a row of files that others wrote, by shardwise and by their own package.

    python -m benchmarks.other_formats [DIRECTORY] [--rounds 5]

- litdata: 20,000 rows of 1 KiB and a number, as Arrow rows in chunks of 8 MB.
- jsonl: 20,000 lines of about 1 kB: each line in order, and 4,096 at random.
- tfrecord: 2,000 Examples of 50 kB and a number; shardwise verifies the checksums.
- hf: 20,000 rows of 1 KiB and a number, saved by `datasets`: one row a call, and 256, at random.

All ways take turns in one process; CPU and wall us a row, medians. Without its package a format is
left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw

NUM_SMALL, NUM_LARGE, NUM_ASKED = 20_000, 2_000, 4_096
Way = tuple[str, int, Callable[[], object]]


def read_all(rows: Any) -> None:
    for _ in rows:
        pass


def small() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"bin": rng.bytes(1024), "cls": i % 1000} for i in range(NUM_SMALL)]


def litdata(directory: Path) -> list[Way]:
    import litdata as peer
    from litdata.streaming.writer import BinaryWriter

    where = str(directory / "litdata")
    if not Path(where, "index.json").exists():
        writer = BinaryWriter(where, chunk_bytes="8MB")
        for i, row in enumerate(small()):
            writer.add_item(i, row)
        writer.done()
        writer.merge(1)
    return [
        ("litdata: sw.litdata", NUM_SMALL, lambda: read_all(sw.litdata(where))),
        ("litdata: litdata", NUM_SMALL, lambda: read_all(peer.StreamingDataset(where))),
    ]


def tfrecord(directory: Path) -> list[Way]:
    from tfrecord.reader import tfrecord_loader
    from tfrecord.writer import TFRecordWriter

    path = directory / "large.tfrecord"
    if not path.exists():
        rng = np.random.default_rng(0)
        writer = TFRecordWriter(str(path))
        for i in range(NUM_LARGE):
            writer.write({"bin": (rng.bytes(50_000), "byte"), "cls": (i, "int")})
        writer.close()

    kinds = {"bin": "byte", "cls": "int"}
    return [
        ("tfrecord: sw.tfrecord", NUM_LARGE, lambda: read_all(sw.tfrecord(path))),
        (
            "tfrecord: tfrecord",
            NUM_LARGE,
            lambda: read_all(tfrecord_loader(str(path), None, kinds)),
        ),
    ]


def jsonl(directory: Path) -> list[Way]:
    import datasets

    path = directory / "lines.jsonl"
    if not path.exists():
        lines = (json.dumps({"text": "word " * 190, "n": i}) for i in range(NUM_SMALL))
        path.write_text("\n".join(lines))
    order = np.random.default_rng(1).permutation(NUM_SMALL)[:NUM_ASKED]
    read = sw.jsonl(path).source.read

    def parse() -> None:
        with path.open() as file:
            for line in file:
                json.loads(line)

    def stream() -> None:
        read_all(datasets.load_dataset("json", data_files=str(path), split="train", streaming=True))

    return [
        ("jsonl: sw.jsonl", NUM_SMALL, lambda: read_all(sw.jsonl(path))),
        ("jsonl: datasets, streaming", NUM_SMALL, stream),
        ("jsonl: json.loads, no loader", NUM_SMALL, parse),
        (
            "jsonl, 256 at random: sw.jsonl",
            NUM_ASKED,
            lambda: [read(order[at : at + 256]) for at in range(0, NUM_ASKED, 256)],
        ),
    ]


def hf(directory: Path) -> list[Way]:
    import datasets

    where = str(directory / "hf")
    if not Path(where).exists():
        datasets.Dataset.from_list(small()).save_to_disk(where)
    order = np.random.default_rng(1).permutation(NUM_SMALL)[:NUM_ASKED]
    parts = [order[at : at + 256] for at in range(0, NUM_ASKED, 256)]
    table, peer = sw.parquet(where), datasets.load_from_disk(where)
    wrapped = sw.wrap(peer)

    def one(rows: Any) -> None:
        for i in order.tolist():
            rows[i]

    def many(read: Callable[[Any], object]) -> None:
        for part in parts:
            read(part)

    return [
        ("hf, one: sw.parquet", NUM_ASKED, partial(one, table)),
        ("hf, 256: sw.parquet", NUM_ASKED, partial(many, table.source.read)),
        ("hf, one: sw.wrap", NUM_ASKED, partial(one, wrapped)),
        ("hf, 256: sw.wrap", NUM_ASKED, partial(many, wrapped.source.read)),
        ("hf, one: datasets", NUM_ASKED, partial(one, peer)),
        ("hf, 256: datasets", NUM_ASKED, partial(many, peer.__getitem__)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        ways: list[Way] = []
        formats = (
            (litdata, "litdata"), (tfrecord, "tfrecord"), (hf, "datasets"), (jsonl, "datasets")
        )  # fmt: skip
        for make, package in formats:
            if importlib.util.find_spec(package) is not None:
                ways += make(directory)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in ways}
        for number in range(arguments.rounds + 1):
            for name, rows, work in ways:
                cpu, wall = time.process_time(), time.perf_counter()
                work()
                spent = time.process_time() - cpu, time.perf_counter() - wall
                if number:  # the first one warms up
                    times[name].append((spent[0] / rows * 1e6, spent[1] / rows * 1e6))
    for name, each in times.items():
        cpu, wall = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{name:44} {cpu:8.1f} us CPU {wall:8.1f} us wall")


if __name__ == "__main__":
    main()
