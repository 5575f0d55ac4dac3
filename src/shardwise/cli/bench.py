"""`shardwise bench`: how fast shards can be loaded here, where the time goes, and what limits it.

Iterates an ordinary loader as fast as batches come; all numbers are those of `loader.stats()` and
a clock. Imports the library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import shardwise as sw
from shardwise.cli.bench_plot import draw, drawable
from shardwise.cli.bench_view import show
from shardwise.cli.options import common_options, index_option, urls_argument, usage_errors
from shardwise.cli.output import progress, write_document
from shardwise.cli.shards import list_shards
from shardwise.codecs import default_decoder
from shardwise.codecs.images import Image

__all__ = ["bench"]

_DEFAULT_S = 5.0
_STAGES = ("read", "decode", "transform", "collate", "hand over")


@dataclass(frozen=True)
class Measured:
    """What a run of the loader gave.

    Attributes:
        first_s: seconds until the first batch, which is not part of what follows.
        stats: the loader's, without the first batch.
        seconds: the time of the run.
        marks: seconds since the start of the run and samples, by batch.
    """

    first_s: float
    stats: dict[str, Any]
    seconds: float
    marks: list[tuple[float, int]]


@click.command()
@urls_argument
@click.option(
    "--decode",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: by the fields' names; those without a default decoder stay bytes.",
)
@click.option(
    "--image-size", type=click.IntRange(min=1), help="Decode images to squares of so many pixels."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--num-workers", type=click.IntRange(min=0), help="Processes.  [default: none]")
@click.option(
    "--num-threads", type=click.IntRange(min=0), help="Threads in each.  [default: chosen]"
)
@click.option("--executor", type=click.Choice(["inline", "threads", "processes"]))
@click.option(
    "--shuffle", type=click.Choice(["none", "full", "window"]), default="none", show_default=True
)
@click.option("--batches", type=click.IntRange(min=1), help="Stop after so many batches.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after so many seconds.  [default: 5, without --batches]",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it, as .png, .svg or .pdf; needs matplotlib.",
)
@index_option
@common_options
def bench(
    urls: tuple[str, ...],
    decode: str,
    image_size: int | None,
    batch_size: int,
    num_workers: int | None,
    num_threads: int | None,
    executor: Literal["inline", "threads", "processes"] | None,
    shuffle: Literal["none", "full", "window"],
    batches: int | None,
    seconds: float | None,
    plot: Path | None,
    index: str | None,
    as_json: bool,
) -> None:
    """Measure how fast samples can be loaded here, and name what limits it.

    Loads as one rank, epoch after epoch, and throws the batches away. The first batch warms up and
    is not counted. Exit code 1 if a shard is missing or damaged.
    """
    if seconds is None and batches is None:
        seconds = _DEFAULT_S
    with usage_errors():
        if plot is not None:
            drawable(plot)
        shards = list_shards(urls)
        began = time.perf_counter()
        data = _decoded(sw.tar(shards, index=index), decode, image_size)
        loader = sw.DataLoader(
            data,
            batch_size=batch_size,
            shuffle=False if shuffle == "none" else shuffle,
            remainder="uneven",
            rank=0,
            world_size=1,
            num_workers=num_workers,
            num_threads=num_threads,
            executor=executor,
            output="numpy",
        )
        open_s = time.perf_counter() - began
    with loader, progress("loading", batches or round(10 * (seconds or 0))) as report:
        measured = _measure(loader, batches, seconds, report)
    document = {
        "num_shards": len(shards),
        "num_samples": len(data),
        "fields": list(data.fields),
        "decode": decode,
        "image_size": image_size,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "open_s": open_s,
        **_describe(measured),
    }
    if plot is not None:
        draw(plot, document, measured.marks)
    if as_json:
        write_document(document)
    else:
        show(document)


def _decoded(data: sw.Dataset, decode: str, image_size: int | None) -> sw.Dataset:
    """The dataset with the decoders that the options ask for."""
    if decode == "none":
        if image_size is not None:
            raise ValueError("--image-size is about decoding: leave out --decode none")
        return data
    if image_size is not None:
        images = [name for name in data.fields if isinstance(default_decoder(name), Image)]
        if not images:
            raise ValueError(
                f"--image-size {image_size}: no field is an image, they are "
                f"{', '.join(data.fields) or 'none'}"
            )
        data = data.decode(**dict.fromkeys(images, sw.image("rgb", size=image_size)))
    return data.decode()


def _measure(
    loader: sw.DataLoader,
    max_batches: int | None,
    max_seconds: float | None,
    report: Callable[[int], None],
) -> Measured:
    """Take batches until one of the limits is reached; `report` is told as the bar counts."""
    began = time.perf_counter()
    marks = []
    with closing(_epochs(loader)) as batches:
        next(batches)
        start = time.perf_counter()
        loader.stats(reset=True)
        for batch in batches:
            passed = time.perf_counter() - start
            marks.append((passed, len(batch["__index__"])))
            report(len(marks) if max_batches else int(10 * passed))
            if len(marks) == max_batches or (max_seconds is not None and passed >= max_seconds):
                break
        return Measured(start - began, loader.stats(), time.perf_counter() - start, marks)


def _epochs(loader: sw.DataLoader) -> Generator[dict[str, Any], None, None]:
    """The batches of one epoch after the other, without end."""
    while True:
        yield from loader


def _describe(measured: Measured) -> dict[str, Any]:
    """The run as JSON."""
    stats = measured.stats
    stages = {name: stats["seconds"][name] for name in _STAGES if name in stats["seconds"]}
    busy = sum(stages.values()) or 1.0
    return {
        **{name: stats[name] for name in ("executor", "num_workers", "num_threads")},
        "first_batch_s": measured.first_s,
        "seconds": measured.seconds,
        "num_batches": stats["batches"],
        "num_samples_loaded": stats["samples"],
        "samples_per_s": stats["samples"] / measured.seconds,
        "bytes_per_s": stats["bytes"] / measured.seconds,
        "stages": [
            {"name": name, "seconds": seconds, "share": seconds / busy}
            for name, seconds in stages.items()
        ],
        **{name: stats[name] for name in ("cpu_s", "wait_s", "queue_depth", "slowest_shards")},
        "bound_by": stats["bound_by"],
        "verdict": stats["verdict"],
    }
