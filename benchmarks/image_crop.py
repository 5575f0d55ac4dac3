"""Random crops of JPEG files at 224 x 224: shardwise against FFCV, WebDataset and no loader at all.

All take a random part of 8 to 100 % of the area, mirror half of the images and shuffle, with 2
workers and batches of 64. The floor decodes, cuts and resizes by simplejpeg and OpenCV in 2
threads, no more; the floor of parts decodes what shardwise decodes, by TurboJPEG if it is
installed. Loaders take turns; each runs in a process of its own, which counts the CPU seconds of
itself and its workers. FFCV is left out where it is not installed.

    python -m benchmarks.corpora DIRECTORY --scale 0.2
    python -m benchmarks.image_crop DIRECTORY --rounds 5 --seconds 4
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.task import SIZE, WORKERS, forever, shards

BATCH = 64
WARM_UP = 20 * BATCH


def shardwise(directory: Path) -> Iterator[int]:
    """The decoder's own crop, in threads."""
    import shardwise as sw

    data = sw.tar(shards(directory, "image-batch"))
    data = data.decode(
        jpg=sw.image("rgb", size=SIZE, crop="random", layout="HWC", interpolation="linear"), cls=int
    )
    loader = sw.DataLoader(data, BATCH, shuffle=True, num_threads=WORKERS, output="numpy")
    return forever(lambda: (len(batch["cls"]) for batch in loader))


def shardwise_planes(directory: Path) -> Iterator[int]:
    """The same as tensors [B, 3, 224, 224]."""
    import shardwise as sw

    data = sw.tar(shards(directory, "image-batch"))
    data = data.decode(
        jpg=sw.image("rgb", size=SIZE, crop="random", interpolation="linear"), cls=int
    )
    loader = sw.DataLoader(data, BATCH, shuffle=True, num_threads=WORKERS)
    return forever(lambda: (len(batch["cls"]) for batch in loader))


def shardwise_map(directory: Path) -> Iterator[int]:
    """A map() of the user's: the image is decoded whole, and cropped by a function."""
    import cv2

    import shardwise as sw
    from shardwise.codecs import RandomCrop

    crop = RandomCrop()

    def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        pixels = sample["jpg"]
        box = crop.draw(rng, *pixels.shape[:2])
        resized = cv2.resize(box.cut(pixels), (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        return {**sample, "jpg": cv2.flip(resized, 1) if box.is_mirrored else resized}

    data = sw.tar(shards(directory, "image-batch"))
    data = data.decode(jpg=sw.image("rgb", layout="HWC"), cls=int).map(augment)
    loader = sw.DataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, output="numpy")
    return forever(lambda: (len(batch["cls"]) for batch in loader))


def floor(directory: Path, *, parts: bool = False) -> Iterator[int]:
    """Decode, cut, resize, mirror into the rows of a batch: the packages and no loader."""
    import cv2
    import simplejpeg

    import shardwise as sw
    from shardwise.codecs import RandomCrop
    from shardwise.codecs.image_headers import probe
    from shardwise.codecs.image_jpeg_parts import read_part

    cv2.setNumThreads(1)
    files = [sample["jpg"] for sample in sw.tar(shards(directory, "image-batch"))[:1024]]
    crop, rng = RandomCrop(), np.random.default_rng(0)
    headers = [probe(memoryview(data)) for data in files]
    boxes = [crop.draw(rng, header.height, header.width) for header in headers]
    rows = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)

    def decode(number: int) -> Any:
        data, box = files[number], boxes[number]
        pixels = read_part(memoryview(data), headers[number], box, mode="rgb") if parts else None
        return box.cut(simplejpeg.decode_jpeg(data)) if pixels is None else pixels

    def one(number: int) -> None:
        box, out = boxes[number % len(files)], rows[number % BATCH]
        pixels = decode(number % len(files))
        while pixels.shape[0] >= 2 * SIZE and pixels.shape[1] >= 2 * SIZE:
            half = pixels.shape[1] // 2, pixels.shape[0] // 2
            pixels = cv2.resize(pixels, half, interpolation=cv2.INTER_AREA)
        if box.is_mirrored:
            cv2.flip(cv2.resize(pixels, (SIZE, SIZE)), 1, dst=out)
        else:
            cv2.resize(pixels, (SIZE, SIZE), dst=out)

    def some(numbers: range) -> None:
        for number in numbers:
            one(number)

    def epoch() -> Iterator[int]:
        half = BATCH // WORKERS
        with ThreadPoolExecutor(WORKERS) as pool:
            for start in range(0, len(files), BATCH):
                parts = [range(at, at + half) for at in range(start, start + BATCH, half)]
                list(pool.map(some, parts))
                yield BATCH

    return forever(epoch)


def ffcv(directory: Path) -> Iterator[int]:
    """FFCV as its ImageNet example has it, on JPEG files of the same quality in its own format."""
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor

    pictures = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), ToTensor()]
    loader = Loader(
        str(_beton(directory)),
        batch_size=BATCH,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        pipelines={"image": pictures, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return forever(lambda: (len(labels) for _, labels in loader))


def _beton(directory: Path) -> Path:
    """The images in FFCV's format, written once."""
    path = directory / "images.beton"
    if path.exists():
        return path
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from PIL import Image

    import shardwise as sw

    data = sw.tar(shards(directory, "image-batch"))

    class Pictures:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            sample = data[index]
            return Image.open(io.BytesIO(sample["jpg"])), int(sample["cls"])

    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(Pictures())
    return path


def webdataset(directory: Path) -> Iterator[int]:
    """WebDataset's ImageNet example: Pillow and torchvision's transforms, in 2 processes."""
    import webdataset as wds
    from torchvision import transforms

    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    urls = shards(directory, "image-batch")
    data = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
    data = data.decode("pil").to_tuple("jpg", "cls").map_tuple(augment, int).batched(BATCH)
    loader = wds.WebLoader(data, batch_size=None, num_workers=WORKERS)
    return forever(lambda: (len(batch[1]) for batch in loader))


LOADERS = {
    "floor": floor,
    "floor, parts": functools.partial(floor, parts=True),
    "shardwise": shardwise,
    "shardwise, CHW tensors": shardwise_planes,
    "shardwise, a map()": shardwise_map,
    "ffcv": ffcv,
    "webdataset": webdataset,
}


def cpu_seconds() -> float:
    """CPU seconds of this process and all below it, dead children apart."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        stats[int(path.parent.name)] = int(values[1]), int(values[11]) + int(values[12])
    ours, total = {os.getpid()}, stats[os.getpid()][1]
    below = True
    while below:
        below = {pid for pid, (parent, _) in stats.items() if parent in ours} - ours
        total += sum(stats[pid][1] for pid in below)
        ours |= below
    return total / ticks


def measure(name: str, directory: Path, seconds: float) -> dict[str, float]:
    """Run one loader: images a second, and CPU milliseconds an image."""
    batches = LOADERS[name](directory)
    count = 0
    while count < WARM_UP:
        count += next(batches)
    count, cpu, began = 0, cpu_seconds(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        count += next(batches)
    wall = time.perf_counter() - began
    return {"rate": count / wall, "cpu_ms": 1000 * (cpu_seconds() - cpu) / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--loader", action="append", choices=LOADERS)
    parser.add_argument("--one", choices=LOADERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.directory, options.seconds)), flush=True)
        os._exit(0)
    results: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name in options.loader or LOADERS:
            command = [sys.executable, "-m", "benchmarks.image_crop", str(options.directory)]
            command += ["--one", name, "--seconds", str(options.seconds)]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if run.returncode == 0:
                results.setdefault(name, []).append(json.loads(run.stdout.splitlines()[-1]))
    rates = {name: statistics.median(r["rate"] for r in runs) for name, runs in results.items()}
    cpus = {name: statistics.median(r["cpu_ms"] for r in runs) for name, runs in results.items()}
    ours = "shardwise"
    print(
        "| loader | images/s | CPU ms an image | shardwise's CPU against it |\n|---|---:|---:|---:|"
    )
    for name in sorted(rates, key=cpus.__getitem__):
        print(f"| {name} | {rates[name]:,.0f} | {cpus[name]:.2f} | {cpus[name] / cpus[ours]:.2f} |")


if __name__ == "__main__":
    main()
