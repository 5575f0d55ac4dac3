r"""What a GPU says of the loader: races, overlap, hand-over, waiting in training, decoding on it.

Makes its own JPEG shards from scikit-learn's pictures. Each line is printed as JSON, and written to
the file, as soon as it is measured; each part ends with its table. A loader or a part that fails
does not stop the others. About 9 minutes with one GPU and 16 cores. Rivals and decoders that are
not installed are named and left out.

    python -m benchmarks.gpu [--only races,resnet50] [--json FILE] [--budget 540]
    python -m benchmarks.gpu --device cpu        # the parts that need no GPU, at toy sizes

With `--budget S` it leaves out the parts that do not fit into so many seconds, and starts no
measurement after them. Called again with the same file it measures the parts that this lacks.

A machine with a GPU and no package index needs torch, scikit-learn, opencv-python-headless, rich,
click, cloudpickle and pyyaml, and wheels for its Python, made in a checkout elsewhere by

    pip wheel --no-deps -w wheels . && pip download --no-deps --only-binary :all: -d wheels \
      --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
      --platform manylinux2014_x86_64 \
      bracex simplejpeg cykooz-resizer torchcodec webdataset braceexpand

With them in the checkout there, this command measures all parts if it is given twice, for 7 minutes
each:

    pip install --no-index --no-deps --target site wheels/*.whl && PYTHONPATH=site \
      timeout 540 python -m benchmarks.gpu --json lines.json --budget 420

- races: batches of device= against the data, sample by sample, beside kernels that keep the device
  busy: 0 must be wrong
- overlap: the share of the copies' time that lies under kernels, and from which memory they are
- handover: ms of the program's thread for a batch, by way
- bubble: seconds to the first batch, and seconds waited in 50 steps of which one batch comes late
- resnet50, resnet18: images/s in training, by loader, beside synthetic batches; the share of the
  time that the GPU waits, and that the program's thread is in next()
- scaling: images/s of the loader alone by threads and processes, beside decoding without a loader
- nvjpeg: images of decode_on="device" against the CPU's, beside kernels: 0 must be wrong; images/s
  of the loader alone, and of raw bytes without decoding
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import shardwise as sw
from benchmarks.gpu_copies import bubble, handover, overlap, races
from benchmarks.gpu_loaders import Row, Setting, make_images
from benchmarks.gpu_training import nvjpeg, scaling, training

# By what matters most, if the time is short.
PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "races": races,
    "resnet50": partial(training, name="resnet50"),
    "nvjpeg": nvjpeg,
    "overlap": overlap,
    "handover": handover,
    "scaling": scaling,
    "bubble": bubble,
    "resnet18": partial(training, name="resnet18"),
}
# About what they take, and what making the pictures does, with one GPU and 16 cores.
SECONDS = dict(zip(PARTS, (40, 135, 60, 20, 35, 110, 15, 135), strict=True))
PICTURES_S = 30
_TOY = Setting(Path(), "cpu", batch_size=8, size=32, workers=2, seconds=0.2, is_toy=True)


def fitting(parts: list[str], budget_s: float) -> list[str]:
    """The parts, in order, that so many seconds suffice for.

    >>> fitting(["resnet50", "scaling", "overlap"], 200)
    ['resnet50', 'overlap']
    """
    left, chosen = budget_s - PICTURES_S, []
    for part in parts:
        if SECONDS[part] <= left:
            chosen.append(part)
            left -= SECONDS[part]
    return chosen


def finished(file: Path | None) -> set[str]:
    """The parts that the file has to their end."""
    found = set()
    for line in file.read_text().splitlines() if file is not None and file.exists() else ():
        with suppress(ValueError):  # a call that was killed leaves half a line
            row = json.loads(line)
            found |= {row["part"]} if row["what"] == "finished" else set()
    return found


def measured(part: str, setting: Setting) -> Iterator[Row]:
    """The lines of one part; its failure is one."""
    began = time.perf_counter()
    try:
        for row in PARTS[part](setting):
            yield {"part": part, **row}
    except Exception as error:  # noqa: BLE001 - the other parts are measured all the same
        yield {"part": part, "what": "failed", "error": f"{type(error).__name__}: {error}"[:400]}
    print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


def machine(setting: Setting) -> Row:
    name = torch.cuda.get_device_name() if setting.is_cuda else "no GPU, toy sizes"
    facts = {"torch": torch.__version__, "shardwise": sw.__version__, "date": time.strftime("%F")}
    for package in ("torchcodec", "torchvision", "simplejpeg", "webdataset"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    cores = len(os.sched_getaffinity(0))
    return {"part": "machine", "what": name, "cores": cores, **facts, "os": platform.platform()}


def show(rows: list[Row]) -> None:
    table = Table("part", "what", "measured", title="benchmarks.gpu")
    for row in rows:
        numbers = ", ".join(f"{k} {v:,}" if isinstance(v, int | float) else f"{k} {v}"
                            for k, v in row.items() if k not in ("part", "what"))  # fmt: skip
        table.add_row(row["part"], str(row["what"]), numbers)
    Console(stderr=True).print(table)


def write(row: Row, file: Path | None) -> None:
    """Print a line, and add it to the file: what follows may be cut."""
    print(json.dumps(row), flush=True)
    if file is not None:
        with file.open("a") as lines:
            lines.write(f"{json.dumps(row)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"parts, separated by commas: {','.join(PARTS)}")
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu: the parts that need no GPU, at toy sizes",
    )
    parser.add_argument("--images", type=int, help="pictures to make: 12,000; 64 without a GPU")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, help="threads or processes; cores less 2")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds of all")
    parser.add_argument("--json", type=Path, help="a file that the lines are added to")
    arguments = parser.parse_args()
    began = time.perf_counter()
    has = finished(arguments.json)
    parts = arguments.only.split(",") if arguments.only else [p for p in PARTS if p not in has]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    is_cuda = arguments.device == "cuda"
    if not is_cuda:
        torch.set_num_threads(1)  # toys are slower with more
    if is_cuda and not torch.cuda.is_available():
        parser.error(
            f"torch {torch.__version__} sees no CUDA device here, and this measures one: "
            "--device cpu walks through what needs none, at toy sizes"
        )
    workers = arguments.workers or max(1, len(os.sched_getaffinity(0)) - 2)
    chosen = fitting(parts, arguments.budget)
    has_failed = False
    with tempfile.TemporaryDirectory() as directory:
        setting = replace(_TOY, directory=Path(directory))
        if is_cuda:
            setting = Setting(
                Path(directory), "cuda", arguments.batch, 224, workers, arguments.seconds
            )
        setting = replace(setting, until=began + arguments.budget)
        make_images(Path(directory), arguments.images or (12_000 if is_cuda else 64))
        write(machine(setting), arguments.json)
        for part in chosen:
            rows: list[Row] = []
            for row in measured(part, setting):
                rows.append(row)
                write(row, arguments.json)
            show(rows)
            if any("error" in row for row in rows):
                has_failed = True
            elif time.perf_counter() < setting.until:
                write({"part": part, "what": "finished"}, arguments.json)
    if left := [part for part in parts if part not in chosen]:
        print(f"left out, for another call: --only {','.join(left)}", file=sys.stderr)
    if has_failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
