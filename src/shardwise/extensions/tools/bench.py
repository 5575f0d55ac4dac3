"""`shardwise bench`: how fast shards can be loaded here, where the time goes, and what limits it.

Iterates an ordinary loader as fast as it can; the numbers are `loader.stats()` and a clock's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from shardwise.base.progress_bar import progress
from shardwise.cli import options, output
from shardwise.cli.data import decoded, open_data
from shardwise.cli.output import format_bytes, format_count, plural
from shardwise.codecs import default_decoder, image
from shardwise.codecs.image_decoder import Image
from shardwise.dataset import Dataset
from shardwise.engine.request import Concurrency
from shardwise.extensions.tools.bench_beside import measure_beside
from shardwise.extensions.tools.plots import draw, drawable
from shardwise.loader import DataLoader
from shardwise.loader.returned_types import Stats

_DEFAULT_S = 5.0
# Processes take over from threads after some 2 s at most: they are what a training has.
_SETTLING_S = 5.0
# Seconds between two counts of the batches that are ready: 20 a second cost nothing.
_SAMPLING_S = 0.05
_STAGES = ("read", "demux", "decode", "convert", "transform", "collate", "hand over")


class Run(NamedTuple):
    """The measurements of one run of the loader."""

    first_s: float
    stats: Stats
    seconds: float
    marks: list[tuple[float, int]]
    ready: list[tuple[float, float]]


@click.command()
@options.urls_argument
@click.option(
    "--decode",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto: by the fields' names; those without a default decoder stay bytes, and videos are "
    "opened only.",
)
@options.number_option("--image-size", text="Decode images to squares of N x N pixels.")
@options.number_option("--batch-size", default=64)
@options.number_option(
    "--num-workers", least=0, text="Worker processes; 0 for threads.  [default: chosen]"
)
@options.number_option(
    "--num-threads", least=0, text="Threads of each process; 0 for the caller's.  [default: chosen]"
)
@click.option(
    "--executor",
    type=click.Choice(["inline", "threads", "processes"]),
    help="Who makes the batches.  [default: chosen]",
)
@options.shuffle_option
@options.number_option("--batches", text="Stop after N batches.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after N seconds.  [default: 5, without --batches]",
)
@options.plot_option
@click.option("--beside", is_flag=True, help="Measure what a Python loop beside it loses, too.")
@options.shard_options
@options.common_options
def bench(
    urls: tuple[str, ...],
    decode: str,
    image_size: int | None,
    shuffle: Literal["none", "full", "window"],
    batches: int | None,
    seconds: float | None,
    plot: Path | None,
    beside: bool,
    index: str | None,
    accept_unfinished: bool,
    **loading: Any,
) -> None:
    """Measure how fast samples can be loaded here, and name what limits it.

    Loads as one rank, epoch after epoch, and throws the batches away. The first batch warms up and
    is not counted, nor, without --batches, are those before worker processes take over. For your
    own decoders, clips or cache name a dataset of your program: file.py:name. Exit code 1 if a
    shard is missing or damaged.
    """
    if seconds is None and batches is None:
        seconds = _DEFAULT_S
    with options.usage_errors():
        if plot is not None:
            drawable(plot)
        began = time.perf_counter()
        opened = open_data(urls, index=index, accept_unfinished=accept_unfinished)
        data = _decode_fields(opened, decode, image_size)
        loader = DataLoader(
            data,
            shuffle=False if shuffle == "none" else shuffle,
            remainder="uneven",
            rank=0,
            world_size=1,
            output="numpy",
            **loading,
        )
        open_s = time.perf_counter() - began
    total, unit = (batches, "batches") if batches else (seconds or 0.0, "s")
    with loader, progress("loading", total, unit=unit) as report:
        run = _measure(loader, batches, seconds, report)
        lost = None
        if beside:
            with closing(_epochs(loader)) as made:
                next(made)
                lost = measure_beside(made, run.seconds / max(1, run.stats["batches"]))
    document = {
        "num_shards": len(data.source.manifest.shards),
        "num_samples": len(data),
        "fields": list(data.fields),
        "decode": decode,
        "image_size": image_size,
        "batch_size": loading["batch_size"],
        "shuffle": shuffle,
        "open_s": open_s,
        **_describe(run),
        "beside": lost,
    }
    if plot is not None:
        draw(plot, document, run.marks, run.ready)
    output.finish(document, _show)


def _decode_fields(data: Dataset, decode: str, image_size: int | None) -> Dataset:
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
        data = data.decode(**dict.fromkeys(images, image("rgb", size=image_size)))
    return decoded(data)


def _measure(
    loader: DataLoader,
    max_batches: int | None,
    max_seconds: float | None,
    report: Callable[[float], None],
) -> Run:
    """Load batches up to one of the limits; `report` gets batches or seconds, as the bar counts."""
    began = time.perf_counter()
    marks = []
    ready: list[tuple[float, float]] = []
    with closing(_epochs(loader)) as batches:
        next(batches)
        first_s = time.perf_counter() - began
        settled_by = began + _SETTLING_S
        while (
            max_batches is None
            and loader.stats()["next_executor"]
            and time.perf_counter() < settled_by
        ):
            next(batches)
        start = time.perf_counter()
        loader.stats(reset=True)
        last = loader.stats()
        for batch in batches:
            passed = time.perf_counter() - start
            marks.append((passed, len(batch["__index__"])))
            report(len(marks) if max_batches else passed)
            if passed - (ready[-1][0] if ready else 0.0) >= _SAMPLING_S:
                last = loader.stats(since=last)
                ready.append((passed, last["queue_depth"]))
            if len(marks) == max_batches or (max_seconds is not None and passed >= max_seconds):
                break
        passed = time.perf_counter() - start
        return Run(first_s, loader.stats(), passed, marks, ready)


def _epochs(loader: DataLoader) -> Generator[dict[str, Any], None, None]:
    """The batches of one epoch after the other, without end."""
    while True:
        yield from loader


def _describe(run: Run) -> dict[str, Any]:
    stats = run.stats
    stages = {name: stats["seconds"][name] for name in _STAGES if name in stats["seconds"]}
    busy = sum(stages.values()) or 1.0
    return {
        **{n: stats[n] for n in ("executor", "num_workers", "num_threads", "executor_reason")},
        "first_batch_s": run.first_s,
        "seconds": run.seconds,
        "num_batches": stats["batches"],
        "num_samples_loaded": stats["samples"],
        "samples_per_s": stats["samples"] / run.seconds,
        "bytes_per_s": stats["bytes"] / run.seconds,
        "bytes_from": stats["bytes_from"],
        "fetched_ratio": stats["bytes_from"]["store"] / max(1, stats["bytes"]),
        "stages": [
            {"name": name, "seconds": seconds, "share": seconds / busy}
            for name, seconds in stages.items()
        ],
        **{name: stats[name] for name in ("cpu_s", "wait_s", "queue_depth", "slowest_shards")},
        "bound_by": stats["bound_by"],
        "verdict": stats["verdict"],
    }


def _egress(document: dict[str, Any]) -> list[list[str]]:
    """Where the bytes of remote data came from; nothing for local data."""
    found = document["bytes_from"]
    if not any(found.values()):
        return []
    places = ", ".join(f"{format_bytes(found[place])} from {place}" for place in found)
    return [["bytes", f"{places}; the store sent {document['fetched_ratio']:.2f} x what was read"]]


_MAX_BAR = 30


def _show(document: dict[str, Any]) -> None:
    concurrency = Concurrency(
        document["executor"], document["num_workers"], document["num_threads"]
    )
    decoded = "" if document["decode"] == "auto" else ", not decoded"
    size = document["image_size"]
    decoded += f", images of {size} x {size}" if size else ""
    batches = plural(document["num_batches"], "batch", "batches")
    samples = plural(document["num_samples_loaded"], "sample")
    rate = f"{format_count(round(document['samples_per_s']))} samples/s"
    output.write_table(
        ["samples", f"{format_count(document['num_samples'])}, "
         f"{plural(document['num_shards'], 'shard')}, shuffle {document['shuffle']}"],
        [
            ["fields", (", ".join(document["fields"]) or "none") + decoded],
            ["made by", f"{concurrency} ({document['executor_reason']})"],
            ["open", f"{document['open_s']:.3f} s"],
            ["first batch", f"{document['first_batch_s']:.3f} s"],
            ["then", f"{batches} of {document['batch_size']}, {samples}, "
             f"{document['seconds']:.2f} s"],
            ["rate", f"{rate}, {format_bytes(document['bytes_per_s'])}/s"],
            *_egress(document),
            ["ready", f"{document['queue_depth']:.1f} batches when one was asked for"],
        ],
    )  # fmt: skip
    output.write_line()
    width = min(_MAX_BAR, output.bar_width(50))
    loaded = document["num_samples_loaded"] or 1
    output.write_table(
        ["stage", ">seconds", ">µs a sample", ">share", ""],
        [
            [
                stage["name"],
                f"{stage['seconds']:.3f}",
                f"{1e6 * stage['seconds'] / loaded:.1f}",
                f"{100 * stage['share']:.0f} %",
                output.bar([1.0] * round(stage["share"] * width)),
            ]
            for stage in document["stages"]
        ],
    )
    if document["slowest_shards"]:
        output.write_line()
        output.write_table(
            ["slowest shards", ">µs a sample"],
            [
                [shard["url"], f"{1e6 * shard['seconds_a_sample']:.1f}"]
                for shard in document["slowest_shards"]
            ],
        )
    if beside := document["beside"]:
        output.write_line()
        output.write_table(
            ["Python loop", ">iterations/s", ">99 % of slices within"],
            [
                [name, format_count(round(beside[f"{key}_per_s"])),
                 f"{1000 * beside[f'{key}_slice_p99_s']:.2f} ms"]
                for name, key in (("alone", "alone"), ("beside the loader", "beside"))
            ],
        )  # fmt: skip
        output.write_line(f"The loop keeps {beside['ratio']:.2f} of its speed beside the loader.")
    output.write_line()
    output.write_line(document["verdict"])
