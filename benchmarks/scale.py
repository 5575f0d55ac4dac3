"""10^10 samples in 10^6 shards on 1 to 2,048 ranks, simulated: who reads what, how often, at once.

Nothing is read: the plan says all of it. Nodes have 8 ranks of 100 samples a second, samples have
50 kB, batches 64. Columns:

- lanes: of the window shuffle. "strided" gives rank r the positions p with p mod W = r, as before
  the lane order; it is measured with 1,024 lanes, as is "1,024 lanes".
- batch: shards in a rank's batch of 64, mean over ranks and steps.
- nodes a shard: nodes that read a shard in an epoch, mean and most. At a time, a shard is in one
  lane, and that is of two nodes at most; four are where a shard is cut between two such lanes, of
  which one reads its end at the end of the epoch and the other its beginning at the beginning.
- shards a node: shards that a node opens in 10 minutes.
- requests: a second, of the whole cluster, a window of a lane each.
- open MB: windows that a rank holds open to read each sample's run once.
- shared: of the shards that a node opens, how many another node opens too.
- kept: of the shards that a node opened at W = 1,024, how many it goes on with at W (the same node
  number), which is what its cache is worth after a resume.

    python benchmarks/scale.py [--world-sizes 1024 1000] [--all] [--costs] [--caches]

--all checks the nodes a shard for every W from 1 to 2,048; --costs prints the CPU times alone.
--caches simulates the disks of the nodes over three epochs, evicted by the last use and by the next
one: bytes from the store over bytes of the data, where each block that is not there is fetched
whole, or past a full cache by its samples alone. In the last column the nodes share their disks,
which have room for the open windows, and in brackets is what nodes read of each other.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.request import BatchRows
from shardwise.extensions.remote.cache.uses import NEVER, BlockUses, block_uses, blocks_by_share
from shardwise.extensions.share.placement import (
    holders,
    middle_samples,
    places_of,
    reading_ranks,
)
from shardwise.loader.account import Tally
from shardwise.plan import Partition, Plan, WindowSampler
from shardwise.plan.id_word import IdWord
from shardwise.plan.partition import in_lane_order

NUM_SHARDS, MEAN_SIZE, SIGMA = 1_000_000, 9_000, 0.45
RANKS_A_NODE, BATCH_SIZE, RATE, SECONDS = 8, 64, 100, 600
SAMPLE_BYTES = 50_000
WORLD_SIZES = (8, 64, 256, 512, 768, 960, 1000, 1009, 1016, 1021, 1024, 1536, 2000, 2039, 2048)
# Steps at which the lanes of a node are held against the plan.
NUM_STEPS = 8

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """The figures of one world size."""

    batch: float
    mean_nodes: float
    most_nodes: int
    shards: float
    requests: float
    open_mb: float
    shared: float
    kept: float


class Cut:
    """How an epoch's lanes cut its shards."""

    def __init__(self, sampler: WindowSampler, sizes: Ints) -> None:
        self.lanes = sampler.lanes
        self.sampler, self.sizes = sampler, sizes
        line = sampler._line(0)
        self.starts, self.lengths = line.starts.view(np.int64), line.sizes.view(np.int64)
        self.ends = line.ends
        # By place on the line: the lane of each section, and which shards each meets.
        self.by_place = np.argsort(self.starts)
        first = np.searchsorted(line.ends, np.sort(self.starts), side="right")
        stop = self.starts + self.lengths - 1
        last = np.searchsorted(line.ends, stop[self.by_place], side="right")
        self.first, self.last = first, last

    def nodes(self, lanes_of_nodes: list[Ints]) -> tuple[float, int, int]:
        """Nodes that read a shard, from the lanes of each node: mean, most, shards with over 3."""
        pairs = np.concatenate(
            [lanes * len(lanes_of_nodes) + node for node, lanes in enumerate(lanes_of_nodes)]
        )
        # A shard in the middle of a section is read by the nodes of its lane.
        by_lane = np.bincount(pairs // len(lanes_of_nodes), minlength=self.lanes)
        place = np.empty(self.lanes, dtype=np.int64)
        place[self.by_place] = np.arange(self.lanes)
        count = self.last - self.first + 1
        total = int((by_lane[self.by_place] * count).sum())
        most = int(by_lane.max())
        # A shard at a cut is read by the nodes of both of its lanes: each of them once.
        cut = np.flatnonzero(self.last[:-1] == self.first[1:])
        members: dict[int, set[int]] = {}
        for pair in pairs.tolist():
            lane, node = divmod(pair, len(lanes_of_nodes))
            members.setdefault(lane, set()).add(node)
        num_above = 0
        for at in cut.tolist():
            left = members[int(self.by_place[at])]
            right = members[int(self.by_place[at + 1])]
            total -= len(left & right)
            most = max(most, len(left | right))
            num_above += len(left | right) > 3
        met = int(self.last[-1]) + 1
        return total / met, most, num_above

    def shards(self, lanes: Ints, num_samples: int) -> Ints:
        """Shards that these lanes open while each of them gives so many samples."""
        begin = self.starts[lanes]
        end = begin + np.minimum(num_samples, self.lengths[lanes])
        first = np.searchsorted(self.ends, begin, side="right")
        last = np.searchsorted(self.ends, end - 1, side="right")
        return np.unique(
            np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
        )


def lanes_of_nodes(world_size: int, batch_size: int, lanes: int) -> list[Ints]:
    """The lanes that each node reads in an epoch: what plan/partition.py proves, against its cut.

    Lane number floor(L * r / W) holds the border of the ranks r - 1 and r, wherever batches begin.
    """
    size = world_size * batch_size
    d = np.gcd(size, lanes)
    of_class, extra = lanes // d, size % lanes // d
    classes, x = np.divmod(np.arange(lanes), of_class)
    by_number = x * extra % of_class * d + classes
    found = []
    for first in range(0, world_size, RANKS_A_NODE):
        last = min(first + RANKS_A_NODE, world_size)
        numbers = slice(lanes * first // world_size, -(-lanes * last // world_size))
        found.append(np.sort(by_number[numbers]))
    width = RANKS_A_NODE * batch_size
    for step in np.random.default_rng(0).integers(0, 10**5, NUM_STEPS).tolist():
        node = step % len(found)
        slots = range(node * width, min((node + 1) * width, size))
        begin = np.array([step * size % lanes])
        read = (in_lane_order(begin, slots, size=size, lanes=lanes) + begin) % lanes
        assert np.isin(read, found[node]).all(), (world_size, step)
    return found


def strided(world_size: int, lanes: int) -> list[Ints]:
    """The lanes of each node where rank r has the positions p with p mod W = r."""
    step = np.gcd(world_size, lanes)
    ranks = [range(r, min(r + RANKS_A_NODE, world_size)) for r in range(0, world_size, 8)]
    every = np.arange(lanes)
    return [every[np.isin(every % step, [rank % step for rank in node])] for node in ranks]


def row(cut: Cut, world_size: int, nodes: list[Ints], before: list[Ints]) -> Row:
    mean, most, _ = cut.nodes(nodes)
    advance = max(1, RATE * SECONDS * world_size // cut.lanes)
    some = range(0, len(nodes), max(1, len(nodes) // 16))
    opened = [cut.shards(nodes[node], advance) for node in some]
    lane_nodes = np.bincount(np.concatenate(nodes), minlength=cut.lanes)
    shared = np.mean([(lane_nodes[nodes[node]] > 1).mean() for node in some])
    kept = [
        np.isin(before[node], nodes[node]).mean() for node in range(min(len(nodes), len(before)))
    ]
    lanes_a_rank = np.mean([len(lanes) for lanes in nodes]) / min(RANKS_A_NODE, world_size)
    return Row(
        batch=shards_of_batches(cut, world_size),
        mean_nodes=mean,
        most_nodes=most,
        shards=float(np.mean([len(each) for each in opened])),
        requests=RATE * world_size / cut.sampler.window * float(lane_nodes.mean()),
        open_mb=lanes_a_rank * cut.sampler.window * SAMPLE_BYTES / 1e6,
        shared=float(shared),
        kept=float(np.mean(kept)),
    )


def shards_of_batches(cut: Cut, world_size: int) -> float:
    """Shards in a rank's batch of 64: of the middle of an epoch, by the sampler itself."""
    partition = Partition(cut.sampler.num_samples, BATCH_SIZE, world_size, lanes=cut.lanes)
    ends, counts, middle = np.cumsum(cut.sizes), [], partition.num_steps // 2
    for rank in range(0, world_size, max(1, world_size // 16)):
        positions, _ = partition.block(range(middle, middle + 1), rank)
        ids = cut.sampler.indices(0, positions)
        counts.append(np.unique(np.searchsorted(ends, ids, side="right")).size)
    return float(np.mean(counts))


def table(title: str, cut: Cut, world_sizes: list[int], *, is_strided: bool = False) -> None:
    print(f"\n{title}\n")
    print("| W | batch | nodes a shard | most | shards a node | x W=1024 | requests | open MB |"
          " shared | kept |")  # fmt: skip
    print("|---:|" + "---:|" * 9)

    def nodes_of(world_size: int) -> list[Ints]:
        if is_strided:
            return strided(world_size, cut.lanes)
        return lanes_of_nodes(world_size, BATCH_SIZE, cut.lanes)

    before = nodes_of(1024)
    base = row(cut, 1024, before, before).shards
    for world_size in world_sizes:
        r = row(cut, world_size, nodes_of(world_size), before)
        print(
            f"| {world_size} | {r.batch:.1f} | {r.mean_nodes:.2f} | {r.most_nodes} "
            f"| {r.shards:,.0f} | {r.shards / base:.2f} | {r.requests:,.0f} | {r.open_mb:,.0f} "
            f"| {r.shared:.0%} | {r.kept:.0%} |",
            flush=True,
        )


def check_all(cut: Cut) -> None:
    """Nodes a shard for every W up to 2,048, of global batches of 1,024 and a few more."""
    worst_mean, most = (0.0, 0), (0, 0)
    above, num_wide = 0, 0
    for world_size in range(1, 2049):
        batch_size = -(-1024 // world_size)
        mean, largest, wide = cut.nodes(lanes_of_nodes(world_size, batch_size, cut.lanes))
        worst_mean = max(worst_mean, (mean, world_size))
        most = max(most, (largest, world_size))
        above, num_wide = max(above, wide), num_wide + (largest > 3)
    print(f"\n{cut.lanes} lanes, every W from 1 to 2,048, global batches of 1,024 and more:")
    print(f"  nodes a shard: mean at most {worst_mean[0]:.3f} (W={worst_mean[1]})")
    print(
        f"  most of any shard: {most[0]} (W={most[1]}); above 3 for {num_wide} W, "
        f"and for {above} of {NUM_SHARDS:,} shards at most"
    )


def steps_cost() -> None:
    """CPU of one step's positions, one step a call."""
    print("\nPositions of one step of one rank, us of CPU (batch of 64; 63):\n")
    for world_size in (1000, 1021, 1024, 2048):
        for lanes in (1024, 16_384):
            costs = []
            for batch_size in (64, 63):
                partition = Partition(10**10, batch_size, world_size, lanes=lanes)
                best = np.inf
                for _ in range(5):
                    began = time.process_time()
                    for step in range(400):
                        partition.block(range(step, step + 1), world_size // 2)
                    best = min(best, (time.process_time() - began) / 400)
                costs.append(f"{best * 1e6:.1f}")
            print(f"  W={world_size:5d} lanes={lanes:6d}: {', '.join(costs)}")


def certificate_cost(sampler: WindowSampler) -> None:
    """CPU of counting a batch of 64 into an epoch's word: ids at random, and those of a rank."""
    draw = np.random.default_rng(0)
    partition = Partition(sampler.num_samples, BATCH_SIZE, 1024, lanes=sampler.lanes)
    ids = {
        f"N = {n:.0e}, at random": [draw.integers(0, n, BATCH_SIZE) for _ in range(2000)]
        for n in (10**6, 10**9, 10**10)
    }
    ids["N = 1e+10, a rank of 1,024"] = [
        sampler.indices(0, partition.block(range(step, step + 1), 500)[0]) for step in range(2000)
    ]
    for label, batches in ids.items():
        word = IdWord("0123456789abcdef", 0)
        tally = Tally(lambda word=word: word)
        rows = [BatchRows(each) for each in batches]
        costs = []
        for _ in range(20):
            began = time.process_time()
            for each in rows:
                tally.add(each)
            tally.take()
            costs.append((time.process_time() - began) / len(rows) * 1e6)
        print(f"  {label}: {min(costs):.2f} us a batch of 64, median {np.median(costs):.2f}")
    began = time.process_time()
    for _ in range(100):
        word.of_range(range(10**10))
    print(f"  closed form: {(time.process_time() - began) * 1e4:.0f} us")


# 2,048,000 samples in blocks of 128.
CACHED_SHARDS, CACHED_SIZE, SAMPLES_A_BLOCK = 2_000, 1_024, 128
SIMULATED_NODES, EPOCHS = 2, 3
# Below this the open windows do not fit.
LEAST_SHARED = 0.5


def reads_of_node(plan: Plan, node: int) -> BlockUses:
    """When the ranks of a node read each block, in three epochs."""
    num_blocks = np.full(CACHED_SHARDS, CACHED_SIZE // SAMPLES_A_BLOCK)
    share = blocks_by_share(np.full(CACHED_SHARDS, CACHED_SIZE), num_blocks)
    ranks = range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)
    return block_uses(plan, share, epochs=range(EPOCHS), ranks=ranks)


def simulate(uses: BlockUses, capacity: int, num_steps: int, *, by_next_use: bool) -> list[float]:
    """Blocks that a node fetches in each epoch, with room for `capacity` of them."""
    order = np.lexsort((uses.blocks, uses.steps))
    is_again = np.append(uses.blocks[1:] == uses.blocks[:-1], False)
    following = np.where(is_again, np.append(uses.steps[1:], 0), NEVER)[order].tolist()
    kept: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    fetched = [0.0] * EPOCHS
    reads = zip(uses.blocks[order].tolist(), uses.steps[order].tolist(), following, strict=True)
    for number, (block, step, after) in enumerate(reads):
        rank = -after if by_next_use else number
        if block not in kept:
            fetched[min(step // num_steps, EPOCHS - 1)] += 1
            while len(kept) >= capacity:
                first, candidate = heapq.heappop(heap)
                if kept.get(candidate) != first:
                    continue
                if by_next_use and rank <= first:
                    heapq.heappush(heap, (first, candidate))
                    break
                del kept[candidate]
            if len(kept) >= capacity:
                # Past the cache: the samples of this step alone.
                fetched[min(step // num_steps, EPOCHS - 1)] -= 1 - 1 / SAMPLES_A_BLOCK
                continue
        kept[block] = rank
        heapq.heappush(heap, (rank, block))
    return fetched


def simulate_shared(plan: Plan, capacity: int) -> tuple[list[float], list[float]]:
    """Blocks that a job fetches in each epoch, and those that a node gets from another one.

    Each node holds what the library's placement says, the soonest wanted first.
    """
    num_nodes = plan.world_size // RANKS_A_NODE
    num_blocks = np.full(CACHED_SHARDS, CACHED_SIZE // SAMPLES_A_BLOCK)
    _, _, ids = middle_samples(np.full(CACHED_SHARDS, CACHED_SIZE), num_blocks, None)
    places = [places_of(plan, epoch, ids) for epoch in range(EPOCHS + 1)]
    disks: list[dict[int, int]] = [{} for _ in range(num_nodes)]
    before = np.full(len(ids), -1)
    fetched, passed = [], []
    for epoch in range(EPOCHS):
        nodes = reading_ranks(plan, epoch, places[epoch]) // RANKS_A_NODE
        held = holders(nodes, places[epoch + 1], [capacity] * num_nodes)
        num_fetched = num_passed = 0
        for block in np.argsort(places[epoch]).tolist():
            node, last = int(held[block]), int(before[block])
            is_there = last >= 0 and disks[last].pop(block, None) is not None
            num_fetched += not is_there
            num_passed += is_there and last != node
            num_passed += node != nodes[block]
            disk = disks[node]
            disk[block] = (epoch + 1) * plan.num_samples + int(places[epoch + 1][block])
            if len(disk) > capacity:
                del disk[max(disk, key=disk.__getitem__)]
        before = held
        fetched.append(num_fetched / len(ids))
        passed.append(num_passed / len(ids))
    return fetched, passed


def caches(world_sizes: list[int]) -> None:
    """Print what the store sends by world size, disk and eviction."""
    total = CACHED_SHARDS * CACHED_SIZE // SAMPLES_A_BLOCK
    print(f"{'W':>6} {'disks/data':>10}  {'last use':20} {'next use':20}  shared (of nodes)")
    for world_size in world_sizes:
        plan = Plan(
            CACHED_SHARDS * CACHED_SIZE, batch_size=BATCH_SIZE, world_size=world_size, seed=1,
            shuffle="window", shard_sizes=[CACHED_SIZE] * CACHED_SHARDS,
        )  # fmt: skip
        num_nodes = world_size // RANKS_A_NODE
        every = [
            reads_of_node(plan, node * num_nodes // SIMULATED_NODES)
            for node in range(SIMULATED_NODES)
        ]
        for share in (0.1, 0.5, 1.0, 1.2):
            capacity = max(1, int(share * total / num_nodes))
            cells = []
            for by_next_use in (False, True):
                runs = [
                    simulate(uses, capacity, plan.num_steps, by_next_use=by_next_use)
                    for uses in every
                ]
                ratios = np.mean(runs, axis=0) * num_nodes / total
                cells.append(" ".join(f"{ratio:.2f}" for ratio in ratios))
            shared = ["-", "-"]
            if share >= LEAST_SHARED:
                parts = simulate_shared(plan, capacity)
                shared = [" ".join(f"{ratio:.2f}" for ratio in part) for part in parts]
            print(
                f"{world_size:6} {share:10.0%}  {cells[0]:20} {cells[1]:20}  "
                f"{shared[0]} ({shared[1]})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world-sizes", type=int, nargs="+", default=list(WORLD_SIZES))
    parser.add_argument("--all", action="store_true", help="every W from 1 to 2,048")
    parser.add_argument("--costs", action="store_true", help="CPU times only, no simulation")
    parser.add_argument("--caches", action="store_true", help="what the store sends to caches")
    options = parser.parse_args()
    if options.caches:
        caches(options.world_sizes)
        return
    draw = np.random.default_rng(0)
    sizes = np.maximum(1, draw.lognormal(np.log(MEAN_SIZE), SIGMA, NUM_SHARDS)).astype(np.int64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    began = time.process_time()
    sampler = WindowSampler(sizes, seed=1)
    times.append(time.process_time() - began)
    for epoch in (0, 1):
        began = time.process_time()
        sampler.indices(epoch, np.arange(64))
        times.append(time.process_time() - began)
    began = time.process_time()
    sampler.spec()
    times.append(time.process_time() - began)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{sampler.num_samples:,} samples in {NUM_SHARDS:,} shards, {sampler.lanes:,} lanes")
    names = ("made", "first epoch", "next epoch", "spec")
    shown = ", ".join(f"{name} {s:.2f} s" for name, s in zip(names, times, strict=True))
    print(f"sampler: {shown}, {memory:.0f} MB")
    steps_cost()
    print("\nCertificate, CPU:\n")
    certificate_cost(sampler)
    if options.costs:
        return
    by_size, plain = Cut(sampler, sizes), Cut(WindowSampler(sizes, seed=1, lanes=1024), sizes)
    table("Lanes by size", by_size, options.world_sizes)
    table("1,024 lanes", plain, options.world_sizes)
    table("1,024 lanes, strided", plain, options.world_sizes, is_strided=True)
    if options.all:
        check_all(by_size)
        check_all(plain)


if __name__ == "__main__":
    main()
