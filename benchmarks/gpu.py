"""What a GPU says of the loader: races, overlap, hand-over, waiting in training, decoding on it.

Makes its own JPEG shards from scikit-learn's pictures. Each part prints its lines as JSON, and at
the end there is a table; a part that fails does not stop the others. About 8 minutes with one GPU
and 16 cores. Rivals and decoders that are not installed are said and left out.

    python -m benchmarks.gpu [--only races,resnet50] [--json FILE]
    python -m benchmarks.gpu --device cpu        # the parts that need no GPU, at toy sizes

- races: batches of device= against the data, sample by sample, beside kernels that keep the device
  busy: 0 must be wrong
- overlap: the share of the copies' time that lies under kernels, and from which memory they are
- handover: ms of the program's thread for a batch, by way
- bubble: seconds to the first batch, and seconds waited in 50 steps of which one batch comes late
- resnet50, resnet18: images/s in training, by loader, beside synthetic batches; the share of the
  time that the GPU waits, and that the program's thread is in next()
- scaling: images/s of the loader alone by threads and processes, beside decoding without a loader
- nvjpeg: images/s of the loader alone with decode_on="device", and raw bytes without decoding
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import shardwise as sw
from benchmarks.gpu_copies import bubble, handover, overlap, races
from benchmarks.gpu_loaders import Row, Setting, make_images
from benchmarks.gpu_training import nvjpeg, scaling, training

PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "races": races,
    "overlap": overlap,
    "handover": handover,
    "bubble": bubble,
    "resnet50": partial(training, name="resnet50"),
    "resnet18": partial(training, name="resnet18"),
    "scaling": scaling,
    "nvjpeg": nvjpeg,
}
_TOY = Setting(Path(), "cpu", batch_size=8, size=32, workers=2, seconds=0.2)


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
    cores = len(os.sched_getaffinity(0))
    return {"part": "machine", "what": name, "cores": cores, **facts, "os": platform.platform()}


def show(rows: list[Row]) -> None:
    table = Table("part", "what", "measured", title="benchmarks.gpu")
    for row in rows:
        numbers = ", ".join(f"{k} {v:,}" if isinstance(v, int | float) else f"{k} {v}"
                            for k, v in row.items() if k not in ("part", "what"))  # fmt: skip
        table.add_row(row["part"], str(row["what"]), numbers)
    Console(stderr=True).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--images", type=int, help="pictures to make: 12,000; 64 without a GPU")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, help="threads or processes; cores less 2")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="a file for the lines")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
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
    with tempfile.TemporaryDirectory() as directory:
        setting = replace(_TOY, directory=Path(directory))
        if is_cuda:
            setting = Setting(
                Path(directory), "cuda", arguments.batch, 224, workers, arguments.seconds
            )
        make_images(Path(directory), arguments.images or (12_000 if is_cuda else 64))
        rows: list[Row] = []
        for row in chain([machine(setting)], *(measured(part, setting) for part in parts)):
            rows.append(row)
            print(json.dumps(row), flush=True)
    show(rows)
    if arguments.json:
        arguments.json.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if any("error" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
