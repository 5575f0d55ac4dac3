"""`shardwise plan`: who reads what, and the proof that each sample is read once.

The numbers of the table are counted while the plan runs; those above it are the plan's own.
"""

from __future__ import annotations

from typing import Any, Literal

import click
import numpy as np
from numpy.typing import NDArray

from shardwise.base.progress_bar import progress
from shardwise.cli import options, output
from shardwise.cli.data import open_data
from shardwise.cli.output import format_count, plural
from shardwise.extensions.tools.coverage import Coverage, count_reads
from shardwise.plan import Plan, Sampler
from shardwise.plan.protocol import seed_of, sources_of

# Cells of ranks x shards: 32 MB of int64. Above, groups of neighbouring shards are counted.
MAX_CELLS = 4_000_000


@click.command()
@click.argument("urls", nargs=-1, metavar="[URLS]...", shell_complete=options.complete_files)
@options.number_option("--num-samples", text="Plan without data: the samples.")
@options.number_option(
    "--shards", "num_shards", text="With --num-samples: shards of equal size.  [default: 1]"
)
@options.number_option("--world-size", default=1, text="Ranks.")
@options.number_option("--batch-size", default=64, text="Samples a rank and step.")
@options.shuffle_option
@click.option(
    "--remainder",
    type=click.Choice(["drop", "pad", "uneven"]),
    help="What becomes of samples that fill no global batch.  [default: uneven without a shuffle, "
    "else drop]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shuffle.")
@options.number_option("--epoch", least=0, default=0, text="Which order is shown.")
@options.number_option("--epoch-size", text="Samples a virtual epoch.")
@options.number_option(
    "--max-proof",
    least=0,
    default=200_000_000,
    text="Prove nothing above this number of samples: a byte of memory and 0.3 us each.",
)
@options.shard_options
@options.common_options
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
) -> None:
    """Show which rank reads which shards, and prove that each sample is read once.

    Give URLS, or --num-samples for a plan without data. A dataset that a program makes is
    `module:name` or `file.py:name`; of a mixture, each dataset's share is shown. The proof runs the
    plan over all ranks and steps and counts every sample. Exit code 1 if the counts are not what
    --remainder says, 2 if there is no batch for each rank: the loader refuses that too.
    """
    if bool(urls) == (num_samples is not None):
        raise click.UsageError("give either URLS or --num-samples N")
    own: Sampler | None = None
    if num_samples is not None:
        count = num_shards or 1
        sizes = np.full(count, num_samples // count, dtype=np.int64)
        sizes[: num_samples % count] += 1
    else:
        if num_shards is not None:
            raise click.UsageError("--shards goes with --num-samples; URLS have their own")
        data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
        sizes, own = data.shard_sizes, data.sampler
    num_ids = int(sizes.sum())
    if remainder is None:
        remainder = "uneven" if shuffle == "none" and own is None else "drop"
    with options.usage_errors():
        planned = Plan(
            num_ids,
            batch_size=batch_size,
            world_size=world_size,
            seed=seed,
            shuffle=False if shuffle == "none" else shuffle,
            remainder=remainder,
            shard_sizes=sizes if own is None else None,
            epoch_size=epoch_size,
            sampler=own,
        ).require_steps()
    coverage, faults = None, []
    group_ends = _group_ends(sizes, world_size)
    if num_ids <= max_proof:
        with progress("proving", planned.num_steps * world_size, unit="batches") as report:
            coverage = count_reads(planned, epoch=epoch, group_ends=group_ends, report=report)
        faults = coverage.faults(planned)
    document: dict[str, Any] = {
        "num_samples": num_ids,
        "num_shards": len(sizes),
        "epoch_samples": planned.num_samples,
        "world_size": world_size,
        "batch_size": batch_size,
        "global_batch_size": planned.global_batch_size,
        "shuffle": shuffle if own is None else "its own",
        "seed": seed if own is None else seed_of(own),
        "epoch": epoch,
        "epoch_size": epoch_size,
        "remainder": remainder,
        "num_steps": planned.num_steps,
        "num_dropped": planned.num_dropped,
        "num_padded": planned.num_padded,
        "order": planned.sampler.spec(),
    }
    sources = _sources(planned, epoch)
    if sources is not None:
        document["sources"] = sources
    if output.wants_json():
        document["coverage"] = None if coverage is None else _describe(coverage, faults)
        document["ranks"] = None if coverage is None else _describe_ranks(coverage, len(sizes))
    output.finish(document, _show, coverage, group_ends, faults, max_proof, is_well=not faults)


def _sources(plan: Plan, epoch: int) -> dict[str, dict[str, float]] | None:
    """What an epoch of a mixture takes of each dataset: samples, and where its own epochs are."""
    num_samples = plan.num_samples - plan.num_dropped
    before = sources_of(plan.sampler, epoch, 0)
    after = sources_of(plan.sampler, epoch, num_samples)
    if before is None or after is None:
        return None
    return {
        name: {
            "samples": facts["samples"] - before[name]["samples"],
            "share": (facts["samples"] - before[name]["samples"]) / num_samples,
            "epochs_before": before[name]["epochs"],
            "epochs_after": facts["epochs"],
        }
        for name, facts in after.items()
    }


def _group_ends(sizes: NDArray[np.int64], world_size: int) -> NDArray[np.int64]:
    """The id after each group of shards, int64: single ones, unless they exceed `MAX_CELLS`."""
    ends = np.cumsum(sizes)
    num_groups = max(1, min(len(sizes), MAX_CELLS // world_size))
    last = np.arange(1, num_groups + 1) * len(sizes) // num_groups - 1
    return ends[last]


def _describe(coverage: Coverage, faults: list[str]) -> dict[str, Any]:
    counts = ("read", "distinct", "repeats", "never", "padded", "short_batches")
    return {
        "proved": not faults,
        "faults": faults,
        **{f"num_{name}": getattr(coverage, f"num_{name}") for name in counts},
    }


def _describe_ranks(coverage: Coverage, num_shards: int) -> list[dict[str, Any]]:
    """The ranks as JSON; `shards` holds samples by shard number, unless shards were grouped."""
    is_single = coverage.reads.shape[1] == num_shards
    return [
        {
            "rank": rank,
            "num_samples": int(reads.sum()),
            "num_padded": int(coverage.padded[rank]),
            "shards": {str(shard): int(reads[shard]) for shard in np.flatnonzero(reads)}
            if is_single
            else None,
        }
        for rank, reads in enumerate(coverage.reads)
    ]


# Ranks in the table; the JSON document has all.
MAX_ROWS = 32


def _show(
    document: dict[str, Any],
    coverage: Coverage | None,
    group_ends: NDArray[np.int64],
    faults: list[str],
    max_proof: int,
) -> None:
    d = document
    output.write_line(f"{plural(d['num_samples'], 'sample')} in {plural(d['num_shards'], 'shard')}")
    if d["epoch_size"] is not None or "sources" in d:
        output.write_line(f"virtual epochs of {plural(d['epoch_samples'], 'sample')}")
    output.write_line(f"shuffle {d['shuffle']}, seed {d['seed']}, epoch {d['epoch']}")
    output.write_line(
        f"{plural(d['world_size'], 'rank')} x batches of {format_count(d['batch_size'])}"
        f" = global batches of {format_count(d['global_batch_size'])}"
    )
    output.write_line(
        f"{plural(d['num_steps'], 'step')} on every rank, remainder {d['remainder']}: "
        f"{format_count(d['num_dropped'])} dropped, {format_count(d['num_padded'])} padded"
    )
    if "sources" in d:
        _show_sources(d["sources"])
    if coverage is None:
        output.write_line(
            f"coverage: not proved, there are more than {format_count(max_proof)} samples, and "
            "to look at some of them proves nothing. Raise --max-proof to count them all."
        )
        return
    _show_ranks(coverage, group_ends, d["num_shards"])
    _show_proof(d, coverage, faults)


def _show_sources(sources: dict[str, dict[str, float]]) -> None:
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
    output.write_line("a row a dataset, with the epochs of its own before and after this one")
    output.write_line()
    output.write_table(["source", ">samples", ">share", ">its epochs"], rows)
    output.write_line()


def _show_ranks(coverage: Coverage, group_ends: NDArray[np.int64], num_shards: int) -> None:
    num_ranks, num_groups = coverage.reads.shape
    width = min(num_groups, output.bar_width(beside=40))
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
            output.bar(shares.tolist()),
        ]
        for rank, shares in enumerate(reads / np.maximum(sizes, 1))
    ]
    small, full = output.bar_legend()
    output.write_line(f"a row a rank, with its share of each shard: {small} a little, {full} all")
    output.write_line()
    title = "shard 0" if num_shards == 1 else f"shards 0 to {num_shards - 1}"
    output.write_table([">rank", ">samples", ">padding", ">shards", title], rows)
    if num_ranks > MAX_ROWS:
        output.write_line(f"... and {plural(num_ranks - MAX_ROWS, 'more rank')} (--json has all)")
    output.write_line()


def _show_proof(document: dict[str, Any], coverage: Coverage, faults: list[str]) -> None:
    d = document
    ran = f"counted over {plural(d['world_size'], 'rank')} x {plural(d['num_steps'], 'step')}"
    if faults:
        output.write_line(f"coverage: BROKEN, {'; '.join(faults)} ({ran})", is_well=False)
        return
    total, distinct = (
        format_count(d["num_samples"]),
        format_count(coverage.num_distinct),
    )
    if coverage.num_repeats:
        kind = "repeat" if "sources" in d else "read of the next permutation"
        kinds = "repeats" if "sources" in d else "reads of the next permutation"
        more = plural(coverage.num_repeats, kind, kinds)
        text = f"{distinct} of {total} samples, and {more}"
    else:
        samples = f"{distinct} of {total}" if coverage.num_never else f"each of {total}"
        text = f"{samples} samples exactly once"
    if d["num_dropped"]:
        text += f", {format_count(d['num_dropped'])} dropped"
    if coverage.num_never > d["num_dropped"]:
        text += (
            f", {format_count(coverage.num_never - d['num_dropped'])} left for other virtual epochs"
        )
    if coverage.num_padded:
        text += f", {plural(coverage.num_padded, 'repeat')} masked as padding"
    output.write_line(f"coverage: proved, {text} ({ran})", is_well=True)
