"""`shardwise plan`: who reads what, and the proof that each sample is read once.

The numbers of the table are counted while the plan runs; those above it are the plan's own.
Imports numpy, the plan and, for data, the library.
"""

from __future__ import annotations

from typing import Any, Literal

import click
import numpy as np
from numpy.typing import NDArray

from shardwise.cli.coverage import Coverage, prove
from shardwise.cli.data import open_data
from shardwise.cli.options import common_options, shard_options, usage_errors
from shardwise.cli.output import plural, progress, write_document
from shardwise.cli.plan_view import show_numbers, show_proof, show_ranks
from shardwise.plan import Plan

__all__ = ["plan"]

# Tables larger than this (ranks x shards) count groups of neighbouring shards instead.
MAX_CELLS = 4_000_000


@click.command()
@click.argument("urls", nargs=-1, metavar="[URLS]...")
@click.option("--num-samples", type=click.IntRange(min=1), help="Plan without data: the samples.")
@click.option(
    "--shards",
    "num_shards",
    type=click.IntRange(min=1),
    help="With --num-samples: shards of equal size.  [default: 1]",
)
@click.option("--world-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Samples a rank and step.",
)
@click.option(
    "--shuffle", type=click.Choice(["none", "full", "window"]), default="none", show_default=True
)
@click.option(
    "--remainder",
    type=click.Choice(["drop", "pad", "uneven"]),
    help="What becomes of samples that fill no global batch.  [default: uneven without a shuffle, "
    "else drop]",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--epoch-size", type=click.IntRange(min=1), help="Samples a virtual epoch.")
@click.option(
    "--max-proof",
    type=click.IntRange(min=0),
    default=200_000_000,
    show_default=True,
    help="Prove nothing if there are more samples: a byte of memory and 0.3 us each.",
)
@shard_options
@common_options
def plan(
    urls: tuple[str, ...],
    num_samples: int | None,
    num_shards: int | None,
    world_size: int,
    batch_size: int,
    shuffle: Literal["none", "full", "window"],
    remainder: Literal["drop", "pad", "uneven"] | None,
    seed: int,
    epoch: int,
    epoch_size: int | None,
    max_proof: int,
    index: str | None,
    accept_unfinished: bool,
    as_json: bool,
) -> None:
    """Show which rank reads which shards, and prove that each sample is read once.

    Give URLS, or --num-samples for a plan without data. The proof runs the plan over all ranks
    and steps and counts every sample. Exit code 1 if the counts are not what --remainder says, 2
    if there is no batch for each rank: the loader refuses that too.
    """
    if bool(urls) == (num_samples is not None):
        raise click.UsageError("give either URLS or --num-samples N")
    sizes = (
        _equal_sizes(num_samples, num_shards or 1)
        if num_samples is not None
        else _sizes_of(urls, num_shards, index, accept_unfinished=accept_unfinished)
    )
    num_ids = int(sizes.sum())
    if remainder is None:
        remainder = "uneven" if shuffle == "none" else "drop"
    with usage_errors():
        made = Plan(
            num_ids,
            batch_size=batch_size,
            world_size=world_size,
            seed=seed,
            shuffle=False if shuffle == "none" else shuffle,
            remainder=remainder,
            shard_sizes=sizes,
            epoch_size=epoch_size,
        ).require_steps()
    coverage = None
    if num_ids <= max_proof:
        with progress("proving", made.num_steps * world_size, unit="batches") as report:
            coverage = prove(made, epoch=epoch, group_ends=_group(sizes, world_size), report=report)
    document: dict[str, Any] = {
        "num_samples": num_ids,
        "num_shards": len(sizes),
        "epoch_samples": made.num_samples,
        "world_size": world_size,
        "batch_size": batch_size,
        "global_batch_size": made.global_batch_size,
        "shuffle": shuffle,
        "seed": seed,
        "epoch": epoch,
        "epoch_size": epoch_size,
        "remainder": remainder,
        "num_steps": made.num_steps,
        "num_dropped": made.num_dropped,
        "num_padded": made.num_padded,
        "order": made.sampler.spec(),
    }
    faults = None if coverage is None else _faults(made, coverage)
    if as_json:
        document["coverage"] = None if coverage is None else _describe(coverage, faults or [])
        document["ranks"] = None if coverage is None else _describe_ranks(coverage, len(sizes))
        write_document(document)
    else:
        show_numbers(document)
        if coverage is not None:
            show_ranks(coverage, len(sizes))
        show_proof(made, coverage, faults, max_proof)
    if faults:
        click.get_current_context().exit(1)


def _equal_sizes(num_samples: int, num_shards: int) -> NDArray[np.int64]:
    """Samples a shard, int64 `[shards]`, as equal as they can be."""
    sizes = np.full(num_shards, num_samples // num_shards, dtype=np.int64)
    sizes[: num_samples % num_shards] += 1
    return sizes


def _sizes_of(
    urls: tuple[str, ...], num_shards: int | None, index: str | None, *, accept_unfinished: bool
) -> NDArray[np.int64]:
    """Samples a shard, int64 `[shards]`, of data."""
    if num_shards is not None:
        raise click.UsageError("--shards goes with --num-samples; URLS have their own")
    with usage_errors():
        data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
    return data.source.manifest.sizes


def _group(sizes: NDArray[np.int64], world_size: int) -> NDArray[np.int64]:
    """The ends of the groups of shards that are counted: single shards, if there aren't too many.

    int64 `[groups]`: the sample id after the last of each group.
    """
    ends = np.cumsum(sizes)
    num_groups = max(1, min(len(sizes), MAX_CELLS // world_size))
    last = np.arange(1, num_groups + 1) * len(sizes) // num_groups - 1
    return ends[last]


def _faults(made: Plan, coverage: Coverage) -> list[str]:
    """What the counts show against the plan's promises, in words; empty if they agree."""
    expected = made.num_samples - made.num_dropped
    # A virtual epoch may begin in one permutation of the data and end in the next.
    may_repeat = made.num_samples != coverage.num_ids
    foreign, repeats = coverage.num_foreign, coverage.num_repeats
    padded, short = coverage.num_padded, coverage.num_short_batches
    checks = [
        (foreign == 0, f"{plural(foreign, 'read')} of samples that don't exist"),
        (coverage.num_read == expected, f"{plural(coverage.num_read, 'read')}, not {expected}"),
        (may_repeat or repeats == 0, plural(repeats, "repeat")),
        (padded == made.num_padded, f"{plural(padded, 'row')} of padding, not {made.num_padded}"),
        (
            made.remainder == "uneven" or short == 0,
            f"{plural(short, 'batch', 'batches')} of less than {made.batch_size} samples",
        ),
    ]
    return [text for holds, text in checks if not holds]


def _describe(coverage: Coverage, faults: list[str]) -> dict[str, Any]:
    """The proof as JSON."""
    return {
        "proved": not faults,
        "faults": faults,
        "num_read": coverage.num_read,
        "num_distinct": coverage.num_distinct,
        "num_repeats": coverage.num_repeats,
        "num_never": coverage.num_never,
        "num_padded": coverage.num_padded,
        "num_short_batches": coverage.num_short_batches,
    }


def _describe_ranks(coverage: Coverage, num_shards: int) -> list[dict[str, Any]]:
    """The ranks as JSON; `shards` holds samples by shard number, unless shards were grouped."""
    single = coverage.reads.shape[1] == num_shards
    return [
        {
            "rank": rank,
            "num_samples": int(coverage.rank_samples[rank]),
            "num_padded": int(coverage.rank_padded[rank]),
            "shards": {str(shard): int(row[shard]) for shard in np.flatnonzero(row)}
            if single
            else None,
        }
        for rank, row in enumerate(coverage.reads)
    ]
