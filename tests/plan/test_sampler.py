"""Samplers: each sample once, pure, unrelated between seeds and epochs, the same for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.plan import (
    FullSampler,
    Sampler,
    SequentialSampler,
    VirtualEpochs,
    WeightedSampler,
    WindowSampler,
    make_sampler,
)
from shardwise.testing.samplers import check_sampler


def epoch_of(sampler: Sampler, epoch: int = 0) -> np.ndarray:
    return sampler.indices(epoch, np.arange(sampler.num_samples))


@pytest.mark.parametrize(
    ("sampler", "kwargs"),
    [
        (SequentialSampler(0), {}),
        (SequentialSampler(1000), {}),
        (FullSampler(0), {}),
        (FullSampler(1, seed=-1), {}),
        (FullSampler(10**5 + 3, seed=2**70), {"process": False}),
        (FullSampler(10**9), {"epochs": (0, 7), "max_positions": 100_000}),
        (WindowSampler([3, 0, 500, 10, 0], window=7, lanes=5), {}),
        (WindowSampler([100_000] * 10_000), {"epochs": (3,), "max_positions": 200_000}),
        (VirtualEpochs(FullSampler(100), 30), {"ids": range(100), "process": False}),
        (VirtualEpochs(WindowSampler([60, 40], window=4, lanes=2), 250), {"ids": range(100)}),
    ],
    ids=repr,
)
def test_a_sampler_keeps_the_protocol(sampler: Sampler, kwargs: dict[str, Any]) -> None:
    assert isinstance(sampler, Sampler)
    check_sampler(sampler, **kwargs)


@pytest.mark.parametrize("make", [FullSampler, lambda n, seed: WindowSampler([n], seed=seed)])
def test_seed_5_epoch_1_is_unrelated_to_seed_6_epoch_0(make: Any) -> None:
    n = 10_000
    left, right = epoch_of(make(n, seed=5), 1), epoch_of(make(n, seed=6), 0)
    # In unrelated orders one sample is expected to be at the same position.
    assert (left == right).sum() < 12
    assert np.unique((left - right) % n).size > n // 2


@pytest.mark.parametrize("make", [FullSampler, lambda n, seed: WindowSampler([n], seed=seed)])
def test_no_two_pairs_of_seed_and_epoch_give_one_order(make: Any) -> None:
    orders = {
        epoch_of(make(200, seed=seed), epoch).tobytes()
        for seed in range(-10, 20)
        for epoch in range(20)
    }
    assert len(orders) == 30 * 20


def test_storage_order_is_the_same_in_every_epoch() -> None:
    sampler = SequentialSampler(7)
    assert epoch_of(sampler, 0).tolist() == epoch_of(sampler, 3).tolist() == list(range(7))


@given(
    n=st.integers(1, 60),
    size=st.integers(1, 150),
    epoch=st.integers(0, 10**20),
    seed=st.integers(0, 5),
)
def test_virtual_epochs_are_slices_of_the_inner_epochs_in_a_row(
    n: int, size: int, epoch: int, seed: int
) -> None:
    inner = FullSampler(n, seed=seed)
    first = epoch * size // n
    line = np.concatenate([epoch_of(inner, e) for e in range(first, first + size // n + 2)])
    begin = epoch * size - first * n
    got = epoch_of(VirtualEpochs(inner, size), epoch)
    assert np.array_equal(got, line[begin : begin + size])


def test_virtual_epochs_of_an_empty_sampler_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        VirtualEpochs(FullSampler(0), 5)
    with pytest.raises(ValueError, match="epoch_size=0"):
        VirtualEpochs(FullSampler(5), 0)


def test_specs_differ_as_soon_as_orders_do() -> None:
    samplers: list[Sampler] = [
        SequentialSampler(1000),
        SequentialSampler(1001),
        FullSampler(1000),
        FullSampler(1000, seed=1),
        FullSampler(1001),
        WindowSampler([500, 500]),
        WindowSampler([500, 500], window=10, lanes=4),
        WindowSampler([500, 500], window=10, lanes=5),
        WindowSampler([500, 500], window=11, lanes=4),
        WindowSampler([500, 500], window=10, lanes=4, seed=1),
        WindowSampler([499, 501], window=10, lanes=4),
        WeightedSampler(np.ones(1000)),
        WeightedSampler(np.arange(1000)),
        WeightedSampler(np.ones(1000), num_samples=11),
        WeightedSampler(np.ones(1000), replacement=False),
        WeightedSampler(np.ones(1000), seed=1),
        VirtualEpochs(FullSampler(1000), 10),
        VirtualEpochs(FullSampler(1000), 11),
        VirtualEpochs(FullSampler(1000, seed=1), 10),
        VirtualEpochs(VirtualEpochs(FullSampler(1000), 11), 10),
    ]
    specs = [str(sampler.spec()) for sampler in samplers]
    assert len(set(specs)) == len(specs)


def test_specs_are_equal_where_orders_are() -> None:
    # Both come to one lane and one window.
    left, right = WindowSampler([5, 5], window=64, lanes=2), WindowSampler([5, 5])
    assert left.spec() == right.spec()
    assert np.array_equal(epoch_of(left), epoch_of(right))
    assert FullSampler(5, seed=np.int64(3)).spec() == FullSampler(5, seed=3).spec()


def test_options_that_do_not_fit_are_refused_with_what_to_change() -> None:
    with pytest.raises(ValueError, match="needs shard_sizes"):
        make_sampler(5, shuffle="window", seed=0)
    with pytest.raises(ValueError, match="sum up to 4, but num_samples=5"):
        make_sampler(5, shuffle="window", seed=0, shard_sizes=[2, 2])
    with pytest.raises(ValueError, match="'full', 'window'"):
        make_sampler(5, shuffle="yes", seed=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed"):
        make_sampler(5, shuffle="full", seed=0.5)  # type: ignore[arg-type]


# The order must never change between releases: a run that resumes would silently lose and repeat
# samples. If one of these fails, the code is wrong, not the table.
_STEEP = np.arange(200) * 10
_SEVENTHS = np.arange(1000) % 7


@pytest.mark.parametrize(
    ("sampler", "epoch", "first", "ids"),
    [
        (FullSampler(10, seed=0), 0, 0, [7, 4, 9, 3, 6, 0, 1, 2]),
        (FullSampler(10, seed=0), 1, 0, [9, 1, 0, 8, 2, 3, 7, 5]),
        (
            FullSampler(65537, seed=5),
            1,
            65529,
            [662, 12819, 14922, 38586, 10041, 52987, 11748, 30982],
        ),
        (
            FullSampler(65537, seed=6),
            0,
            65529,
            [60178, 30722, 48676, 28992, 42690, 47088, 28381, 39390],
        ),
        (
            FullSampler(10**9, seed=-1),
            1000,
            10**8,
            [724592974, 2546016, 895235890, 164381907, 157720447],
        ),
        (WindowSampler([4, 0, 6], seed=0), 0, 0, [8, 6, 1, 4, 5, 0, 3, 9]),
        (WindowSampler(_STEEP, seed=7), 3, 100_000, [85018, 93514, 27865, 149049, 70994, 110572]),
        (
            WindowSampler(_STEEP, seed=7, lanes=8, window=16),
            0,
            198_992,
            [175065, 112095, 8940, 3507, 95404, 79854, 45899, 47520],
        ),
        (
            WindowSampler([100_000] * 10_000),
            2,
            0,
            [181973513, 713870334, 382623468, 430514125, 440804698],
        ),
        (WeightedSampler(_SEVENTHS, seed=1), 4, 0, [909, 731, 775, 746, 954, 527, 44, 339]),
        (
            WeightedSampler(_SEVENTHS, seed=1, replacement=False),
            4,
            0,
            [983, 585, 662, 965, 33, 144, 769, 979],
        ),
        (VirtualEpochs(FullSampler(7, seed=2), 5), 1, 0, [1, 2, 1, 0, 3]),
    ],
    ids=repr,
)
def test_golden_orders(sampler: Sampler, epoch: int, first: int, ids: list[int]) -> None:
    assert sampler.indices(epoch, np.arange(first, first + len(ids))).tolist() == ids
