"""Memory of decoding 3840x2160 video: one decoder, 8 threads, 8 threads of a loader.

    python -m benchmarks.video_memory [--clips 24]

Clips of 8 frames out of 1 s of H.264. Each way runs in a process of its own, and prints the largest
anonymous memory (RssAnon, looked at each 5 ms) above that after the imports and the making of the
dataset. "no bound" takes away the bound of `shardwise.engine.batch.prefetch`. "of the
pictures' size" asks the loader for clips of 199 MB under `prefetch_bytes` of 1 GiB: two a batch, so
that a batch alone takes 0.4 GB. Linux; needs ffmpeg.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FRAMES, THREADS, MB = 8, 8, 1_000_000
BUDGET = 1 << 30
WAYS = ("1 decoder", "8 threads, no bound", "8 threads", "loader", "loader, of the pictures' size")


def make(folder: Path) -> Path:
    """A shard of 8 videos."""
    import shardwise as sw

    video = folder / "a.mp4"
    source = "testsrc2=s=3840x2160:r=30:d=1,noise=alls=8:allf=t"
    command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", source, "-pix_fmt", "yuv420p"]
    options = ["-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-g", "30", "-crf", "28"]
    subprocess.run([*command, *options, str(video)], check=True, stdin=subprocess.DEVNULL)
    with sw.TarWriter(folder / "v.tar") as writer:
        for number in range(THREADS):
            writer.write({"__key__": f"{number}", "mp4": video.read_bytes()})
    return folder / "v.tar"


def anonymous() -> int:
    """Bytes of this process that belong to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


@contextmanager
def watched(found: list[int]) -> Iterator[None]:
    """Append the growth to the largest memory seen inside of the block."""
    before, done = anonymous(), threading.Event()
    peak = before

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        found.append(peak - before)


def measure(way: str, shard: Path, num_clips: int) -> int:
    """The growth in bytes."""
    import av  # noqa: F401

    import shardwise as sw
    from shardwise.engine.batch import prefetch

    if "no bound" in way:
        prefetch._MAX_BYTES = 1 << 60
    size = None if "size" in way else 224
    data = sw.tar(shard).decode(mp4=sw.video(FRAMES, stride=2, size=size))
    num_clips = num_clips if size else num_clips // 4
    data = data.subset([number % THREADS for number in range(num_clips)])
    files = [sample["mp4"] for sample in sw.tar(shard)]
    found: list[int] = []
    decoder: Callable[[bytes], Any] = data.transforms.decoders["mp4"]
    if way.startswith("loader"):
        options = {"num_threads": THREADS, "executor": "threads", "prefetch_bytes": BUDGET}
        loader = sw.DataLoader(
            data, batch_size=THREADS if size else 2, rank=0, world_size=1, output="numpy", **options
        )
        with watched(found):
            assert sum(len(batch["mp4"]) for batch in loader) == num_clips
    else:
        num_threads = 1 if way.startswith("1") else THREADS
        with watched(found), ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(decoder, (files[i % THREADS] for i in range(num_clips))):
                pass
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way, shard = options.one
        print(measure(way, Path(shard), options.clips), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        shard = make(Path(folder))
        rows = [f"| MB | {' | '.join(WAYS)} |", f"|---|{'---:|' * len(WAYS)}"]
        grown = []
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.video_memory", "--one", way, str(shard)]
            command += ["--clips", str(options.clips)]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            grown.append(int(run.stdout.split()[-1]))
            print(f"{way}: {grown[-1] / MB:.0f} MB", flush=True)
        rows.append(f"| PyAV | {' | '.join(f'{each / MB:.0f}' for each in grown)} |")
    print(*rows, f"load {os.getloadavg()[0]:.0f}", sep="\n")


if __name__ == "__main__":
    main()
