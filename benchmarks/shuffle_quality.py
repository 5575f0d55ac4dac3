"""How well the orders mix, against a true permutation of numpy.

Samples are sorted by class, the worst case, in many small shards or a few large ones. Columns:

- spread: how far apart samples land that are stored next to each other in a shard, as a share of
  the epoch; a true permutation has 1/3.
- same shard: how often a sample's successor is of its own shard.
- entropy: of the shards in a global batch of 256, in bits.
- mix: chi-square of the classes in a global batch over its degrees of freedom; a true permutation
  has 1, less is more even than chance. "tail" is the last 5 % of the epoch, "x32" is 32 batches in
  a row taken as one, "rank of 8" and "rank of 64" are batches of 64 of one rank of so many.
- at a time: shards in 4,096 samples in a row. readers: ranks of 8 that read a shard in an epoch.
- held: samples to hold for each shard to be read once from its beginning to its end.

    python benchmarks/shuffle_quality.py [--plot docs/images/shuffle-orders.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardwise.plan import FullSampler, Partition, Sampler, SequentialSampler, WindowSampler

NUM_CLASSES = 20
BATCH_SIZE = 256
RANK_BATCH_SIZE = 64
EPOCHS = (0, 1)
# Shards, samples a shard.
LAYOUTS = ((4_000, 1_000), (16, 62_500))
# Lanes, window: as many samples held, then other windows with the same lanes.
WINDOWS = (
    (16, 8192), (64, 2048), (256, 512), (512, 256), (1024, 128), (2048, 64), (4096, 32),
    (1024, 1), (1024, 16), (1024, 512),
)  # fmt: skip

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """One way to order the samples of shards of given sizes."""

    name: str
    ids: Callable[[int, Ids], Ids]  # (epoch, shard_sizes) -> all ids of the epoch
    held: int | None = None
    lanes: int = 1


def of(make: Callable[[Ids], Sampler]) -> Callable[[int, Ids], Ids]:
    return lambda epoch, sizes: make(sizes).indices(epoch, np.arange(sizes.sum()))


def windowed(lanes: int, window: int) -> Order:
    return Order(
        f"window, lanes={lanes}, window={window}",
        of(lambda sizes: WindowSampler(sizes, lanes=lanes, window=window)),
        lanes * window,
        lanes,
    )


def orders() -> Iterator[Order]:
    yield Order("numpy", lambda epoch, sizes: np.random.default_rng(epoch).permutation(sizes.sum()))
    yield Order("full", of(lambda sizes: FullSampler(sizes.sum())))
    yield from (windowed(lanes, window) for lanes, window in WINDOWS)
    yield Order("sequential", of(lambda sizes: SequentialSampler(sizes.sum())), BATCH_SIZE)


def entropy(batches: Ids, num_kinds: int) -> float:
    """Mean entropy in bits of the kinds in each row."""
    counts = counts_of(batches, num_kinds)
    shares = counts / batches.shape[1]
    logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    return float(-(shares * logs).sum(axis=1).mean())


def chi_square(batches: Ids) -> float:
    """Mean chi-square of the classes in each row over its degrees of freedom."""
    counts = counts_of(batches, NUM_CLASSES)
    expected = batches.shape[1] / NUM_CLASSES
    return float((((counts - expected) ** 2) / expected).sum(axis=1).mean() / (NUM_CLASSES - 1))


def counts_of(batches: Ids, num_kinds: int) -> Ids:
    rows = np.arange(len(batches))[:, None] * num_kinds
    counts = np.bincount((rows + batches).ravel(), minlength=len(batches) * num_kinds)
    return counts.reshape(len(batches), num_kinds)


def of_ranks(classes: Ids, world_size: int, lanes: int) -> Ids:
    """The batches of all ranks: int64 `[batches, 64]`."""
    rows = [classes[positions] for positions in positions_of_ranks(len(classes), world_size, lanes)]
    return np.concatenate(rows).reshape(-1, RANK_BATCH_SIZE)


def positions_of_ranks(num_samples: int, world_size: int, lanes: int) -> Iterator[Ids]:
    """The positions of each rank's full batches in an epoch."""
    partition = Partition(num_samples, RANK_BATCH_SIZE, world_size, lanes=lanes)
    for rank in range(world_size):
        yield partition.block(range(partition.num_steps), rank)[0]


def measure(ids: Ids, num_shards: int, lanes: int) -> NDArray[np.float64]:
    count = len(ids)
    place = np.empty(count, dtype=np.int64)
    place[ids] = np.arange(count)
    shard = ids * num_shards // count
    stored = np.arange(count) * num_shards // count
    neighbours = stored[1:] == stored[:-1]
    spread = np.abs(np.diff(place))[neighbours].mean() / count

    whole = count // BATCH_SIZE * BATCH_SIZE
    shards = shard[:whole].reshape(-1, BATCH_SIZE)
    by_class = ids * NUM_CLASSES // count
    classes = by_class[:whole].reshape(-1, BATCH_SIZE)
    tail = len(classes) * 95 // 100
    long = len(classes) // 32
    stretch = shard[: count // 4096 * 4096].reshape(-1, 4096)
    by_rank = [np.unique(shard[positions]) for positions in positions_of_ranks(count, 8, lanes)]
    readers = sum(map(len, by_rank)) / num_shards
    return np.array(
        [
            spread,
            (shard[1:] == shard[:-1]).mean(),
            entropy(shards, num_shards),
            chi_square(classes[:tail]),
            chi_square(classes[tail:]),
            chi_square(classes[: long * 32].reshape(long, -1)),
            chi_square(of_ranks(by_class, 8, lanes)),
            chi_square(of_ranks(by_class, 64, lanes)),
            np.mean([np.unique(row).size for row in stretch]),
            readers,
        ]
    )


def table(num_shards: int, shard_size: int) -> None:
    sizes = np.full(num_shards, shard_size)
    print(f"\n{num_shards:,} shards of {shard_size:,}, sorted by class\n")
    print(
        "| order | spread | same shard | entropy | mix | tail | x32 | rank of 8 | rank of 64 "
        "| at a time | readers | held |"
    )
    print("|---|" + "---:|" * 11)
    for order in orders():
        of_epochs = [measure(order.ids(e, sizes), num_shards, order.lanes) for e in EPOCHS]
        values = np.mean(of_epochs, axis=0)
        spread, same, bits, mix, tail, long, few, many, at_a_time, readers = values
        held = "all" if order.held is None else f"{order.held:,}"
        print(
            f"| {order.name} | {spread:.3f} | {same:.3f} | {bits:.2f} | {mix:.2f} | {tail:.2f} "
            f"| {long:.2f} | {few:.2f} | {many:.2f} | {at_a_time:.0f} | {readers:.1f} | {held} |"
        )


def plot(path: Path) -> None:
    """Where the samples of an epoch come from: stored place over position in the epoch."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    num_samples, num_shards = 20_000, 40
    sizes = np.full(num_shards, num_samples // num_shards)
    positions = np.arange(num_samples)
    rows = {
        "shuffle=False": SequentialSampler(num_samples),
        "window, 4 lanes": WindowSampler(sizes, lanes=4, window=256),
        "window, 16 lanes": WindowSampler(sizes, lanes=16, window=64),
        "full": FullSampler(num_samples),
    }
    figure, axes = pyplot.subplots(1, len(rows), figsize=(11, 3), sharey=True)
    for axis, (name, sampler) in zip(axes, rows.items(), strict=True):
        ids = sampler.indices(0, positions)
        # Drawn, not every so many: a lane is every so many.
        shown = np.random.default_rng(0).choice(positions, 5_000, replace=False)
        axis.scatter(shown, ids[shown], s=1.0, color="#20639b", linewidths=0)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("position in the epoch", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("sample id", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the plot there and end")
    arguments = parser.parse_args()
    if arguments.plot:
        plot(arguments.plot)
        return
    for num_shards, shard_size in LAYOUTS:
        table(num_shards, shard_size)


if __name__ == "__main__":
    main()
