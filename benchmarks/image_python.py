"""Python per image: what an inline loader costs above the decoders that it calls.

    python -m benchmarks.image_python [--batches 200] [--json]

JPEG of 16x16 and 32x32 at their size and of 500x375 to 224x224, shuffled, batches of 64. After each
batch of the loader, `os.preadv` reads the same bytes by a call for each file, and simplejpeg and
OpenCV decode them: the floor. CPU time per image in µs, each the 10th percentile over all batches,
since other work on the machine only adds to it; "Python" is the loader's less its floor. The last
times are medians of that difference batch by batch, with what else the machine did.

Releases of the GIL are counted where a C compiler is there: in a second process whose
PyEval_SaveThread is one that counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

import shardwise as sw
from benchmarks.image_resize import picture

BATCH = 64
# Height and width of the files, the size of a row, and the number of files.
PICTURES = {
    "16x16": (16, 16, 16, 1024),
    "32x32": (32, 32, 32, 1024),
    "500x375": (375, 500, 224, 256),
}
LAYOUTS = ("CHW", "channels_last")
TIMES = ("reads", "decoders", "loader", "Python")
_COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
static long count;
long num_releases(void) { return count; }
void *PyEval_SaveThread(void) {
    static void *(*save)(void);
    if (!save) save = (void *(*)(void))dlsym(RTLD_NEXT, "PyEval_SaveThread");
    count++;
    return save();
}
"""


def write_pictures(directory: Path, height: int, width: int, count: int) -> None:
    """Write files cut from one picture, each another part of it, to two shards."""
    rng = np.random.default_rng(0)
    whole = picture(height + 256, width + 256)
    with sw.TarWriter(str(directory / "{shard:03d}.tar"), max_samples=-(-count // 2)) as writer:
        for number in range(count):
            top, left = rng.integers(0, 256, 2).tolist()
            part = np.ascontiguousarray(whole[top : top + height, left : left + width])
            data = simplejpeg.encode_jpeg(part, quality=90)
            writer.write({"__key__": f"{number:06d}", "jpg": data})


def decode_bare(files: list[memoryview], rows: Any, *, is_exact: bool) -> None:
    """Decode a batch into its rows by the packages that the loader's decoder calls."""
    _, channels, height, width = rows.shape
    has_planes = rows.flags.c_contiguous
    for data, row in zip(files, rows, strict=True):
        place = np.empty((height, width, channels), np.uint8)
        if not has_planes:
            place = row.transpose(1, 2, 0)
        pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=place if is_exact else None)
        if not is_exact:
            cv2.resize(pixels, (width, height), dst=place)
        if has_planes and not is_exact:
            cv2.split(place, list(row))
        elif has_planes:
            np.copyto(row, place.transpose(2, 0, 1))


class Case:
    """One kind of picture and layout: its loader, its files, and rows to decode them into."""

    def __init__(self, directory: Path, name: str, layout: str) -> None:
        height, width, size, _ = PICTURES[name]
        pattern = str(directory / name / "*.tar")
        decoder = sw.image(size=size, layout=layout, interpolation="linear")
        data = sw.tar(pattern).select("jpg")
        self.is_exact = height == width == size
        files = [sample["jpg"] for sample in data]
        self.sizes = list(map(len, files))
        self.offsets = [0, *accumulate(self.sizes)]
        # A file of all files, to read from without a source.
        payloads = directory / f"{name}.bin"
        payloads.write_bytes(b"".join(files))
        self.payloads = os.open(payloads, os.O_RDONLY)
        self.loader = sw.DataLoader(
            data.decode(jpg=decoder), BATCH, shuffle=True, rank=0, world_size=1,
            remainder="drop", executor="inline", output="numpy",
        )  # fmt: skip
        self.batches: Iterator[Any] = chain.from_iterable(repeat(self.loader))
        self.rows = np.empty_like(next(self.batches)["jpg"])
        self.buffer = memoryview(bytearray(BATCH * max(self.sizes)))

    def load(self) -> list[int]:
        """Load a batch and return the ids in it."""
        ids: list[int] = next(self.batches)["__index__"].tolist()
        return ids

    def read(self, ids: list[int]) -> list[memoryview]:
        """Read files without the loader, one after the other into one buffer."""
        files, at = [], 0
        for number in ids:
            file = self.buffer[at : at + self.sizes[number]]
            os.preadv(self.payloads, [file], self.offsets[number])
            files.append(file)
            at += len(file)
        return files

    def decode(self, files: list[memoryview]) -> None:
        """Decode files without the loader."""
        decode_bare(files, self.rows, is_exact=self.is_exact)


def cpu_us(call: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU time of a call per image in µs, and what it returned."""
    began = time.thread_time()
    result = call()
    return 1e6 * (time.thread_time() - began) / BATCH, result


def measure(case: Case, num_batches: int) -> dict[str, float]:
    """Measure loader, decoders and reads in turns, a batch each."""
    rows: list[tuple[float, ...]] = []
    for _ in range(num_batches):
        loader_us, ids = cpu_us(case.load)
        reads_us, files = cpu_us(partial(case.read, ids))
        decoders_us, _ = cpu_us(partial(case.decode, files))
        rows.append((reads_us, decoders_us, loader_us, loader_us - reads_us - decoders_us))
    found = dict(zip(TIMES, np.percentile(rows, 10, axis=0).tolist(), strict=True))
    found["Python"] = found["loader"] - found["reads"] - found["decoders"]
    found["median"] = statistics.median(row[-1] for row in rows)
    return {f"{name}_us": value for name, value in found.items()}


def count_releases(case: Case, num_batches: int) -> dict[str, float]:
    """Releases of the GIL per image, in a process that has the counter."""
    counter = ctypes.PyDLL(None)
    counter.num_releases.restype = ctypes.c_long

    def count(call: Callable[[], Any]) -> tuple[int, Any]:
        began = counter.num_releases()
        result = call()
        return counter.num_releases() - began, result

    if count(lambda: time.sleep(0))[0] != 1:
        return {}  # this Python does not call the function by its name
    loader = bare = 0
    for _ in range(num_batches):
        released, ids = count(case.load)
        loader += released
        bare += count(lambda ids=ids: case.decode(case.read(ids)))[0]
    images = num_batches * BATCH
    return {"loader_releases": loader / images, "bare_releases": bare / images}


def releases_of(directory: Path, name: str, layout: str) -> dict[str, float]:
    """The counts of `count_releases`, by a process of its own; none without a compiler."""
    compiler, library = shutil.which("cc"), directory / "counter.so"
    if compiler is None:
        return {}
    if not library.exists():
        command = [compiler, "-shared", "-fPIC", "-O1", "-xc", "-", "-o", str(library), "-ldl"]
        subprocess.run(command, input=_COUNTER.encode(), check=True)
    command = [sys.executable, "-m", "benchmarks.image_python", "--count", str(directory)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    line = subprocess.run(
        [*command, name, layout], check=True, env=environment, stdout=subprocess.PIPE
    ).stdout
    counts: dict[str, float] = json.loads(line)
    return counts


def main() -> None:
    """Print a row for each kind of picture and layout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--picture", choices=list(PICTURES), action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    if options.count:
        place, name, layout = options.count
        print(json.dumps(count_releases(Case(Path(place), name, layout), 4)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        for name in options.picture or PICTURES:
            height, width, _, count = PICTURES[name]
            (directory / name).mkdir()
            write_pictures(directory / name, height, width, count)
            for layout in LAYOUTS:
                found = measure(Case(directory, name, layout), options.batches)
                found |= releases_of(directory, name, layout)
                rows.append({"picture": name, "layout": layout, **found})
    if options.json:
        print(json.dumps(rows))
        return
    print("| JPEG | layout | reads | decoders | loader | Python | median | GIL releases | bare |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        times = " | ".join(f"{row[f'{name}_us']:.1f}" for name in (*TIMES, "median"))
        counts = [row.get(f"{name}_releases") for name in ("loader", "bare")]
        shown = " | ".join("-" if each is None else f"{each:.1f}" for each in counts)
        print(f"| {row['picture']} | {row['layout']} | {times} | {shown} |")


if __name__ == "__main__":
    main()
