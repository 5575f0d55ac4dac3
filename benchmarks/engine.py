"""What the engine costs beside reading and decoding: start, resume, memory, hand-over, threads.

    python -m benchmarks.engine [first] [trainer] [threads] [memory] [rates] [--corpora DIR]

- first: seconds to the first batch, from before the loader is made; and to the first batch after
  a resume at 90 % of the epoch.
- trainer: CPU milliseconds a batch of 38.5 MB in the trainer's process, from two processes.
- threads: images/s of 8 threads through the loader, and of 8 threads that only decode.
- memory: the peak of all processes together, in MB of memory that is theirs (PSS).
- rates: samples/s by workers, by batch size, by sample size.

Each figure is the median of `--rounds` runs in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import shardwise as sw
from benchmarks.corpora import make
from benchmarks.task import SIZE, shards

ROOT = Path(__file__).resolve().parents[1]
SIZES = (1 << 10, 10 << 10, 100 << 10, 1 << 20)


def images(directory: Path, **options: Any) -> Any:
    ds = sw.tar(shards(directory, "image-batch")).select("jpg", "cls")
    ds = ds.decode(jpg=sw.image(size=SIZE, interpolation="linear"), cls=int)
    options = {"batch_size": 64, "shuffle": True, **options}
    return sw.DataLoader(ds, rank=0, world_size=1, **options)


def tiny(directory: Path, **options: Any) -> Any:
    ds = sw.tar(shards(directory, "tiny-batch")).select("bin", "cls")
    ds = ds.decode(bin=sw.array("uint8", (1024,)), cls=int)
    options = {"batch_size": 256, "shuffle": True, **options}
    return sw.DataLoader(ds, rank=0, world_size=1, **options)


def sized(directory: Path, num_bytes: int) -> Any:
    folder = directory / f"sized-{num_bytes}"
    if not (folder / "done").exists():
        rng = np.random.default_rng(0)
        count = max(256, min(20_000, (256 << 20) // num_bytes))
        folder.mkdir(exist_ok=True)
        with sw.TarWriter(str(folder / "{shard:03d}.tar"), max_samples=-(-count // 8)) as writer:
            for i in range(count):
                writer.write({"__key__": f"{i:06d}", "bin": rng.bytes(num_bytes)})
        (folder / "done").touch()
    ds = sw.tar(str(folder)).decode(bin=sw.array("uint8", (num_bytes,)))
    return sw.DataLoader(ds, rank=0, world_size=1, shuffle=True, batch_size=64, num_workers=2)


def rate(loader: Any, seconds: float) -> float:
    """Samples a second, after the first two batches."""
    count, began, number = 0, 0.0, 0
    while True:
        for batch in loader:
            number += 1
            if number == 2:
                began = time.perf_counter()
            elif number > 2:
                count += len(batch["__index__"])
                if time.perf_counter() - began >= seconds:
                    return count / (time.perf_counter() - began)


# Each of these runs in a process of its own, and prints one number a name.


def first(directory: Path, options: dict[str, Any]) -> dict[str, float]:
    began = time.perf_counter()
    next(iter(images(directory, **options)))
    return {"s": time.perf_counter() - began}


def resumed(directory: Path, options: dict[str, Any]) -> dict[str, float]:
    whole = images(directory, **options)
    state = whole.state_dict()
    state["position"] = len(whole) * 9 // 10 * 64
    began = time.perf_counter()
    loader = images(directory, **options)
    loader.load_state_dict(state)
    next(iter(loader))
    return {"s": time.perf_counter() - began}


def trainer(directory: Path, options: dict[str, Any]) -> dict[str, float]:
    loader = images(directory, batch_size=256, num_workers=2, **options)
    spent, number, before = [], 0, 0.0
    while number < 24:
        for _ in loader:
            now = time.process_time()
            if number > 6:
                spent.append(now - before)
            before, number = now, number + 1
    return {"ms": statistics.mean(spent) * 1e3}


def threads(directory: Path, options: dict[str, Any]) -> dict[str, float]:
    loader = images(directory, num_threads=8)
    source = loader.dataset.source
    ids = np.arange(512)
    payloads = [bytes(data) for data in source.read(ids, ("jpg",)).fields["jpg"]]
    decoder, batch = (
        sw.image(size=SIZE, interpolation="linear"),
        np.empty((64, 3, SIZE, SIZE), np.uint8),
    )

    def alone(part: int) -> None:
        for i, data in enumerate(payloads[part::8]):
            decoder.decode_into(data, batch[i % 8 * 8 + part])

    def bare() -> float:
        began, count = time.perf_counter(), 0
        with ThreadPoolExecutor(8) as pool:
            while time.perf_counter() - began < options["seconds"]:
                list(pool.map(alone, range(8)))
                count += len(payloads)
        return count / (time.perf_counter() - began)

    bare_rates, rates = [], []
    for _ in range(3):
        bare_rates.append(bare())
        rates.append(rate(loader, options["seconds"]))
    return {
        "decoder": statistics.median(bare_rates),
        "loader": statistics.median(rates),
    }


def memory(directory: Path, options: dict[str, Any]) -> dict[str, float]:
    seconds = options.pop("seconds")
    __import__("torch")
    peak, done = [0.0], threading.Event()
    own = psutil.Process()
    before = own.memory_full_info().pss

    def watch() -> None:
        while not done.wait(0.05):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    rate(images(directory, **options), seconds)
    done.set()
    watcher.join()
    return {"MB": peak[0] / 1e6, "before": before / 1e6}


def rates(directory: Path, options: dict[str, Any]) -> dict[str, float]:
    seconds = options.pop("seconds")
    if "num_bytes" in options:
        return {"rate": rate(sized(directory, options["num_bytes"]), seconds)}
    make_loader = {"images": images, "tiny": tiny}[options.pop("corpus")]
    return {"rate": rate(make_loader(directory, **options), seconds)}


FIGURES = {f.__name__: f for f in (first, resumed, trainer, threads, memory, rates)}


def run(name: str, arguments: argparse.Namespace, **options: Any) -> dict[str, float]:
    """The medians of one figure over some runs."""
    command = [sys.executable, "-m", "benchmarks.engine", "--figure", name]
    command += ["--corpora", str(arguments.corpora), "--options", json.dumps(options)]
    found = []
    for _ in range(arguments.rounds):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def show(
    console: Console, title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> None:
    table = Table(title=title)
    for column in header:
        table.add_column(column, justify="left" if column == header[0] else "right")
    for row in rows:
        table.add_row(
            *(
                f"{v:,.3g}"
                if isinstance(v, float) and v < 1000
                else f"{v:,.0f}"
                if isinstance(v, float)
                else str(v)
                for v in row
            )
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=[])
    parser.add_argument("--corpora", type=Path, default=Path(tempfile.gettempdir()) / "sw-corpora")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--figure", choices=list(FIGURES), help=argparse.SUPPRESS)
    parser.add_argument("--options", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.figure:
        __import__("torch")
        found = FIGURES[arguments.figure](arguments.corpora, json.loads(arguments.options))
        print(json.dumps(found), flush=True)
        return
    arguments.corpora.mkdir(parents=True, exist_ok=True)
    make(arguments.corpora, scale=arguments.scale)
    what = arguments.what or ["first", "trainer", "threads", "memory", "rates"]
    console, seconds = Console(width=100), arguments.seconds
    hands: list[tuple[str, dict[str, Any]]] = [
        ("2 threads", {"num_threads": 2}),
        ("2 processes", {"num_workers": 2}),
    ]
    if "first" in what:
        rows = []
        for name, options in hands:
            begin, later = (run(f, arguments, **options)["s"] for f in ("first", "resumed"))
            rows.append((name, begin, later, later / begin))
        header = ("images", "first batch, s", "after a resume at 90 %, s", "ratio")
        show(console, "Start", header, rows)
    if "trainer" in what:
        found = run("trainer", arguments)["ms"]
        show(console, "Trainer", ("batch", "CPU, ms"), [("256 x 3 x 224 x 224, 38.5 MB", found)])
    if "threads" in what:
        both = run("threads", arguments, seconds=seconds)
        row = ("8", both["decoder"], both["loader"], 1 - both["loader"] / both["decoder"])
        header = ("threads", "decoder alone, images/s", "loader, images/s", "overhead")
        show(console, "Engine overhead", header, [row])
    if "memory" in what:
        rows = []
        for name, options in hands:
            both = run("memory", arguments, seconds=seconds, **options)
            rows.append((name, both["MB"], both["MB"] - both["before"]))
        header = ("images, batches of 64", "peak, MB", "more than torch alone, MB")
        show(console, "Memory of all processes", header, rows)
    if "rates" in what:
        rows = []
        for workers in range(5):
            pair = [
                run("rates", arguments, corpus=corpus, num_workers=workers, seconds=seconds)["rate"]
                for corpus in ("images", "tiny")
            ]
            rows.append((workers, *pair))
        show(console, "By workers (0: threads)", ("workers", "images/s", "small samples/s"), rows)
        rows = []
        for size in (16, 64, 256, 1024):
            pair = [
                run("rates", arguments, corpus=c, num_workers=2, batch_size=size, seconds=seconds)[
                    "rate"
                ]
                for c in ("images", "tiny")
            ]
            rows.append((size, *pair))
        show(console, "By batch size, 2 workers", ("batch", "images/s", "small samples/s"), rows)
        rows = []
        for num_bytes in SIZES:
            found = run("rates", arguments, num_bytes=num_bytes, seconds=seconds)["rate"]
            rows.append((num_bytes, found, found * num_bytes / 1e6))
        show(console, "By sample size, 2 workers", ("bytes", "samples/s", "MB/s"), rows)


if __name__ == "__main__":
    main()
