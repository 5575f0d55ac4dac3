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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

WORKERS = 2
SIZE = 224
BATCH = {"image-batch": 64, "tiny-batch": 256, "tiny-raw": 1}


def shards(directory: Path, task: str) -> list[str]:
    name = "images" if task == "image-batch" else "tiny"
    return sorted(map(str, (directory / name).glob("*.tar")))


# Ours.


def shardwise_loader(directory: Path, task: str, **options: Any) -> Iterator[int]:
    import shardwise as sw

    ds = sw.tar(shards(directory, task))
    if task == "tiny-raw":
        return (1 for _ in ds)
    if task == "image-batch":
        ds = ds.select("jpg", "cls").decode(jpg=sw.image(size=SIZE), cls=int)
    else:
        ds = ds.select("bin", "cls").decode(bin=sw.array("uint8", (1024,)), cls=int)
    loader = sw.DataLoader(
        ds, batch_size=BATCH[task], shuffle=True, rank=0, world_size=1, **options
    )
    return forever(lambda: (len(batch["__index__"]) for batch in loader))


def forever(epoch: Callable[[], Iterable[int]]) -> Iterator[int]:
    while True:
        yield from epoch()


# WebDataset, as its documentation has it, and with our decoder.


def decode_pil(data: bytes) -> Any:
    import io

    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (SIZE, SIZE))
    resized = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1))


def decode_ours(data: bytes) -> Any:
    import shardwise as sw

    return sw.image(size=SIZE)(data)


def webdataset_loader(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import numpy as np
    import webdataset as wds

    urls = shards(directory, task)
    ds = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
    if task == "tiny-raw":
        return (1 for _ in wds.WebDataset(urls, shardshuffle=False))
    ds = ds.shuffle(1000)
    if task == "image-batch":
        ds = ds.to_tuple("jpg", "cls").map_tuple(decode, int)
    else:
        ds = ds.to_tuple("bin", "cls").map_tuple(lambda d: np.frombuffer(d, np.uint8), int)
    loader = wds.WebLoader(ds.batched(BATCH[task]), batch_size=None, num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))


# wids: indexed shards, map-style.


def wids_loader(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import numpy as np
    import torch
    import wids

    index = directory / f"wids-{task}.json"
    if not index.exists():
        import tarfile

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
        ds,
        batch_size=BATCH[task],
        sampler=wids.ShardedSampler(ds),
        num_workers=WORKERS,
    )
    return forever(lambda: (len(batch[1]) for batch in loader))


# LitData: its own format, converted once.


def litdata_loader(directory: Path, task: str, *, decode: Any = decode_pil) -> Iterator[int]:
    import litdata
    import numpy as np

    name = "images" if task == "image-batch" else "tiny"
    converted = directory / f"litdata-{name}"
    if not (converted / "index.json").exists():
        from litdata.streaming.writer import BinaryWriter

        import shardwise as sw

        writer = BinaryWriter(str(converted), chunk_bytes="64MB")
        for i, sample in enumerate(sw.tar(shards(directory, task))):
            writer.add_item(i, {k: v for k, v in sample.items() if k != "__key__"})
        writer.done()
        writer.merge(1)

    class Data(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            if task == "tiny-raw":
                return sample
            if task == "image-batch":
                return decode(sample["jpg"]), int(sample["cls"])
            return np.frombuffer(sample["bin"], np.uint8), int(sample["cls"])

    ds = Data(str(converted), shuffle=task != "tiny-raw")
    if task == "tiny-raw":
        return (1 for _ in ds)
    loader = litdata.StreamingDataLoader(ds, batch_size=BATCH[task], num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))


# The floor: what the machine can do, with as many processes and no loader at all.


def floor_worker(directory: str, task: str, seconds: float, number: int, queue: Any) -> None:
    import numpy as np

    import shardwise as sw

    urls = shards(Path(directory), task)[number::WORKERS]
    count, began = 0, time.perf_counter()
    if task == "image-batch":
        decoder = sw.image(size=SIZE)
        batch = np.empty((BATCH[task], 3, SIZE, SIZE), np.uint8)
        source = sw.tar(urls).source
        payloads = list(map(bytes, source.read(np.arange(BATCH[task]), ("jpg",)).fields["jpg"]))
        while time.perf_counter() - began < seconds:
            for row, data in enumerate(payloads):
                decoder.decode_into(data, batch[row])
            count += len(payloads)
    else:
        rng = np.random.default_rng(0)
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


LOADERS: dict[str, Callable[..., Iterator[int]]] = {
    "shardwise threads": lambda d, t: shardwise_loader(d, t, num_threads=WORKERS),
    "shardwise processes": lambda d, t: shardwise_loader(d, t, num_workers=WORKERS),
    "webdataset": webdataset_loader,
    "webdataset, our decoder": lambda d, t: webdataset_loader(d, t, decode=decode_ours),
    "wids": wids_loader,
    "wids, our decoder": lambda d, t: wids_loader(d, t, decode=decode_ours),
    "litdata": litdata_loader,
    "litdata, our decoder": lambda d, t: litdata_loader(d, t, decode=decode_ours),
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
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < arguments.seconds:
        size = next(batches, 0)
        if size == 0:
            break
        count += size
    print(json.dumps({"rate": count / elapsed, "first_batch_s": first}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
