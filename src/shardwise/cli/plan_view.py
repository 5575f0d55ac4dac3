"""The report of `shardwise plan`: the numbers, a row a rank, and the proof in a line."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.cli.coverage import Coverage
from shardwise.cli.output import (
    bar,
    bar_legend,
    bar_width,
    format_count,
    plural,
    write_line,
    write_table,
)

__all__ = ["show_numbers", "show_proof", "show_ranks", "show_sources"]

# Ranks in the table; the JSON document has all.
MAX_ROWS = 32


def show_numbers(document: dict[str, Any]) -> None:
    """Write the plan's own numbers."""
    d = document
    write_line(f"{plural(d['num_samples'], 'sample')} in {plural(d['num_shards'], 'shard')}")
    if d["epoch_size"] is not None or "sources" in d:
        write_line(f"virtual epochs of {plural(d['epoch_samples'], 'sample')}")
    write_line(f"shuffle {d['shuffle']}, seed {d['seed']}, epoch {d['epoch']}")
    write_line(
        f"{plural(d['world_size'], 'rank')} x batches of {format_count(d['batch_size'])}"
        f" = global batches of {format_count(d['global_batch_size'])}"
    )
    write_line(
        f"{plural(d['num_steps'], 'step')} on every rank, remainder {d['remainder']}: "
        f"{format_count(d['num_dropped'])} dropped, {format_count(d['num_padded'])} padded"
    )


def show_sources(sources: dict[str, dict[str, float]]) -> None:
    """Write a row a dataset of a mixture: its samples in the epoch, and its own epochs."""
    rows = [
        [
            name,
            format_count(int(facts["samples"])),
            f"{facts['share']:.2%}",
            f"{facts['epochs_before']:.3f} to {facts['epochs_after']:.3f}",
        ]
        for name, facts in sources.items()
    ]
    write_line("a row a dataset, with the epochs of its own before and after this one")
    write_line()
    write_table(["source", ">samples", ">share", ">its epochs"], rows)
    write_line()


def show_ranks(coverage: Coverage, group_ends: NDArray[np.int64], num_shards: int) -> None:
    """Write a row a rank: its samples, and its share of each shard."""
    num_ranks, num_groups = coverage.reads.shape
    width = min(num_groups, bar_width(beside=40))
    first = np.arange(width) * num_groups // width
    # A column is a stretch of neighbouring shards; empty ones have the share 0.
    sizes = np.add.reduceat(np.diff(group_ends, prepend=0), first)
    reads = np.add.reduceat(coverage.reads[:MAX_ROWS], first, axis=1)
    rows = [
        [
            str(rank),
            format_count(int(coverage.reads[rank].sum())),
            format_count(int(coverage.padded[rank])),
            format_count(int(np.count_nonzero(coverage.reads[rank])))
            if num_groups == num_shards
            else "",
            bar(shares.tolist()),
        ]
        for rank, shares in enumerate(reads / np.maximum(sizes, 1))
    ]
    small, full = bar_legend()
    write_line(f"a row a rank, with its share of each shard: {small} a little, {full} all")
    write_line()
    title = "shard 0" if num_shards == 1 else f"shards 0 to {num_shards - 1}"
    write_table([">rank", ">samples", ">padding", ">shards", title], rows)
    if num_ranks > MAX_ROWS:
        write_line(f"... and {plural(num_ranks - MAX_ROWS, 'more rank')} (--json has all)")
    write_line()


def show_proof(document: dict[str, Any], coverage: Coverage, faults: list[str]) -> None:
    """Write what was counted, in a line."""
    d = document
    ran = f"counted over {plural(d['world_size'], 'rank')} x {plural(d['num_steps'], 'step')}"
    if faults:
        write_line(f"coverage: BROKEN, {'; '.join(faults)} ({ran})")
        return
    total, distinct = format_count(d["num_samples"]), format_count(coverage.num_distinct)
    if coverage.num_repeats:
        repeats = plural(coverage.num_repeats, "read")
        which = "again" if "sources" in d else "of the next permutation"
        text = f"{distinct} of {total} samples, and then {repeats} {which}"
    else:
        samples = f"{distinct} of {total}" if coverage.num_never else f"each of {total}"
        text = f"{samples} samples exactly once"
    if d["num_dropped"]:
        text += f", {format_count(d['num_dropped'])} dropped"
    if coverage.num_never > d["num_dropped"]:
        text += f", {format_count(coverage.num_never - d['num_dropped'])} in other virtual epochs"
    if coverage.num_padded:
        text += f", {plural(coverage.num_padded, 'repeat')} masked as padding"
    write_line(f"coverage: proved, {text} ({ran})")
