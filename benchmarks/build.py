"""Building shards: against the encoders' own rate, `cp`, and the writers of other packages.

The same pictures for all, made by a rule and encoded by Pillow as JPEG. Wall and CPU seconds of all
processes; ratios are what to compare. Peers run in an interpreter that has them.

    python -m benchmarks.build --peers /path/to/venv/bin/python
    # in that environment: pip install webdataset litdata mosaicml-streaming pillow numpy
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image

SIDE, QUALITY = 256, 95


def picture(number: int) -> PIL.Image.Image:
    """A picture with edges and a little noise: about 18 kB as JPEG."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    large = coarse.repeat(SIDE // 16, 0).repeat(SIDE // 16, 1).astype(np.int16)
    large += rng.integers(-6, 7, large.shape, dtype=np.int16)
    return PIL.Image.fromarray(large.clip(0, 255).astype(np.uint8))


def encoded(number: int) -> bytes:
    """The picture as JPEG."""
    file = io.BytesIO()
    picture(number).save(file, format="JPEG", quality=QUALITY)
    return file.getvalue()


def sample(number: int) -> dict[str, object]:
    """What `sw.build` encodes itself."""
    return {"jpg": picture(number), "cls": number}


def encode_all(numbers: range) -> None:
    """The floor: encoders alone."""
    for number in numbers:
        encoded(number)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of a call, with those of its processes that have ended."""

    def cpu() -> float:
        own, theirs = (
            resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime

    began, used = time.perf_counter(), cpu()
    call()
    return time.perf_counter() - began, cpu() - used


def show(name: str, seconds: tuple[float, float], floor: tuple[float, float]) -> None:
    wall, cpu = seconds
    print(
        f"{name:44} wall {wall:7.2f} s  cpu {cpu:7.2f} s   floor/this: wall {floor[0] / wall:5.2f}"
        f"  cpu {floor[1] / cpu:5.2f}",
        flush=True,
    )


def floor_of(count: int, processes: int) -> None:
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(encode_all, [range(at, count, processes) for at in range(processes)], chunksize=1)
        pool.close()
        pool.join()


def pictures(count: int, folder: Path, peers: str) -> None:
    """Encoding and writing the same pictures."""
    import shardwise as sw

    print(f"{count} pictures of {SIDE} x {SIDE}, {len(encoded(0)) / 1e3:.0f} kB each")
    floor = timed(lambda: floor_of(count, 2))
    show("encoders alone, 2 processes", floor, floor)
    for workers in (2, 0):
        out = folder / f"build-{workers}"

        def build(out: Path = out, workers: int = workers) -> object:
            pattern = f"{out}/{{shard:04d}}.tar"
            numbers = range(count)
            return sw.build(
                numbers, pattern, map=sample, samples_per_shard=200, num_workers=workers
            )

        show(f"sw.build, num_workers={workers}", timed(build), floor)
        shutil.rmtree(out)
    for name in PEERS if peers else ():
        out = folder / name
        command = [peers, __file__, "--peer", name, "--count", str(count), "--out", str(out)]

        def run(command: list[str] = command) -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ))

        try:
            show(name, timed(run), floor)
        except subprocess.CalledProcessError:
            print(f"{name:44} is not installed there, or failed")
        shutil.rmtree(out, ignore_errors=True)


def copies(num_bytes: int, folder: Path) -> None:
    """`reshard` of stored bytes against `cp`."""
    import shardwise as sw

    source = folder / "source"
    rng = np.random.default_rng(0)
    payload = rng.bytes(1 << 20)
    with sw.TarWriter(source / "{shard:03d}.tar", max_bytes=64 << 20) as writer:
        for number in range(num_bytes // 100_000):
            start = number * 37 % (len(payload) - 100_000)
            data = payload[start : start + 100_000]
            writer.write({"__key__": f"{number:08d}", "jpg": data, "cls": number})
    print(f"{num_bytes / 1e6:.0f} MB in samples of 100 kB")

    def cp(*, flush: bool) -> None:
        subprocess.run(["cp", "-r", source, folder / "copy"], check=True)
        if flush:
            subprocess.run(["sync", *sorted((folder / "copy").iterdir())], check=True)

    def clear() -> None:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        os.sync()

    for turn in range(2):
        clear()
        plain = timed(lambda: cp(flush=False))
        clear()
        floor = timed(lambda: cp(flush=True))
        if turn:
            show("cp", plain, floor)
            show("cp, flushed to the disk", floor, floor)
        for workers in (0, 2):
            clear()

            def reshard(workers: int = workers) -> object:
                pattern = f"{folder}/copy/{{shard:03d}}.tar"
                return sw.build(
                    sw.tar(str(source)), pattern, bytes_per_shard=48 << 20, num_workers=workers
                )

            seconds = timed(reshard)
            if turn:
                show(f"reshard, num_workers={workers}", seconds, floor)
    shutil.rmtree(folder / "copy")


def with_webdataset(count: int, out: Path) -> None:
    import webdataset as wds

    out.mkdir()
    with wds.ShardWriter(f"{out}/%04d.tar", maxcount=200, verbose=0) as writer:
        for number in range(count):
            writer.write({"__key__": f"{number:08d}", "jpg": encoded(number), "cls": number})


def with_mosaic(count: int, out: Path) -> None:
    from streaming import MDSWriter

    columns = {"jpg": "bytes", "cls": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=200 * 45_000) as writer:
        for number in range(count):
            writer.write({"jpg": encoded(number), "cls": number})


def litdata_sample(number: int) -> dict[str, object]:
    return {"jpg": encoded(number), "cls": number}


def with_litdata(count: int, out: Path) -> None:
    import litdata

    litdata.optimize(litdata_sample, list(range(count)), str(out), chunk_bytes="9MB", num_workers=2)


PEERS = {
    "webdataset.ShardWriter": with_webdataset,
    "MDSWriter": with_mosaic,
    "LitData optimize, 2 workers": with_litdata,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--peers", default="", help="an interpreter that has the peers")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        PEERS[arguments.peer](arguments.count, arguments.out)
        return
    # An installed package has its bytecode; without, each worker would compile all it imports.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(json.dumps({"load": os.getloadavg()[0], "python": sys.version.split()[0]}))
    with tempfile.TemporaryDirectory() as directory:
        pictures(arguments.count, Path(directory), arguments.peers)
        copies(arguments.megabytes * 10**6, Path(directory))


if __name__ == "__main__":
    main()
