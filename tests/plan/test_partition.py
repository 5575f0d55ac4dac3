"""The partition: every position once, equal steps, one order, from any position on."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.plan import Partition, Plan
from shardwise.plan.partition import in_lane_order
from tests.support.properties import examples

REMAINDERS = ("drop", "pad", "uneven")


@st.composite
def partitions(
    draw: st.DrawFn, remainder: str | None = None, lanes: int | None = None
) -> Partition:
    """Partitions small enough to be walked through, with all of the corners."""
    n = draw(st.one_of(st.integers(0, 300), st.sampled_from([512, 1023, 1024, 1025, 2003])))
    return Partition(
        n,
        draw(st.integers(1, 33)),
        draw(st.integers(1, 64)),
        remainder or draw(st.sampled_from(REMAINDERS)),  # type: ignore[arg-type]
        draw(st.integers(0, n)),
        lanes or draw(st.sampled_from([1, 2, 7, 12, 64, 1024])),
    )


def batch_of(
    partition: Partition, step: int, rank: int, shift: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    return replace(partition, shift=shift).block(range(step, step + 1), rank)


def rows_of(partition: Partition, step: int, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """All ranks' positions at a step, rank after rank."""
    parts = [batch_of(partition, step, rank, shift) for rank in range(partition.world_size)]
    positions = np.concatenate([p for p, _ in parts])
    valid = np.concatenate([v for _, v in parts])
    return positions, valid


@given(partitions(), st.integers(0, 2_000))
@example(Partition(1, 33, 64, "pad"), 0)
@example(Partition(300, 1, 7, "pad", 299), 0)
@settings(max_examples=examples(200))
def test_a_step_has_the_next_positions_lane_after_lane_over_the_ranks_and_padding_last(
    p: Partition, shift: int
) -> None:
    end, num_padded = p.start, 0
    for step in range(p.num_steps):
        positions, valid = rows_of(p, step, shift=shift)
        assert (positions.dtype, valid.dtype) == (np.int64, np.bool_)
        begin, end = end, min(end + p.global_batch_size, p.num_samples)
        assert p.position_after(step + 1) == end
        real, filled = positions[: end - begin], positions[end - begin :]
        assert np.array_equal(np.sort(real), np.arange(begin, end))
        lane = (real + shift) % p.lanes
        assert np.count_nonzero(np.diff(lane)) + 1 == len(np.unique(lane))
        assert (np.diff(real)[np.diff(lane) == 0] > 0).all()
        # The same rows wherever the epoch was resumed: a batch knows nothing of how it was come to.
        assert np.array_equal(filled, np.arange(len(filled)) % p.num_samples)
        assert valid.tolist() == [True] * len(real) + [False] * len(filled)
        num_padded += len(filled)
    assert end == p.num_samples - p.num_dropped
    assert p.num_dropped == 0 or p.remainder == "drop"
    assert p.num_dropped < p.global_batch_size
    assert p.num_padded == num_padded
    assert num_padded == 0 or p.remainder == "pad"


@given(partitions())
@settings(max_examples=examples(100))
def test_batches_are_full_but_in_the_last_step_of_uneven(partition: Partition) -> None:
    for step in range(partition.num_steps):
        lengths = [len(batch_of(partition, step, r)[0]) for r in range(partition.world_size)]
        if partition.remainder == "uneven" and step == partition.num_steps - 1:
            assert max(lengths) <= partition.batch_size
            assert max(lengths) - min(lengths) <= 1
            assert lengths == sorted(lengths, reverse=True)
            assert sum(lengths) > 0
        else:
            assert set(lengths) == {partition.batch_size}


@given(
    world_size=st.integers(1, 2048),
    more=st.integers(0, 100),
    lanes=st.sampled_from([1000, 1024, 4096, 16_384]),
    begins=st.lists(st.integers(0, 10**12), min_size=1, max_size=12),
)
@example(1000, 0, 1024, [0])
@example(1016, 62, 1024, [0])
@settings(max_examples=examples(40))
def test_nodes_of_eight_ranks_share_one_lane_at_most_wherever_batches_begin(
    world_size: int, more: int, lanes: int, begins: list[int]
) -> None:
    size = (-(-1024 // world_size) + more) * world_size
    steps = np.arange(8) * size
    firsts = np.unique(np.concatenate([begins, steps, steps + begins[0]]) % lanes)
    places = in_lane_order(firsts, range(size), size=size, lanes=lanes)
    node = np.arange(size) // (size // world_size * 8)
    pairs = (places + firsts[:, None]) % lanes * 256 + node
    by_lane = np.bincount(np.unique(pairs) // 256, minlength=lanes)
    assert by_lane.max() <= 2
    assert (by_lane > 1).sum() <= node[-1]


@given(
    world_size=st.one_of(st.integers(1, 2048), st.sampled_from([1009, 1021, 2039])),
    batch_size=st.integers(1, 8),
    lanes=st.sampled_from([1024, 16_384]),
    start=st.integers(0, 10**10),
)
@example(2039, 1, 1024, 10**9 + 7)
@example(1021, 1, 16_384, 5)
@settings(max_examples=examples(40))
def test_any_rank_keeps_to_one_run_of_lanes_also_of_batches_smaller_than_the_lanes(
    world_size: int, batch_size: int, lanes: int, start: int
) -> None:
    partition = Partition(2 * 10**10, batch_size, world_size, start=start, lanes=lanes)
    size = partition.global_batch_size
    d = gcd(size, lanes)
    of_class, extra = lanes // d, size % lanes // d
    classes, x = np.divmod(np.arange(lanes), of_class)
    number = np.empty(lanes, dtype=np.int64)
    number[x * extra % of_class * d + classes] = np.arange(lanes)
    for rank in {0, world_size // 3, world_size - 1}:
        positions, _ = partition.block(range(0, 3_000, 97), rank)
        seen = number[positions % lanes]
        # The borders of a rank lie in the same lanes for ever: two ranks share one lane at most.
        assert seen.min() >= lanes * rank // world_size
        assert seen.max() < -(-lanes * (rank + 1) // world_size)


@pytest.mark.parametrize("num_epochs", [1, 2.7, pytest.param(9.7, marks=pytest.mark.long)])
def test_few_nodes_read_a_shard_also_in_virtual_epochs(num_epochs: float) -> None:
    sizes = np.random.default_rng(0).integers(50, 150, 10_240)
    num_samples, world_size, batch_size = int(sizes.sum()), 1000, 2
    epoch_size = None if num_epochs == 1 else int(num_samples / num_epochs)
    plan = Plan(
        num_samples,
        batch_size=batch_size,
        world_size=world_size,
        shuffle="window",
        shard_sizes=sizes,
        epoch_size=epoch_size,
    )
    assert plan.partition.lanes == 1024
    read = np.zeros((125, len(sizes)), dtype=bool)
    ends = np.cumsum(sizes)
    for epoch in range(int(num_epochs)):
        for rank in range(world_size):
            positions, _ = plan.positions(epoch, range(plan.num_steps), rank)
            ids = plan.sampler.indices(epoch, positions)
            read[rank // 8, np.searchsorted(ends, ids, side="right")] = True
    assert read.sum(axis=0).mean() <= 1.5


@given(
    n=st.integers(0, 2_000),
    size=st.sampled_from([1, 6, 12, 24, 60, 64]),
    remainder=st.sampled_from(REMAINDERS),
    share=st.floats(0, 1),
    lanes=st.sampled_from([1, 7, 64]),
)
@settings(max_examples=examples(60))
def test_global_batches_are_the_same_for_every_world_size_of_one_global_batch(
    n: int, size: int, remainder: Any, share: float, lanes: int
) -> None:
    start = int(n * share)
    worlds = [w for w in range(1, size + 1) if size % w == 0]
    split = [Partition(n, size // w, w, remainder, start, lanes) for w in worlds]
    assert len({p.num_steps for p in split}) == 1
    for step in range(split[0].num_steps):
        seen = []
        for partition in split:
            positions, valid = rows_of(partition, step)
            seen.append((positions.tolist(), valid.tolist()))
        assert all(batch == seen[0] for batch in seen)


@given(partitions(), st.data())
def test_a_block_of_steps_is_its_steps_one_behind_the_other(
    partition: Partition, data: st.DataObject
) -> None:
    if partition.num_steps == 0:
        return
    first = data.draw(st.integers(0, partition.num_steps - 1))
    last = data.draw(st.integers(first + 1, partition.num_steps))
    block = range(first, last, data.draw(st.integers(1, 4)))
    rank = data.draw(st.integers(0, partition.world_size - 1))
    positions, valid = partition.block(block, rank)
    steps = [batch_of(partition, step, rank) for step in block]
    assert np.array_equal(positions, np.concatenate([p for p, _ in steps]))
    assert np.array_equal(valid, np.concatenate([v for _, v in steps]))


def test_sizes_from_numpy_do_not_overflow() -> None:
    partition = Partition(np.int32(2**31 - 1), np.int32(2**20), np.int32(2**20))  # type: ignore[arg-type]
    assert partition.global_batch_size == 2**40
    assert partition.num_dropped == 2**31 - 1


def test_batches_and_lanes_beyond_int64_are_cut_without_lanes() -> None:
    partition = Partition(2**61, 2**20, 2**20, lanes=2**40)
    assert batch_of(partition, 1, 2)[0][[0, -1]].tolist() == [2**40 + 2**21, 2**40 + 3 * 2**20 - 1]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_samples": -1}, "num_samples=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"world_size": 0}, "world_size=0"),
        ({"start": 11}, "start=11 .* 10 samples"),
        ({"start": -1}, "start=-1"),
        ({"lanes": 0}, "lanes=0"),
        ({"remainder": "keep"}, "'drop', 'pad', 'uneven'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Partition(**({"num_samples": 10, "batch_size": 2, "world_size": 2} | change))


def test_steps_and_ranks_that_are_not_there_are_refused() -> None:
    partition = Partition(10, 2, 2)
    for step, rank in ((-1, 0), (2, 0)):
        with pytest.raises(ValueError, match=f"step {step}: there are 2 steps"):
            batch_of(partition, step, rank)
    with pytest.raises(ValueError, match="there are 0 steps"):
        batch_of(Partition(50, 4, 8, "uneven", start=50), 0, 0)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank={rank} must be in 0..1"):
            batch_of(partition, 0, rank)
    with pytest.raises(TypeError, match="batch_size"):
        Partition(10, 2.0, 2)  # type: ignore[arg-type]


def test_a_batch_that_is_never_full_takes_the_memory_of_its_samples():
    partition = Partition(10, 2**40, 4, remainder="uneven")
    assert [batch_of(partition, 0, rank)[0].size for rank in range(4)] == [3, 3, 2, 2]
    with pytest.raises(ValueError, match=r"batch_size=9223372036854775808 x .* at most 2\*\*48"):
        Partition(10, 2**63, 1)
