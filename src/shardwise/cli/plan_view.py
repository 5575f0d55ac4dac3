"""What `shardwise plan` shows to people: the numbers, a row a rank, and the proof in a line.

Imports numpy, the plan and the commands' output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from shardwise.plan import Plan

__all__ = ["show_numbers", "show_proof", "show_ranks"]

# Ranks in the table; the JSON document has all.
MAX_ROWS = 32


def show_numbers(document: dict[str, Any]) -> None:
    """Write what the plan says of itself."""
    d = document
    write_line(f"{plural(d['num_samples'], 'sample')} in {plural(d['num_shards'], 'shard')}")
    if d["epoch_size"] is not None:
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


def show_ranks(coverage: Coverage, num_shards: int) -> None:
    """Write a row a rank: what it reads, and from which shards."""
    num_ranks, num_groups = coverage.reads.shape
    shown = min(num_ranks, MAX_ROWS)
    width = min(num_groups, bar_width(beside=40))
    first = np.arange(width) * num_groups // width
    # Of each stretch of shards, the share that a rank reads; what nobody reads counts as much.
    sizes = np.maximum(np.add.reduceat(coverage.group_sizes, first), 1)
    small, full = bar_legend()
    rows = []
    for rank in range(shown):
        shares = np.add.reduceat(coverage.reads[rank], first) / sizes
        num_read = int(np.count_nonzero(coverage.reads[rank]))
        rows.append(
            [
                str(rank),
                format_count(int(coverage.rank_samples[rank])),
                format_count(int(coverage.rank_padded[rank])),
                format_count(num_read) if num_groups == num_shards else "",
                bar(shares.tolist()),
            ]
        )
    title = "shard 0" if num_shards == 1 else f"shards 0 to {num_shards - 1}"
    write_line(f"a row a rank, with its share of each shard: {small} a little, {full} all")
    write_line()
    write_table([">rank", ">samples", ">padding", ">shards", title], rows)
    if shown < num_ranks:
        write_line(f"... and {plural(num_ranks - shown, 'more rank')} (--json has all)")
    write_line()


def show_proof(
    made: Plan, coverage: Coverage | None, faults: list[str] | None, max_proof: int
) -> None:
    """Write what was proved."""
    if coverage is None:
        write_line(
            f"coverage: not proved, there are more than {format_count(max_proof)} samples, and "
            "to look at some of them proves nothing. Raise --max-proof to count them all."
        )
        return
    ran = f"counted over {plural(made.world_size, 'rank')} x {plural(made.num_steps, 'step')}"
    if faults:
        write_line(f"coverage: BROKEN, {'; '.join(faults)} ({ran})")
        return
    total = format_count(coverage.num_ids)
    elsewhere = coverage.num_never - made.num_dropped
    if coverage.num_never == 0 and coverage.num_repeats == 0:
        text = f"each of {total} samples exactly once"
    elif coverage.num_repeats == 0:
        text = f"{format_count(coverage.num_distinct)} of {total} samples exactly once"
    else:
        text = (
            f"{format_count(coverage.num_distinct)} of {total} samples, and then "
            f"{plural(coverage.num_repeats, 'read')} of the next permutation"
        )
    if made.num_dropped:
        text += f", {format_count(made.num_dropped)} dropped"
    if elsewhere > 0:
        text += f", {format_count(elsewhere)} in other virtual epochs"
    if coverage.num_padded:
        text += f", {plural(coverage.num_padded, 'repeat')} masked as padding"
    write_line(f"coverage: proved, {text} ({ran})")
