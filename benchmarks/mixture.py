"""Mixtures: how far shares stray, what an index costs, and what a resume at 90 % costs.

Each rule draws the same number of positions from the same weights, in one run. Deviation is the
largest of |samples of a dataset - weight x n| over n that are multiples of 256. CPU time, since the
machine may be busy. A peer that is not installed is left out.

- shardwise: `sw.mix`'s order, with its permuted blocks and each dataset's own permutation.
- Megatron: the rule of its blended dataset, as published: position n goes to the dataset that
  lacks most, the largest weight x max(n, 1) - samples so far. Written here with numpy, where
  Megatron has a C++ loop of O(datasets) a position; both need all positions before the one that is
  asked for, or a stored array of 10 bytes a position.
- LitData: the iterator of its CombinedStreamingDataset over in-memory streams.
- Hugging Face: `interleave_datasets` of iterable datasets.
- Grain: `MapDataset.mix` of ranges.

    python benchmarks/mixture.py --positions 100000
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.mixtures.options import MixtureOptions, MixturePart, parse_schedule
from shardwise.extensions.mixtures.sampler import MixtureSampler
from shardwise.plan import Order, Plan

# A dataset's samples are told apart by number: dataset k has the values k * SIZE and on.
SIZE = 10**9
BLOCK = 4_096


class Row(NamedTuple):
    """What a rule came to."""

    rule: str
    deviation: float
    index_us: float
    resume_ms: float
    state_bytes: int


def cases() -> dict[str, NDArray[np.float64]]:
    """Weights by name; their sum is 1."""
    spread = np.random.default_rng(0).dirichlet(np.ones(64))
    zipf = 1 / np.arange(1, 301)
    return {
        "0.7, 0.2, 0.1": np.array([0.7, 0.2, 0.1]),
        "Dirichlet, 8": np.random.default_rng(1).dirichlet(np.ones(8)),
        "Dirichlet, 64": spread,
        "zipf, 300": zipf / zipf.sum(),
    }


def deviation(which: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """The largest deviation of any dataset over whole blocks of 256."""
    whole = which[: len(which) // 256 * 256].reshape(-1, 256)
    counts = np.stack([np.bincount(row, minlength=len(weights)) for row in whole]).cumsum(0)
    due = weights * 256 * np.arange(1, len(whole) + 1)[:, None]
    return float(np.abs(counts - due).max())


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and CPU seconds."""
    began = time.process_time()
    value = call()
    return value, time.process_time() - began


def shardwise_rule(weights: NDArray[np.float64], num: int) -> Row:
    parts = {str(k): MixturePart(SIZE) for k in range(len(weights))}
    changes = parse_schedule([(0, dict(zip(parts, weights.tolist(), strict=True)))], tuple(parts))
    options = MixtureOptions(changes, until=10 * num)

    def draw() -> NDArray[np.int64]:
        sampler = MixtureSampler(parts, options)
        firsts = range(0, num, BLOCK)
        return np.concatenate(
            [sampler.indices(0, np.arange(f, min(f + BLOCK, num))) for f in firsts]
        )

    def resume() -> None:
        MixtureSampler(parts, options).indices(0, np.arange(9 * num // 10, 9 * num // 10 + 64))

    ids, seconds = timed(draw)
    _, resume_s = timed(resume)
    state = Order("", MixtureSampler(parts, options)).state(0, 9 * num // 10).to_dict()
    size = len(json.dumps(state))
    return Row(
        "shardwise", deviation(ids // SIZE, weights), seconds / num * 1e6, resume_s * 1e3, size
    )


def rank_us(weights: NDArray[np.float64], *, world_size: int = 8, batch_size: int = 64) -> float:
    """Microseconds an index of one rank's batches, step by step, as a loader asks for them."""
    parts = {str(k): MixturePart(SIZE) for k in range(len(weights))}
    changes = parse_schedule([(0, dict(zip(parts, weights.tolist(), strict=True)))], tuple(parts))
    sampler = MixtureSampler(parts, MixtureOptions(changes, until=10**9))
    plan = Plan(SIZE * len(parts), batch_size=batch_size, world_size=world_size, sampler=sampler)
    _, seconds = timed(lambda: [plan.indices(0, step, 3) for step in range(640)])
    return seconds / 640 / batch_size * 1e6


def megatron_rule(weights: NDArray[np.float64], num: int) -> Row:
    def draw(count: int) -> NDArray[np.int64]:
        which = np.empty(count, dtype=np.int64)
        counts = np.zeros(len(weights))
        for n in range(count):
            k = int(np.argmax(weights * max(n, 1) - counts))
            which[n] = k
            counts[k] += 1
        return which

    which, seconds = timed(lambda: draw(num))
    _, resume_s = timed(lambda: draw(9 * num // 10))
    # An int16 and an int64 a position.
    return Row(
        "Megatron's rule", deviation(which, weights), seconds / num * 1e6, resume_s * 1e3, 10 * num
    )


def litdata_rule(weights: NDArray[np.float64], num: int) -> Row:
    from litdata.streaming.combined import _CombinedDatasetIterator

    def begin(yielded: list[int] | None) -> Iterator[Any]:
        streams = [itertools.repeat(k) for k in range(len(weights))]
        return _CombinedDatasetIterator(  # type: ignore[no-any-return]
            streams, 42, weights.tolist(), False, yielded, 1, "stratified"
        )

    draws, seconds = timed(lambda: list(itertools.islice(begin(None), num)))
    which = np.array(draws)
    counts = np.bincount(which[: 9 * num // 10], minlength=len(weights)).tolist()
    _, resume_s = timed(lambda: next(begin(counts)))
    size = len(json.dumps(counts))
    return Row("LitData", deviation(which, weights), seconds / num * 1e6, resume_s * 1e3, size)


def _numbers(k: int) -> Iterator[dict[str, int]]:
    for _ in itertools.repeat(None):
        yield {"k": k}


def huggingface_rule(weights: NDArray[np.float64], num: int) -> Row:
    from datasets import IterableDataset, interleave_datasets

    def made() -> Any:
        streams = [
            IterableDataset.from_generator(_numbers, gen_kwargs={"k": k})
            for k in range(len(weights))
        ]
        return interleave_datasets(streams, probabilities=weights.tolist(), seed=42)

    data = made()
    draws, seconds = timed(lambda: [x["k"] for x in itertools.islice(data, num)])
    part = made()
    for _ in itertools.islice(part, 9 * num // 10):
        pass
    state = part.state_dict()
    other = made()

    def resume() -> None:
        other.load_state_dict(state)
        next(iter(other))

    _, resume_s = timed(resume)
    size = len(json.dumps(state, default=str))
    which = np.array(draws)
    return Row("Hugging Face", deviation(which, weights), seconds / num * 1e6, resume_s * 1e3, size)


def grain_rule(weights: NDArray[np.float64], num: int) -> Row:
    import grain

    def made() -> Any:
        ranges = [grain.MapDataset.range(k * SIZE, (k + 1) * SIZE) for k in range(len(weights))]
        return grain.MapDataset.mix(ranges, weights.tolist())

    data = made()
    ids, seconds = timed(lambda: np.array([data[n] for n in range(num)]))
    _, resume_s = timed(lambda: made()[9 * num // 10])
    return Row("Grain", deviation(ids // SIZE, weights), seconds / num * 1e6, resume_s * 1e3, 8)


RULES: dict[str, tuple[str | None, Callable[[NDArray[np.float64], int], Row]]] = {
    "shardwise": (None, shardwise_rule),
    "megatron": (None, megatron_rule),
    "litdata": ("litdata", litdata_rule),
    "huggingface": ("datasets", huggingface_rule),
    "grain": ("grain", grain_rule),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--positions", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", choices=list(RULES), default=list(RULES))
    options = parser.parse_args()
    print("| weights | rule | deviation | us an index | resume at 90 %, ms | state, bytes |")
    print("|---|---|---:|---:|---:|---:|")
    for name, weights in cases().items():
        for rule in options.only:
            package, run = RULES[rule]
            if package is not None and importlib.util.find_spec(package) is None:
                continue
            row = run(weights, options.positions)
            print(
                f"| {name} | {row.rule} | {row.deviation:.1f} | {row.index_us:.2f} | "
                f"{row.resume_ms:.2f} | {row.state_bytes:,} |",
                flush=True,
            )
    for name, weights in cases().items():
        for world_size, batch_size in ((8, 64), (64, 8)):
            cost = rank_us(weights, world_size=world_size, batch_size=batch_size)
            print(f"{name}: {cost:.2f} us an index of a rank, {world_size} ranks x {batch_size}")


if __name__ == "__main__":
    main()
