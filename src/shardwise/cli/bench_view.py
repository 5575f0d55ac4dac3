"""The report of `shardwise bench`: rates, a bar for each stage, slow shards, the verdict."""

from __future__ import annotations

from typing import Any

from shardwise.cli.output import (
    bar,
    bar_width,
    format_bytes,
    format_count,
    plural,
    write_line,
    write_table,
)
from shardwise.engine.concurrency import Concurrency

__all__ = ["show"]

_MAX_BAR = 30


def show(document: dict[str, Any]) -> None:
    """Write the result for people."""
    hands = Concurrency(document["executor"], document["num_workers"], document["num_threads"])
    decoded = "" if document["decode"] == "auto" else ", not decoded"
    size = document["image_size"]
    decoded += f", images of {size} x {size}" if size else ""
    batches = plural(document["num_batches"], "batch", "batches")
    samples = plural(document["num_samples_loaded"], "sample")
    rate = f"{format_count(round(document['samples_per_s']))} samples/s"
    write_table(
        ["samples", f"{format_count(document['num_samples'])}, "
         f"{plural(document['num_shards'], 'shard')}, shuffle {document['shuffle']}"],
        [
            ["fields", (", ".join(document["fields"]) or "none") + decoded],
            ["made by", f"{hands} (executor {document['executor']})"],
            ["open", f"{document['open_s']:.3f} s"],
            ["first batch", f"{document['first_batch_s']:.3f} s"],
            ["then", f"{batches} of {document['batch_size']}, {samples}, "
             f"{document['seconds']:.2f} s"],
            ["rate", f"{rate}, {format_bytes(document['bytes_per_s'])}/s"],
            ["ready", f"{document['queue_depth']:.1f} batches when one was asked for"],
        ],
    )  # fmt: skip
    write_line()
    width = min(_MAX_BAR, bar_width(50))
    loaded = document["num_samples_loaded"] or 1
    write_table(
        ["stage", ">seconds", ">µs a sample", ">share", ""],
        [
            [
                stage["name"],
                f"{stage['seconds']:.3f}",
                f"{1e6 * stage['seconds'] / loaded:.1f}",
                f"{100 * stage['share']:.0f} %",
                bar([1.0] * round(stage["share"] * width)),
            ]
            for stage in document["stages"]
        ],
    )
    if document["slowest_shards"]:
        write_line()
        write_table(
            ["slowest shards", ">µs a sample"],
            [
                [shard["url"], f"{1e6 * shard['seconds_a_sample']:.1f}"]
                for shard in document["slowest_shards"]
            ],
        )
    write_line()
    write_line(document["verdict"])
