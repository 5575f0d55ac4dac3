"""Window shuffle: every sample once for any shards, lanes and windows; local, and yet mixed."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.plan import Partition, WindowSampler, window
from shardwise.plan.window import default_lanes

SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 200)), max_size=15)


def epoch_of(sampler: WindowSampler, epoch: int = 0) -> np.ndarray:
    return sampler.indices(epoch, np.arange(sampler.num_samples))


@given(
    sizes=SIZES,
    window=st.integers(1, 40),
    lanes=st.integers(1, 40),
    seed=st.integers(),
    epoch=st.integers(0, 10**6),
)
@settings(max_examples=200)
def test_every_sample_comes_once(
    sizes: list[int], window: int, lanes: int, seed: int, epoch: int
) -> None:
    sampler = WindowSampler(sizes, seed=seed, window=window, lanes=lanes)
    n = sum(sizes)
    assert sampler.num_samples == n
    assert np.array_equal(np.sort(epoch_of(sampler, epoch)), np.arange(n))


@pytest.mark.parametrize("n", [65537, 131072, 131073, 262145, 10**6 + 3])
def test_every_sample_of_large_and_very_uneven_shards_comes_once(n: int) -> None:
    many = np.random.default_rng(0).integers(0, n // 20_000, 40_000).tolist()
    for sizes in ([n], [1] * 1000 + [n - 1000], [0, n // 2, 0, n - n // 2, 0], many):
        ids = epoch_of(WindowSampler(sizes), 1)
        assert np.array_equal(np.bincount(ids, minlength=sum(sizes)), np.ones(sum(sizes)))


def test_a_lane_moves_through_its_section_by_windows() -> None:
    lanes, window, size = 8, 16, 1_000
    sampler = WindowSampler([size] * lanes, seed=1, lanes=lanes, window=window)
    for epoch in range(3):
        by_lane = epoch_of(sampler, epoch).reshape(size, lanes)
        for lane in range(lanes):
            # One lane is one shard here, and no sample is a window or more from its place.
            moved = by_lane[:, lane] - by_lane[:, lane].min() - np.arange(size)
            assert np.abs(moved).max() < window
            assert np.abs(moved).mean() > window / 5


def test_each_window_is_shuffled_in_its_own_way() -> None:
    lanes, window, size = 4, 32, 3_200
    sampler = WindowSampler([size] * lanes, lanes=lanes, window=window)
    by_lane = epoch_of(sampler).reshape(size, lanes)
    ways = set()
    for lane in range(lanes):
        seen = by_lane[:, lane] - by_lane[:, lane].min()
        ends = np.flatnonzero(np.maximum.accumulate(seen) == np.arange(size)) + 1
        for begin, end in pairwise(ends.tolist()):
            if end - begin == window:
                ways.add((seen[begin:end] - begin).tobytes())
    assert len(ways) > 350


def test_borders_of_windows_move_with_epoch_and_lane() -> None:
    lanes, window, size = 4, 32, 320
    sampler = WindowSampler([size] * lanes, lanes=lanes, window=window)
    borders = set()
    for epoch in range(4):
        by_lane = epoch_of(sampler, epoch).reshape(size, lanes)
        for lane in range(lanes):
            seen = by_lane[:, lane] - by_lane[:, lane].min()
            # A border is where all that is before it has come, and nothing else.
            whole = np.flatnonzero(np.maximum.accumulate(seen) == np.arange(size))
            borders.add(frozenset((whole + 1).tolist()))
    assert len(borders) > 12


def test_shards_change_ranks_from_epoch_to_epoch() -> None:
    num_shards, world_size = 64, 8
    sampler = WindowSampler([100] * num_shards, lanes=32, window=10)
    ranks = []
    for epoch in range(8):
        ids = epoch_of(sampler, epoch)
        first = np.argmax(ids[None, :] // 100 == np.arange(num_shards)[:, None], axis=1)
        ranks.append(first % world_size)
    different = len({tuple(r.tolist()) for r in ranks})
    assert different == 8
    assert all(np.unique(np.array(ranks)[:, shard]).size > 1 for shard in range(num_shards))


@pytest.mark.parametrize("first", [500_000, 1_000_000 - 256])
def test_a_batch_mixes_as_many_shards_as_it_has_room_for_also_at_the_epochs_end(first: int) -> None:
    ids = WindowSampler([1000] * 1000).indices(0, np.arange(first, first + 256))
    assert np.unique(ids // 1000).size > 200


def test_a_lane_meets_the_shards_in_another_order_each_epoch() -> None:
    num_shards = 32
    sampler = WindowSampler([100] * num_shards, lanes=2, window=10)
    orders = []
    for epoch in range(5):
        shards = epoch_of(sampler, epoch)[::2] // 100
        _, first = np.unique(shards, return_index=True)
        orders.append(shards[np.sort(first)])
    assert len({order.tobytes() for order in orders}) == 5
    # Neither are they neighbours in storage; one pair in a random order is expected to be.
    assert all((np.diff(order) == 1).sum() < 5 for order in orders)


def test_the_lanes_of_a_small_batch_are_drawn_from_all_over_the_line() -> None:
    # One shard, so that the line has one order; 32 lanes of 100 samples, a batch of 8.
    sampler = WindowSampler([3200], lanes=32, window=10)
    sections = [sampler.indices(epoch, np.arange(8)) // 100 for epoch in range(10)]
    assert len({tuple(row.tolist()) for row in sections}) == 10
    assert all(np.ptp(row) > 8 for row in sections)


def test_a_set_that_fits_in_the_windows_is_shuffled_in_full() -> None:
    sampler = WindowSampler([50] * 20, window=100, lanes=10)
    assert (sampler.lanes, sampler.window) == (1, 1000)
    apart = []
    for epoch in range(30):
        place = np.argsort(epoch_of(sampler, epoch))
        apart.append(np.abs(np.diff(place)).mean() / 1000)
    # Neighbours in a true permutation are a third of the epoch apart.
    assert abs(np.mean(apart) - 1 / 3) < 0.01
    larger = WindowSampler([50] * 20 + [1], window=100, lanes=10)
    assert (larger.lanes, larger.window) == (10, 100)


def test_all_orders_of_a_few_samples_are_equally_likely() -> None:
    orders: dict[tuple[int, ...], int] = {}
    for seed in range(2_400):
        order = tuple(epoch_of(WindowSampler([2, 2], seed=seed)).tolist())
        orders[order] = orders.get(order, 0) + 1
    chi_square = sum((count - 100) ** 2 for count in orders.values()) / 100
    assert len(orders) == 24
    assert chi_square < 23 + 5 * (2 * 23) ** 0.5


@pytest.mark.parametrize(
    ("sizes", "error", "match"),
    [
        ([5, -1], ValueError, "negative"),
        ([1.5, 2], TypeError, "float64"),
        ([[1, 2], [3, 4]], TypeError, "shape"),
        ([2**61, 2**61, 2**61], ValueError, "more than"),
    ],
)
def test_sizes_of_shards_that_are_no_counts_are_refused(
    sizes: list[int], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        WindowSampler(sizes)


@pytest.mark.parametrize("option", ["window", "lanes"])
def test_no_window_and_no_lane_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=0"):
        WindowSampler([5], **{option: 0})


@pytest.mark.parametrize(
    ("num_shards", "num_samples", "lanes"),
    [
        (1, 10**10, 1024),
        (10_240, 10**9, 1024),
        (32_767, 10**9, 1024),
        (32_768, 10**9, 2048),
        (100_000, 10**9, 4096),
        (262_144, 10**9, 16_384),
        (10**6, 10**10, 16_384),
        (10**9, 10**15, 16_384),
        # Small shards: the open windows hold no more than a sixteenth of the samples.
        (10**6, 10**7, 4096),
        (10**6, 4_194_303, 1024),
        (10**6, 4_194_304, 2048),
    ],
)
def test_lanes_follow_the_size_of_the_data(num_shards: int, num_samples: int, lanes: int) -> None:
    assert default_lanes(num_shards, num_samples) == lanes
    assert lanes == 1024 or lanes * 128 * 16 <= num_samples


def test_a_rank_of_1024_has_samples_of_16_shards_in_a_batch() -> None:
    sampler = WindowSampler(np.full(300_000, 1_000))
    assert sampler.spec()["lanes"] == 16_384
    partition = Partition(sampler.num_samples, 64, 1024, lanes=sampler.lanes)
    for rank, step in ((0, 0), (511, 2_000), (1023, partition.num_steps - 1)):
        positions, _ = partition.block(range(step, step + 1), rank)
        ids = sampler.indices(1, positions)
        assert np.unique(ids // 1_000).size >= 16


def test_empty_and_few_shards_make_no_lanes() -> None:
    sizes = np.zeros(1_000_000, dtype=np.int64)
    sizes[:1000] = 10_000
    assert WindowSampler(sizes).lanes == 1024
    assert WindowSampler(np.full(20_000, 40)).spec()["lanes"] == 1024


class SizesElsewhere:
    """Sizes of shards in other data: what a dataset is to its loader's order."""

    sizes = (300, 0, 700)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array(self.sizes, dtype=np.int64)


def test_an_order_over_a_view_pickles_without_the_sizes_and_is_the_same(monkeypatch):
    options = {"seed": 3, "window": 8, "lanes": 4}
    sampler, plain = (WindowSampler(s, **options) for s in (SizesElsewhere(), (300, 0, 700)))
    copy = pickle.loads(pickle.dumps(sampler))
    assert "_sizes" not in vars(copy)
    assert copy.spec() == sampler.spec() == plain.spec()
    places = np.arange(1000)
    assert np.array_equal(copy.indices(1, places), plain.indices(1, places))
    # A copy of a copy that was never read.
    other = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(sampler))))
    monkeypatch.setattr(SizesElsewhere, "sizes", (700, 0, 300))
    with pytest.raises(ValueError, match="others than when the order was made"):
        other.indices(1, places)


def test_the_sizes_are_hashed_once(monkeypatch):
    hashed = []
    digest = lambda sizes, dtype: hashed.append((sizes, dtype)) or "digest"  # noqa: E731
    monkeypatch.setattr(window, "digest_of_array", digest)
    sampler = WindowSampler([5, 6], seed=0)
    assert [sampler.spec()["shard_sizes"] for _ in range(3)] == ["digest"] * 3
    assert len(hashed) == 1
