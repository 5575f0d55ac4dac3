"""The bijections: exactly once for every n, unrelated for every key, the same for ever."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.plan.permute import Permutation, mix, mix_array, permute_within

KEYS = st.integers(-(2**70), 2**70)


def assert_bijection(n: int, key: int) -> None:
    values = Permutation(n, key)(np.arange(n))
    assert values.dtype == np.int64
    assert np.array_equal(np.bincount(values, minlength=n), np.ones(n))


def test_every_small_n_is_a_bijection() -> None:
    for n in range(301):
        assert_bijection(n, key=n)


# A known shuffle repeats an index at 65537, 262145 and 1048577.
POWERS_AND_NEIGHBOURS = sorted({2**k + d for k in range(21) for d in (-1, 0, 1)})


@pytest.mark.parametrize("n", [*POWERS_AND_NEIGHBOURS, 4099, 7919, 104729, 10**6 + 3])
def test_powers_of_two_their_neighbours_and_primes_are_bijections(n: int) -> None:
    assert_bijection(n, key=1)


@given(n=st.integers(1, 50_000), key=KEYS)
@settings(max_examples=60)
def test_any_n_and_key_is_a_bijection(n: int, key: int) -> None:
    assert_bijection(n, key)


@given(n=st.sampled_from([10**9, 10**9 + 7, 2**30, 2**30 + 1, 2**40 + 1, 2**62]), key=KEYS)
@settings(max_examples=20)
def test_a_huge_n_has_no_value_twice_and_none_out_of_range(n: int, key: int) -> None:
    drawn = np.random.default_rng(0).integers(0, n, 30_000)
    positions = np.unique(np.concatenate([np.arange(10_000), drawn, np.arange(n - 10_000, n)]))
    values = Permutation(n, key)(positions)
    assert values.min() >= 0
    assert values.max() < n
    assert np.unique(values).size == positions.size


@given(
    n=st.integers(1, 10**9),
    key=KEYS,
    picks=st.lists(st.integers(0, 10**9), min_size=1, max_size=50),
    cut=st.integers(0, 50),
)
@example(n=4096, key=0, picks=[0, 4095], cut=1)
@example(n=4097, key=0, picks=[0, 4096], cut=1)
@settings(max_examples=50)
def test_a_slice_of_positions_has_the_slice_of_the_values(
    n: int, key: int, picks: list[int], cut: int
) -> None:
    positions = np.array([pick % n for pick in picks])
    permutation = Permutation(n, key)
    values = permutation(positions)
    assert np.array_equal(permutation(positions[:cut]), values[:cut])
    assert np.array_equal(permutation(positions[::-1]), values[::-1])
    assert np.array_equal(Permutation(n, key)(positions), values)


def test_a_block_longer_than_the_work_arrays_has_the_values_of_its_parts() -> None:
    permutation = Permutation(10**9, 5)
    positions = np.arange(40_000) * 1_000
    parts = [permutation(positions[i : i + 777]) for i in range(0, 40_000, 777)]
    assert np.array_equal(permutation(positions), np.concatenate(parts))


@pytest.mark.parametrize("n", [10, 5_000])
def test_positions_out_of_range_are_refused_with_the_range(n: int) -> None:
    for position in (-1, n, 2**62):
        with pytest.raises(ValueError, match=f"{position}.* 0 to {n - 1}"):
            Permutation(n, 0)(np.array([0, position, 1]))


def test_positions_of_no_whole_number_or_of_two_dimensions_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        Permutation(10, 0)(np.array([0.0, 1.0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one dimension"):
        Permutation(10, 0)(np.zeros((2, 2), dtype=np.int64))


def test_a_size_that_is_no_count_is_refused() -> None:
    with pytest.raises(ValueError, match="n=-1"):
        Permutation(-1, 0)
    with pytest.raises(ValueError, match="more than"):
        Permutation(2**62 + 1, 0)
    with pytest.raises(TypeError, match="n must be a whole number"):
        Permutation(1.5, 0)  # type: ignore[arg-type]


def test_an_empty_permutation_has_no_positions() -> None:
    assert Permutation(0, 0)(np.empty(0, dtype=np.int64)).shape == (0,)
    with pytest.raises(ValueError, match="empty"):
        Permutation(0, 0)(np.array([0]))


def test_a_pickled_permutation_is_small_and_the_same() -> None:
    permutation = Permutation(4_000, 2**80)
    values = permutation(np.arange(4_000))
    pickled = pickle.dumps(permutation)
    assert len(pickled) < 200
    assert np.array_equal(pickle.loads(pickled)(np.arange(4_000)), values)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_a_few_values_are_equally_likely(n: int) -> None:
    num_keys = 6_000
    orders: dict[tuple[int, ...], int] = {}
    for key in range(num_keys):
        order = tuple(Permutation(n, key)(np.arange(n)).tolist())
        orders[order] = orders.get(order, 0) + 1
    num_orders = int(np.prod(np.arange(1, n + 1)))
    expected = num_keys / num_orders
    chi_square = sum((count - expected) ** 2 for count in orders.values()) / expected
    chi_square += (num_orders - len(orders)) * expected
    # Mean + 5 sigma of a chi-square of num_orders - 1 degrees of freedom; the keys are fixed.
    assert chi_square < num_orders - 1 + 5 * (2 * (num_orders - 1)) ** 0.5


@pytest.mark.parametrize("n", [4096, 4097, 10_000, 10**9])
def test_where_a_value_lands_is_uniform_and_unrelated_to_its_neighbour(n: int) -> None:
    cells = 16
    counts = np.zeros((cells, cells))
    for key in range(40):
        values = Permutation(n, key)(np.arange(2_001) + n // 3)
        cell = values * cells // n
        np.add.at(counts, (cell[:-1], cell[1:]), 1)
    expected = counts.sum() / cells**2
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < cells**2 + 5 * (2 * cells**2) ** 0.5


def test_neighbouring_keys_give_unrelated_orders() -> None:
    n = 100_000
    orders = [Permutation(n, key)(np.arange(n)) for key in range(5)]
    for left, right in pairwise(orders):
        # Equal values at a position: one expected.
        assert (left == right).sum() < 12
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.02
        # Nor is one a shift of the other.
        assert np.unique((left - right) % n).size > n // 2


@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=8),
    seed=st.integers(0, 2**63),
)
def test_many_small_ranges_are_each_permuted_within_themselves(sizes: list[int], seed: int) -> None:
    keys = mix_array(seed, np.arange(len(sizes)))
    places = np.concatenate([np.arange(size) for size in sizes]).astype(np.uint64)
    size = np.repeat(sizes, sizes).astype(np.uint64)
    values = permute_within(places, size, np.repeat(keys, sizes))
    end = 0
    for length in sizes:
        part = values[end : end + length]
        assert np.array_equal(np.sort(part), np.arange(length))
        end += length


@pytest.mark.parametrize("size", [2, 3, 9, 128])
def test_places_of_small_ranges_are_uniform(size: int) -> None:
    num_keys = 40_000
    keys = mix_array(1, np.arange(num_keys))
    sizes = np.full(num_keys, size, dtype=np.uint64)
    for place in {0, size // 2, size - 1}:
        values = permute_within(np.full(num_keys, place, dtype=np.uint64), sizes, keys)
        counts = np.bincount(values.astype(np.int64), minlength=size)
        expected = num_keys / size
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < size - 1 + 5 * (2 * (size - 1)) ** 0.5


def test_mixing_has_no_alias_between_words() -> None:
    words = [(a, b) for a in range(-20, 40) for b in range(40)]
    words += [(2**64 + 5, 1), (2**64, 0), (-(2**64), 0)]
    keys = {mix(*pair) for pair in words} | {mix(5), mix(51), mix(0, 5, 1), mix(5, 1, 0), mix()}
    assert len(keys) == len(words) + 5
    assert all(0 <= key < 2**64 for key in keys)


def test_mixing_takes_numpy_integers_as_pythons() -> None:
    assert mix(np.int64(-5), np.uint8(1)) == mix(-5, 1)
    with pytest.raises(TypeError):
        mix(1.0)  # type: ignore[arg-type]


def test_a_hash_of_values_is_a_bijection_and_changes_half_of_the_bits() -> None:
    values = np.concatenate([np.arange(-5_000, 5_000), 1 << np.arange(63)])
    values = np.unique(values)
    hashed = mix_array(99, values)
    assert hashed.dtype == np.uint64
    assert np.unique(hashed).size == values.size
    for other in (mix_array(99, values ^ 1), mix_array(98, values)):
        changed = np.unpackbits((hashed ^ other).view(np.uint8)).mean()
        assert abs(changed - 0.5) < 0.01
    assert np.array_equal(mix_array(99, values.view(np.uint64)), hashed)


# The order must never change between releases: a run that resumes would silently lose and repeat
# samples. If one of these fails, the code is wrong, not the table.
@pytest.mark.parametrize(
    ("n", "key", "values"),
    [
        (1, 0, [0]),
        (5, 1, [2, 1, 0, 3, 4]),
        (1000, -3, [559, 225, 205, 142, 797, 298, 112, 707]),
        (4096, 0, [2955, 667, 2961, 1619, 1337, 3642, 267, 562]),
        (4097, 0, [2398, 415, 3280, 6, 3323, 1965, 3171, 957]),
        (65537, 2**64, [39791, 5541, 36722, 470, 41768, 47906, 60386, 29362]),
        (10**6 + 3, 7, [112968, 680529, 343999, 209641, 852479, 609681, 655081, 119153]),
        (10**9, 0, [782323222, 573214036, 995551780, 442466100, 406554009, 187387864]),
        (2**62, 1, [43922997807711038, 3768091802825798550, 2959445752055144078]),
    ],
)
def test_golden_permutations(n: int, key: int, values: list[int]) -> None:
    assert Permutation(n, key)(np.arange(len(values))).tolist() == values


def test_golden_hashes() -> None:
    assert mix(5, 1) == 13927121451915530154
    assert mix(6, 0) == 5639902135659278363
    assert mix(-1, 2**64) == 16924176788823431270
    assert mix_array(3, np.array([0, 1, -1])).tolist() == [
        7583733123348538226,
        13647571213613568415,
        12651526797196022360,
    ]
