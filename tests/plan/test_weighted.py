"""Weighted draws: in proportion, pure, and without repeats where that is asked for."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.plan.permute import mix, mix_array
from shardwise.plan.weighted import _log, _unit
from shardwise.testing import check_sampler


@pytest.mark.parametrize("replacement", [True, False])
def test_it_is_a_sampler_like_others(replacement) -> None:
    weights = np.arange(500) % 7
    sampler = sw.WeightedSampler(weights, num_samples=300, seed=3, replacement=replacement)
    check_sampler(sampler, ids=np.flatnonzero(weights), repeats=True)


def test_draws_with_replacement_are_in_proportion_in_every_epoch() -> None:
    weights = np.array([0, 1, 2, 5, 0])
    sampler = sw.WeightedSampler(weights, num_samples=80_000)
    for epoch in (0, 1, 2**40):
        counts = np.bincount(sampler.indices(epoch, np.arange(80_000)), minlength=5)
        assert counts[[0, 4]].sum() == 0
        # 5 standard deviations of a binomial count are 700.
        assert np.abs(counts - 10_000 * weights).max() < 700


@given(st.lists(st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0, 1e300]), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_without_replacement_each_sample_with_a_weight_comes_once(weights) -> None:
    if not any(weights):
        return
    sampler = sw.WeightedSampler(weights, replacement=False)
    drawn = sampler.indices(3, np.arange(sampler.num_samples))
    assert np.array_equal(np.sort(drawn), np.flatnonzero(weights))


def test_without_replacement_the_first_draws_are_in_proportion() -> None:
    weights = np.array([1.0, 2.0, 5.0])
    sampler = sw.WeightedSampler(weights, num_samples=2, replacement=False)
    drawn = np.array([sampler.indices(epoch, np.arange(2)) for epoch in range(8000)])
    counts = np.bincount(drawn[:, 0], minlength=3)
    assert np.abs(counts - 1000 * weights).max() < 250
    # After sample 2, sample 1 is drawn twice as often as sample 0.
    after = np.bincount(drawn[drawn[:, 0] == 2, 1], minlength=3)
    assert abs(after[1] / after.sum() - 2 / 3) < 0.05


def test_fewer_draws_are_the_beginning_of_more() -> None:
    weights = np.random.default_rng(0).random(1000)
    few = sw.WeightedSampler(weights, num_samples=100, replacement=False)
    more = sw.WeightedSampler(weights, replacement=False)
    assert np.array_equal(few.indices(2, np.arange(100)), more.indices(2, np.arange(100)))


def test_balanced_draws_every_class_equally_often() -> None:
    labels = np.array(["cat"] * 900 + ["dog"] * 90 + ["emu"] * 10)
    sampler = sw.WeightedSampler.balanced(labels, num_samples=30_000, seed=1)
    classes, counts = np.unique(labels[sampler.indices(0, np.arange(30_000))], return_counts=True)
    assert classes.tolist() == ["cat", "dog", "emu"]
    assert np.abs(counts - 10_000).max() < 500


def test_the_logarithm_is_right_to_the_last_digits() -> None:
    values = np.concatenate([np.random.default_rng(0).random(10_000), [2.0**-53, 1 - 2.0**-53]])
    assert np.abs(_log(values) - np.log(values)).max() < 1e-14


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([1, -1], {}, "1 of 2 weights are negative or not finite, the first is -1 of sample 1"),
        ([np.nan, 1], {}, "nan of sample 0"),
        ([np.inf, 1], {}, "inf of sample 0"),
        ([0, 0], {}, "all 2 weights are 0"),
        ([], {}, "all 0 weights are 0"),
        ([[1, 2]], {}, "one a sample"),
        ([1, 2], {"num_samples": -1}, "num_samples=-1"),
        ([1, 0], {"num_samples": 2, "replacement": False}, "1 of 2 weights are above 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        sw.WeightedSampler(weights, **options)


def test_weights_of_another_dataset_are_refused() -> None:
    with pytest.raises(ValueError, match="3 weights, the dataset has 2 samples"):
        sw.DataLoader(sw.wrap([1, 2]), sampler=sw.WeightedSampler([1, 2, 3]))
    with pytest.raises(TypeError, match="must be numbers"):
        sw.WeightedSampler(["a"])
    with pytest.raises(TypeError, match="must be a whole number"):
        sw.WeightedSampler([1.0], num_samples=1.5)


@given(st.integers(1, 40_000), st.sampled_from(["f8", "f4", "u1"]), st.randoms())
@settings(max_examples=30, deadline=None)
def test_draws_are_those_of_the_sums_of_all_weights_also_of_a_read_only_array(
    count, dtype, random
) -> None:
    rng = np.random.default_rng(random.randrange(2**32))
    weights = (rng.lognormal(0, 3, count) * (rng.random(count) < 0.7)).astype(dtype)
    weights[random.randrange(count)] = 3
    fixed = weights.copy()
    fixed.flags.writeable = False
    one, other = (sw.WeightedSampler(each, num_samples=500) for each in (weights, fixed))
    places = rng.integers(0, 500, 300)
    ids = one.indices(2, places)
    assert np.array_equal(ids, other.indices(2, places))
    assert one.spec() == other.spec()
    sums = np.cumsum(weights / weights.astype("f8").max())
    drawn = _unit(mix_array(mix(0, 2), places)) * sums[-1]
    expected = np.searchsorted(sums, drawn, side="right")
    assert np.array_equal(ids, np.minimum(expected, np.flatnonzero(weights)[-1]))


def test_a_mapped_file_of_weights_stays_in_the_file(tmp_path) -> None:
    np.save(tmp_path / "weights.npy", np.random.default_rng(0).random(1_000_000))
    mapped = np.load(tmp_path / "weights.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        sampler = sw.WeightedSampler(mapped, num_samples=100)
        sampler.indices(0, np.arange(100))
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    assert len(pickle_by_value(sampler, [])) < 200_000
