"""Batches by length: waste, balance, cost and resume, beside lhotse's DynamicBucketingSampler.

Durations are log-normal, as of speech (median 8 s, clipped to 0.5..35 s). Both make batches of 200
padded seconds a rank for 8 ranks in one run: lhotse from 30 buckets and a buffer of 20,000, this
library from windows of 16,384. Times are of CPU; "us" is that of all ranks for a sample. lhotse and
its torch are in an environment of their own:

    pip install lhotse urllib3 && PYTHONPATH=src python benchmarks/buckets.py
    PYTHONPATH=src python benchmarks/buckets.py --no-peer    # without lhotse
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

import shardwise as sw

BUDGET = 200.0
NUM_RANKS = 8
BATCH_SIZE = 32
Batches = list[list[NDArray[np.int64]]]  # step by step, a batch a rank


def durations(count: int) -> NDArray[np.float64]:
    drawn = np.random.default_rng(0).lognormal(np.log(8), 0.6, count)
    return np.clip(drawn, 0.5, 35)


def report(name: str, lengths: NDArray[np.float64], steps: Batches, cpu_s: float) -> None:
    """One row: how full batches are, how alike the ranks of a step, and the cost of a sample."""
    costs = np.array([[len(ids) * lengths[ids].max() for ids in step] for step in steps])
    filled = sum(lengths[ids].sum() for step in steps for ids in step)
    count = sum(len(ids) for step in steps for ids in step)
    ratio = costs.max(1) / costs.min(1)
    print(
        f"| {name} | {len(steps)} | {1 - filled / costs.sum():.4f} | {costs.max():.1f} | "
        f"{costs.mean():.1f} | {np.mean(ratio <= 1.25):.3f} | {ratio.mean():.3f} | "
        f"{cpu_s / count * 1e6:.1f} |",
        flush=True,
    )


def planned(plan: sw.Plan, epoch: int = 0) -> Batches:
    plan = plan.resumed(plan.start, epoch=epoch)
    steps = range(plan.num_steps)
    ranks = [plan.batches(epoch, steps, rank) for rank in range(plan.world_size)]
    return [[ids for ids, _ in step] for step in zip(*ranks, strict=True)]


def shardwise_plan(lengths: NDArray[np.float64], **options: object) -> sw.Plan:
    world_size = int(str(options.pop("world_size", NUM_RANKS)))
    batch_size = 64 if "budget" in options else BATCH_SIZE
    by = sw.buckets(lengths, **options)  # type: ignore[arg-type]
    return sw.Plan(
        len(lengths), batch_size=batch_size, world_size=world_size, shuffle="full", batch_by=by
    )


def random_plan(lengths: NDArray[np.float64]) -> sw.Plan:
    return sw.Plan(len(lengths), batch_size=BATCH_SIZE, world_size=NUM_RANKS, shuffle="full")


def changed(few: Iterable[NDArray[np.int64]], many: Iterable[NDArray[np.int64]]) -> str:
    """How many batches of one world size are not among those of another."""
    known = {frozenset(ids.tolist()) for ids in few}
    batches = [frozenset(ids.tolist()) for ids in many]
    return f"{sum(batch not in known for batch in batches)} of {len(batches)}"


def repeated_neighbours(plan: sw.Plan, lengths: NDArray[np.float64]) -> tuple[float, float]:
    """Pairs of a rank's batch that share one again next epoch: as a share, and over chance."""
    batch_of = np.full(len(lengths), -1)
    sizes = []
    for number, ids in enumerate(itertools.chain(*planned(plan, 1))):
        batch_of[ids] = number
        sizes.append(len(ids))
    pairs = again = 0
    for ids in itertools.chain(*planned(plan, 0)):
        here = np.bincount(batch_of[ids][batch_of[ids] >= 0])
        again += int((here * (here - 1) // 2).sum())
        pairs += len(ids) * (len(ids) - 1) // 2
    size = np.array(sizes, dtype=np.float64)
    chance = (size * (size - 1)).sum() / len(lengths) ** 2
    return again / pairs, again / pairs / chance


def own_resume(lengths: NDArray[np.float64]) -> tuple[float, int]:
    """CPU seconds from a state at 90 % to the next batch, in a fresh loader; and its size."""
    data = sw.wrap([0] * len(lengths))
    by = sw.buckets(lengths, budget=BUDGET)

    def loader() -> sw.DataLoader:
        return sw.DataLoader(
            data, shuffle="full", batch_by=by, rank=0, world_size=NUM_RANKS, num_threads=0,
            output="numpy",
        )  # fmt: skip

    first = loader()
    for _ in itertools.islice(first, len(first) * 9 // 10):
        pass
    state = first.state_dict()
    began = time.process_time()
    second = loader()
    second.load_state_dict(state)
    next(iter(second))
    return time.process_time() - began, len(str(state))


def against_lhotse(lengths: NDArray[np.float64]) -> None:
    from lhotse import CutSet, MonoCut, Recording
    from lhotse.dataset import DynamicBucketingSampler

    def recording(seconds: float) -> Recording:
        return Recording("r", [], 16000, int(seconds * 16000), seconds)

    cuts = CutSet.from_cuts(
        MonoCut(str(i), 0.0, float(s), 0, recording=recording(float(s)))
        for i, s in enumerate(lengths)
    ).to_eager()

    def sampler(rank: int, world_size: int) -> DynamicBucketingSampler:
        return DynamicBucketingSampler(
            cuts, max_duration=BUDGET, num_buckets=30, buffer_size=20_000, shuffle=True, seed=0,
            world_size=world_size, rank=rank,
        )  # fmt: skip

    def batches(rank: int, world_size: int) -> list[NDArray[np.int64]]:
        return [
            np.array([int(cut.id.partition("_")[0]) for cut in batch])
            for batch in sampler(rank, world_size)
        ]

    began = time.process_time()
    # Each rank walks through the whole set.
    ranks = [batches(rank, NUM_RANKS) for rank in range(NUM_RANKS)]
    cpu_s = time.process_time() - began
    report("lhotse", lengths, [list(step) for step in zip(*ranks, strict=False)], cpu_s)
    half = [batch for rank in range(2) for batch in batches(rank, 2)]
    print("lhotse: batches of 8 ranks that 2 ranks do not have:",
          changed(half, itertools.chain(*ranks)))  # fmt: skip

    begun = sampler(0, NUM_RANKS)
    for _ in zip(range(len(ranks[0]) * 9 // 10), begun, strict=False):
        pass
    state = begun.state_dict()
    began = time.process_time()
    again = sampler(0, NUM_RANKS)
    again.load_state_dict(state)
    next(iter(again))
    print(f"lhotse: resume at 90 %: {time.process_time() - began:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    lengths = durations(arguments.samples)

    print(
        "| way | steps | waste | largest, s | mean, s | steps <= 1.25x | slowest / fastest | us |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    plans = {
        "random, 32 a rank": random_plan(lengths),
        "buckets, 32 a rank": shardwise_plan(lengths),
        "buckets, budget": shardwise_plan(lengths, budget=BUDGET),
    }
    for name, plan in plans.items():
        began = time.process_time()
        steps = planned(plan)
        report(name, lengths, steps, time.process_time() - began)
    if not arguments.no_peer:
        against_lhotse(lengths)
    worlds = [
        itertools.chain(*planned(shardwise_plan(lengths, budget=BUDGET, world_size=world_size)))
        for world_size in (2, NUM_RANKS)
    ]
    print("shardwise: batches of 8 ranks that 2 ranks do not have:", changed(*worlds))
    seconds, size = own_resume(lengths)
    print(f"shardwise: resume at 90 %: {seconds:.2f} s, state of {size} B")

    print("\n| window | waste, 32 a rank | again | x chance | waste, budget | again | x chance |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for window in (1024, 4096, 16_384, 65_536):
        row = [f"{window:,}"]
        for options in ({}, {"budget": BUDGET}):
            plan = shardwise_plan(lengths, window=window, **options)
            steps = planned(plan)
            cost = sum(len(ids) * lengths[ids].max() for step in steps for ids in step)
            filled = sum(lengths[ids].sum() for step in steps for ids in step)
            share, over = repeated_neighbours(plan, lengths)
            row += [f"{1 - filled / cost:.3f}", f"{share:.4f}", f"{over:.0f}"]
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
