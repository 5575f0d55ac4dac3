"""Where ids come in an epoch: by the inverse of an order, or by a walk through it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.plan import FullSampler, Permutation, SequentialSampler, VirtualEpochs, WindowSampler
from shardwise.plan.permute import permute_within
from shardwise.plan.protocol import FindsIds, Sampler, having, positions_of
from shardwise.plan.user_sampler import ArraySampler
from shardwise.plan.weighted import WeightedSampler


@given(n=st.sampled_from([1, 2, 5, 4096, 4097, 65537, 10**9 + 7, 2**40 + 1]), key=st.integers())
@settings(max_examples=40)
def test_the_inverse_of_a_permutation_gives_the_positions_back(n: int, key: int) -> None:
    positions = np.random.default_rng(0).integers(0, n, 500)
    permutation = Permutation(n, key)
    assert np.array_equal(permutation.inverse(permutation(positions)), positions)


@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=50), key=st.integers(0, 2**64 - 1))
@settings(max_examples=40)
def test_the_permutations_of_small_ranges_are_undone(sizes: list[int], key: int) -> None:
    lengths = np.array(sizes, dtype=np.uint64)
    places = lengths // np.uint64(2)
    keys = np.full(len(lengths), key, dtype=np.uint64)
    values = permute_within(places, lengths, keys)
    assert np.array_equal(permute_within(values, lengths, keys, undo=True), places)


@given(data=st.data(), n=st.integers(1, 300), epoch=st.integers(0, 5))
@settings(max_examples=60)
def test_an_order_is_inverted_as_a_walk_through_it_says(
    data: st.DataObject, n: int, epoch: int
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    sizes = np.diff([0, *cuts, n])
    window, lanes, size = (data.draw(st.integers(1, 40)) for _ in range(3))
    full = FullSampler(n, seed=3)
    order = np.random.default_rng(epoch).integers(0, n, 2 * n)
    samplers: list[Sampler] = [
        SequentialSampler(n),
        full,
        WindowSampler(sizes, seed=1, window=window, lanes=lanes),
        VirtualEpochs(full, size),
        VirtualEpochs(WindowSampler(sizes, seed=1, window=window, lanes=lanes), 3 * n + size),
        ArraySampler(order),
        WeightedSampler(np.arange(n) + 1.0, num_samples=2 * n),
    ]
    ids = np.unique(data.draw(st.lists(st.integers(0, n - 1), max_size=20))).astype(np.int64)
    for sampler in samplers:
        whole = sampler.indices(epoch, np.arange(sampler.num_samples))
        expected = np.flatnonzero(np.isin(whole, ids))
        assert positions_of(sampler, epoch, ids).tolist() == expected.tolist(), sampler


def test_an_order_without_an_inverse_is_walked_through_up_to_a_bound() -> None:
    sampler = WeightedSampler(np.ones(100))
    assert having(sampler, FindsIds) is None
    with pytest.raises(ValueError, match=r"has no inverse.* 100 positions .* longer than 99"):
        positions_of(sampler, 0, np.array([1]), most=99)


def test_a_huge_shuffle_is_asked_for_one_id_without_a_walk() -> None:
    sampler = WindowSampler([10**8] * 100, seed=2)
    [position] = positions_of(sampler, 3, np.array([4_321_000_123])).tolist()
    assert sampler.indices(3, np.array([position])).tolist() == [4_321_000_123]
