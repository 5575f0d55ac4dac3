"""One task with one loader, in a process of its own; prints one line of JSON.

`throughput.py` runs these in turn. Rates count from after the first batch, for at least
`--seconds`; the time to the first batch counts from before the loader is made.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.task import BATCH, SIZE, WORKERS, decode_ours, decode_pil, forever, shards

__all__ = [
    "BATCH", "LOADERS", "SIZE", "WORKERS", "decode_ours", "decode_pil", "forever", "shards",
]  # fmt: skip

# Ours.


def shardwise_loader(directory: Path, task: str, **options: Any) -> Iterator[int]:
    import shardwise as sw

    ds = sw.tar(shards(directory, task))
    if task == "tiny-raw":
        return (1 for _ in ds)
    if task == "image-batch":
        ds = ds.select("jpg", "cls").decode(
            jpg=sw.image(size=SIZE, interpolation="linear"), cls=int
        )
    else:
        ds = ds.select("bin", "cls").decode(bin=sw.array("uint8", (1024,)), cls=int)
    loader = sw.DataLoader(
        ds, batch_size=BATCH[task], shuffle=True, rank=0, world_size=1, **options
    )
    return forever(lambda: (len(batch["__index__"]) for batch in loader))


# The floor: what the machine can do, with as many processes and no loader at all.


def floor_worker(directory: str, task: str, seconds: float, number: int, queue: Any) -> None:
    import numpy as np

    import shardwise as sw

    urls = shards(Path(directory), task)[number::WORKERS]
    count, began = 0, time.perf_counter()
    rng = np.random.default_rng(0)
    if task == "image-batch":
        decoder = sw.image(size=SIZE, interpolation="linear")
        batch = np.empty((BATCH[task], 3, SIZE, SIZE), np.uint8)
        # The bytes that a loader reads, in an order like its own.
        dataset = sw.tar(urls)
        order = rng.permutation(len(dataset))
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            ids = order.take(range(count, count + len(batch)), mode="wrap")
            rows = dataset.source.read(ids, ("jpg", "cls")).fields["jpg"]
            for row, data in zip(batch, rows, strict=True):
                decoder.decode_into(data, row)
            count += len(batch)
    else:
        batch = np.empty((BATCH[task], 1024), np.uint8)
        sizes = [Path(url).stat().st_size for url in urls]
        buffer = np.empty(max(sizes), np.uint8)
        while time.perf_counter() - began < seconds:
            for url, size in zip(urls, sizes, strict=True):
                with open(url, "rb", buffering=0) as file:
                    file.readinto(memoryview(buffer)[:size])
                rows = buffer[: size // 4096 * 4096].reshape(-1, 4096)[:, 512 : 512 + 1024]
                order = rng.permutation(len(rows))
                for at in range(0, len(order) - len(batch), len(batch)):
                    np.take(rows, order[at : at + len(batch)], axis=0, out=batch)
                    count += len(batch)
    queue.put((count, time.perf_counter() - began))


def floor(directory: Path, task: str, seconds: float) -> float:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=floor_worker, args=(str(directory), task, seconds, n, queue))
        for n in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    results = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return sum(count / elapsed for count, elapsed in results)


# Each peer's name, and its file in `benchmarks/peers`.
PEERS = {
    "webdataset": "webdataset",
    "wids": "wids",
    "mosaicml-streaming": "mosaic",
    "litdata": "litdata",
    "megatron-energon": "energon",
    "grain": "grain",
    "lance": "lance",
    "datasets": "huggingface",
    "spdl": "spdl",
    "plain files": "files",
}


def peer(directory: Path, task: str, *, file: str, decode: Any = decode_pil) -> Iterator[int]:
    module = importlib.import_module(f"benchmarks.peers.{file}")
    batches: Iterator[int] = module.load(directory, task, decode=decode)
    return batches


def webdataset_decoded(directory: Path, task: str) -> Iterator[int]:
    module = importlib.import_module("benchmarks.peers.webdataset")
    batches: Iterator[int] = module.load_decoded(directory, task)
    return batches


LOADERS: dict[str, Callable[..., Iterator[int]]] = {
    "shardwise": shardwise_loader,
    "shardwise threads": partial(shardwise_loader, num_threads=WORKERS),
    "shardwise processes": partial(shardwise_loader, num_workers=WORKERS),
    **{name: partial(peer, file=file) for name, file in PEERS.items()},
    "webdataset, decode('rgb8')": webdataset_decoded,
    **{
        f"{name}, our decoder": partial(peer, file=file, decode=decode_ours)
        for name, file in PEERS.items()
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=[*LOADERS, "floor"])
    parser.add_argument("task", choices=list(BATCH))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    if arguments.loader == "floor":
        rate = floor(arguments.directory, arguments.task, arguments.seconds)
        print(json.dumps({"rate": rate}))
        return
    # The trainer has torch already.
    importlib.import_module("torch")
    began = time.perf_counter()
    batches = LOADERS[arguments.loader](arguments.directory, arguments.task)
    next(batches)
    first = time.perf_counter() - began
    count, began, cpu_began = 0, time.perf_counter(), time.process_time()
    # Samples one by one are counted by the thousand: the clock costs as much as a sample does.
    step = 1024 if BATCH[arguments.task] == 1 else 1
    while (elapsed := time.perf_counter() - began) < arguments.seconds:
        size = sum(islice(batches, step))
        if size == 0:
            break
        count += size
    result = {"rate": count / elapsed, "first_batch_s": first}
    if arguments.task == "tiny-raw":
        # The only task without worker processes, whose CPU time this process does not see.
        result["cpu_us"] = (time.process_time() - cpu_began) / count * 1e6
    print(json.dumps(result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
