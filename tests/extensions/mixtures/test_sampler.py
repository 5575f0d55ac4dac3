"""The order of a mixture: exact shares, whole epochs of each dataset, and a past that stays."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base.errors import StateError
from shardwise.extensions.mixtures.options import MixtureOptions, MixturePart, parse_schedule
from shardwise.extensions.mixtures.sampler import BatchMixtureSampler, MixtureSampler
from shardwise.extensions.mixtures.segments import MAX_PARTS, MixtureTree, whole_parts
from shardwise.plan import DataOrder, FullSampler, Plan, WindowSampler
from shardwise.testing import check_sampler

PARTS = {
    "web": MixturePart(5_000, "a"),
    "code": MixturePart(3_000, "b", WindowSampler([300] * 10, seed=2, lanes=4, window=100)),
    "books": MixturePart(77, "c", FullSampler(77, seed=3)),
}
WEIGHTS = {"web": 0.7, "code": 0.2, "books": 0.1}

weights_of = st.lists(
    st.one_of(st.floats(1e-6, 1), st.integers(1, 10**12)), min_size=1, max_size=30
)


def mixture(schedule=((0, WEIGHTS),), parts=None, kind=MixtureSampler, **options):
    parts = parts or PARTS
    changes = parse_schedule(schedule, tuple(parts))
    return kind(parts, MixtureOptions(changes, **({"until": 10_000} | options)))


def alike(weights, size=1000):
    return {f"{k}": MixturePart(size) for k in range(len(weights))}


def by_number(weights):
    return {f"{k}": weight for k, weight in enumerate(weights)}


def stream(sampler, num_epochs=1):
    ids = [sampler.indices(e, np.arange(sampler.num_samples)) for e in range(num_epochs)]
    return np.concatenate(ids)


def datasets_of(ids, parts):
    ends = np.cumsum([part.num_ids for part in parts.values()])
    return np.searchsorted(ends, ids, side="right")


def test_parts_keep_the_ratio_of_decimals_exactly_and_of_others_to_half_a_part():
    assert whole_parts([Fraction("0.7"), Fraction("0.2"), Fraction("0.1")]) == [7, 2, 1]
    assert whole_parts([Fraction(1), Fraction("1e-6"), Fraction(0)]) == [10**6, 1, 0]
    odd = [Fraction(repr(x)) for x in np.random.default_rng(0).random(9).tolist()]
    parts = whole_parts(odd)
    assert sum(parts) == MAX_PARTS
    assert all(
        abs(part - share * MAX_PARTS / sum(odd)) < 1 for part, share in zip(parts, odd, strict=True)
    )
    assert whole_parts([Fraction(1), Fraction(1, 10**15)])[1] == 1, "a share above 0 has a part"


@settings(max_examples=40)
@given(weights_of, st.sampled_from([0, 10**6, 10**13]))
def test_each_dataset_has_its_share_of_any_draws_in_a_row(weights, start):
    parts = whole_parts([Fraction(repr(w)) for w in weights])
    tree, total = MixtureTree(parts), sum(parts)
    which, numbers = tree.split(np.arange(start, start + 3_000))
    counts = np.array(tree.counts(start))
    for k, part in enumerate(parts):
        mine = which == k
        had = counts[k] + np.cumsum(mine)
        assert np.array_equal(numbers[mine], had[mine] - 1)
        drawn = start + np.arange(1, 3_001)
        # In whole numbers: doubles lose the place behind the point at 10**13.
        exact = [int(n) * part // total for n in (drawn[0], drawn[-1])]
        assert abs(had[0] - exact[0]) <= 2.4 + 1
        assert abs(had[-1] - exact[1]) <= 2.4 + 1
        if not start:
            assert np.abs(had - drawn * part / total).max() <= 2.4
    assert (
        tree.counts(start + 3_000) == (counts + np.bincount(which, minlength=len(parts))).tolist()
    )


@settings(max_examples=25)
@given(
    weights_of,
    st.lists(st.floats(0, 1), min_size=1, max_size=33),
    st.integers(1, 5_000),
    st.sampled_from([1, 7, 256]),
)
def test_a_change_of_weights_moves_nothing_before_it(weights, later, position, block):
    if not any(later):
        later = [*later, 1.0]
    longer = alike(max(weights, later, key=len))
    change = [(0, by_number(weights)), (position, by_number(later))]
    old = mixture(change[:1], alike(weights), block=block, until=8_000)
    new = mixture(change, longer, block=block, until=8_000)
    start = new.schedule.starts()[-1]
    assert position <= start < position + block
    before, after = stream(old)[:start], stream(new)
    assert np.array_equal(before, after[:start])
    which = datasets_of(after, longer)
    for cut in (0, 1, start, 5_123, 8_000):
        counts = list(new.counts(0, cut).values())
        assert counts == np.bincount(which[:cut], minlength=len(longer)).tolist()
    # Each dataset goes on where it was: no sample is left out or comes twice in an epoch of its.
    for k in range(len(longer)):
        own = after[which == k]
        for first in range(0, len(own), 1000):
            whole = own[first : first + 1000]
            assert len(np.unique(whole)) == len(whole)


def test_the_shares_hold_over_any_whole_blocks_and_changes_do_not_add_up():
    changes = [(0, WEIGHTS), (20_480, {"web": 1, "books": 2}), (40_960, {"code": 1, "web": 6})]
    sampler = mixture(changes, until=81_920)
    which = datasets_of(stream(sampler), PARTS)
    wanted = np.zeros(3)
    for k in range(81_920 // 256):
        here = changes[min(k * 256 // 20_480, 2)][1]
        weights = np.array([here.get(name, 0) for name in PARTS])
        wanted += 256 * weights / weights.sum()
        had = np.bincount(which[: (k + 1) * 256], minlength=3)
        assert np.abs(had - wanted).max() <= 2.4


def test_what_a_dataset_is_owed_is_carried_over_a_hundred_changes():
    # Seven draws a segment: rounded anew in each, the shares of 2.1 and 0.7 would stray for ever.
    schedule = [(7 * k, dict(zip(PARTS, np.roll((0.6, 0.3, 0.1), k % 2), strict=True)))
                for k in range(100)]  # fmt: skip
    sampler = mixture(schedule, block=1, until=700)
    which, wanted = datasets_of(stream(sampler), PARTS), np.zeros(3)
    for k in range(100):
        weights = [schedule[k][1][name] for name in PARTS]
        wanted += 7 * np.array(weights)
        had = np.bincount(which[: 7 * (k + 1)], minlength=3)
        assert np.abs(had - wanted).max() <= 2.4


def test_a_ramp_follows_the_integral_of_its_weights_without_adding_up():
    length = 1 << 19
    sampler = mixture([(0, WEIGHTS), ((1024, 1024 + length), {"books": 1})], until=2 * length)
    which = datasets_of(sampler.indices(0, np.arange(1024, 1024 + length)), PARTS)
    t = (np.arange(length) + 0.5) / length
    for k, (first, last) in enumerate([(0.7, 0), (0.2, 0), (0.1, 1)]):
        integral = np.cumsum(first + (last - first) * t)[255::256]
        had = np.cumsum(which == k)[255::256]
        assert np.abs(had - integral).max() <= 2.4 + 1
        assert abs(had[-1] - integral[-1]) <= 2
    assert sampler.schedule.weights() == [0, 0, 1]


def test_a_step_of_a_long_ramp_is_off_by_its_curve_and_its_end_is_exact():
    sampler = mixture([(0, WEIGHTS), ((0, 10**9), {"books": 1})], until=10**10)
    counts = sampler.counts(0, 10**9)
    assert counts["web"] == pytest.approx(0.35e9, abs=2)
    assert counts["books"] == pytest.approx(0.55e9, abs=2)


@pytest.mark.parametrize("weights", [{"web": 1, "code": 1}, WEIGHTS])
def test_no_rank_has_a_biased_share_whatever_the_number_of_ranks(weights):
    sampler = mixture([(0, weights)], until=48_000)
    total = sum(weights.values())
    for world_size in range(1, 25):
        plan = Plan(8_077, batch_size=1, world_size=world_size, sampler=sampler)
        steps = range(min(plan.num_steps, 2_000))
        for rank in {0, 1, world_size // 2, world_size - 1} - {world_size}:
            ids = plan.ids(0, plan.positions(0, steps, rank)[0])
            shares = np.bincount(datasets_of(ids, PARTS), minlength=3) / len(ids)
            wanted = [weights.get(name, 0) / total for name in PARTS]
            # Four standard deviations of as many independent draws.
            assert np.abs(shares - wanted).max() < 4 * 0.5 / np.sqrt(len(ids))


def test_the_kit_for_samplers_holds():
    changes = [(0, WEIGHTS), ((3_000, 6_000), {"books": 1}), (9_001, {"web": 1, "code": 1})]
    check_sampler(mixture(changes), ids=np.arange(8_077), repeats=True)
    batches = mixture(changes, kind=BatchMixtureSampler).for_global_batch(48)
    check_sampler(batches, ids=np.arange(8_077), repeats=True, process=False)


def test_each_dataset_keeps_its_own_order_and_epochs_however_it_is_mixed():
    ids = stream(mixture(seed=5), 3)
    which = datasets_of(ids, PARTS)
    for k, part in enumerate(PARTS.values()):
        own = ids[which == k]
        whole = len(own) // part.num_ids
        for epoch in range(whole):
            now = own[epoch * part.num_ids : (epoch + 1) * part.num_ids]
            assert len(np.unique(now)) == part.num_ids
    code = ids[which == 1] - 5_000
    sampler = PARTS["code"].sampler
    expected = [sampler.indices(e, np.arange(3_000)) for e in range(2)]
    assert np.array_equal(code[:6_000], np.concatenate(expected)[: len(code)])


def test_the_order_of_the_mapping_means_nothing_and_names_mean_everything():
    reordered = {name: PARTS[name] for name in ("books", "code", "web")}
    ids, others = stream(mixture()), stream(mixture(parts=reordered))
    starts, ends = {"web": 0, "code": 5_000, "books": 8_000}, np.array([77, 3_077, 8_077])
    number = np.searchsorted(ends, others, side="right")
    moved = others - np.array([0, 77, 3_077])[number]
    moved += np.array([starts[name] for name in reordered])[number]
    assert np.array_equal(ids, moved)
    assert mixture().past(5_000) == mixture(parts=reordered).past(5_000)
    renamed = {"www": PARTS["web"], "code": PARTS["code"], "books": PARTS["books"]}
    other = mixture([(0, {"www": 0.7, "code": 0.2, "books": 0.1})], renamed)
    with pytest.raises(StateError, match=r"datasets\.web: the state has .* this loader none"):
        DataOrder("f", other).read(DataOrder("f", mixture()).state(0, 5_000).to_dict())


def test_seeds_and_epochs_give_other_orders_of_the_same_shares():
    one, two = stream(mixture()), stream(mixture(seed=1))
    later = mixture().indices(1, np.arange(10_000))
    for other in (two, later):
        assert not np.array_equal(one, other)
        assert (one == other).mean() < 0.02


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0.01, 1)), min_size=1, max_size=8),
    st.sampled_from([1, 16, 256]),
)
def test_epochs_end_where_a_scan_says(datasets, block):
    parts = {f"{k}": MixturePart(size) for k, (size, _) in enumerate(datasets)}
    schedule = [(0, {f"{k}": weight for k, (_, weight) in enumerate(datasets)})]
    lengths = {
        until: mixture(schedule, parts, until=until, block=block).num_samples
        for until in ("first", "all")
    }
    twice = mixture(schedule, parts, until={"0": 2}, block=block).num_samples
    longest = max(*lengths.values(), twice)
    which = datasets_of(stream(mixture(schedule, parts, until=longest, block=block)), parts)
    whole = [
        int(np.flatnonzero(which == k)[size - 1]) + 1
        for k, (size, _) in enumerate(datasets)
        if (which == k).sum() >= size
    ]
    assert lengths == {"first": min(whole), "all": max(whole)}
    assert twice == np.flatnonzero(which == 0)[2 * datasets[0][0] - 1] + 1


def test_until_is_told_where_it_never_comes():
    gone = [(0, WEIGHTS), (1_024, {"web": 1})]
    with pytest.raises(ValueError, match="'code' never come once as a whole"):
        mixture(gone, until="all")
    with pytest.raises(ValueError, match="'code' never comes that often"):
        mixture(gone, until={"code": 1})
    assert mixture(gone, until="first").counts(0, 1_024)["books"] in range(100, 106)


def test_a_small_dataset_and_a_small_weight_are_exact():
    parts = {"one": MixturePart(1), "many": MixturePart(10**9)}
    ids = stream(mixture([(0, {"one": 1, "many": 1})], parts, until=10_240))
    assert (ids == 0).sum() == 5_120
    rare = mixture([(0, {"one": 1e-6, "many": 1 - 1e-6})], parts, until={"one": 1})
    assert 1 <= rare.num_samples <= 10**6
    assert rare.counts(10**6, 0)["one"] == pytest.approx(rare.num_samples, abs=2)
    alone = mixture([(0, {"many": 3})], {"many": MixturePart(1_000)}, until="all")
    assert sorted(stream(alone)) == list(range(1_000))
    never = mixture([(0, {"one": 0, "many": 1})], parts, until=1_000)
    assert 0 not in stream(never)


def test_a_position_far_out_costs_and_counts_as_any_other():
    sampler = mixture(until=10**13)
    far = 10**13 - 1
    assert sum(sampler.counts(0, far).values()) == far
    assert abs(sampler.counts(0, far)["web"] - 0.7 * far) < 30
    assert len(sampler.indices(3, np.array([far]))) == 1
    with pytest.raises(ValueError, match=r"beyond position 2\*\*62"):
        sampler.indices(2**20, np.array([0]))


def test_a_batch_is_of_one_dataset_on_all_ranks_and_any_number_of_them():
    sampler = mixture([(0, WEIGHTS), (1_000, {"books": 1})], kind=BatchMixtureSampler, until=2_000)
    plans = [Plan(8_077, batch_size=48 // w, world_size=w, sampler=sampler) for w in (1, 2, 3, 8)]
    assert {plan.num_samples for plan in plans} == {2_016}, "2,000 samples in whole batches"
    for step in range(plans[0].num_steps):
        batches = [
            np.concatenate([plan.indices(0, step, rank) for rank in range(plan.world_size)])
            for plan in plans
        ]
        assert all(np.array_equal(batches[0], batch) for batch in batches)
        number = np.unique(datasets_of(batches[0], PARTS))
        assert len(number) == 1
        if step * 48 >= 1_008:
            assert number == 2
    counts = plans[0].sampler.counts(0, 48 * 21 + 10)
    assert counts["books"] == 48 * 2 + 10
    divided = plans[1].divided(3)
    assert divided.global_batch_size == 72
    assert divided.sampler.spec()["global_batch_size"] == 72


def state_of(sampler, epoch, position):
    state = json.loads(json.dumps(DataOrder("f", sampler).state(epoch, position).to_dict()))
    assert len(json.dumps(state)) < 1024
    return state


def test_a_state_from_before_a_change_loads_and_one_from_after_it_does_not():
    old, later = [(0, WEIGHTS)], [(0, WEIGHTS), (5_000, {"web": 1, "new": 1})]
    grown = {**PARTS, "new": MixturePart(500, "n")}
    before, after = mixture(old), mixture(later, grown)
    assert DataOrder("g", after).read(state_of(before, 0, 5_120)).position == 5_120
    assert DataOrder("f", before).read(state_of(after, 0, 5_120)).position == 5_120
    with pytest.raises(StateError) as error:
        DataOrder("f", before).read(state_of(after, 0, 5_121))
    assert "taken after 5121 samples" in str(error.value)
    assert "weights.from 5120: the state has {'new': 0.5, 'web': 0.5}, this loader none" in str(
        error.value
    )
    with pytest.raises(StateError, match=r"this loader \{'new'"):
        DataOrder("g", after).read(state_of(before, 0, 5_121))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"seed": 1}, "seed: the state has 0, this loader 1"),
        ({"block": 128}, "block: the state has 256, this loader 128"),
        ({"schedule": [(0, {**WEIGHTS, "web": 0.6})]}, r"weights\.from 0\.web: the state has 0.7"),
        ({"parts": {**PARTS, "web": MixturePart(5_000, "z")}}, r"datasets\.web"),
        ({"kind": BatchMixtureSampler}, "per: the state has 'sample', this loader 'batch'"),
    ],
)
def test_a_state_of_another_mixture_is_refused_with_what_differs(other, told):
    with pytest.raises(StateError, match=told):
        DataOrder("f", mixture(**other)).read(state_of(mixture(), 0, 5_000))


def test_a_state_goes_on_at_the_same_sample_in_epochs_of_another_length():
    loaded = DataOrder("f", mixture(until=3_000)).read(state_of(mixture(), 1, 500))
    assert (loaded.epoch, loaded.position) == (3, 1_500)
    assert mixture(until=3_000).indices(3, np.array([1_500])) == mixture().indices(
        1, np.array([500])
    )


def test_states_of_many_datasets_and_many_changes_stay_under_a_kilobyte():
    parts = {f"dataset-{k:03}": MixturePart(100 + k) for k in range(300)}
    schedule = [(k * 256, dict.fromkeys(parts, 1) | {"dataset-007": k + 1}) for k in range(40)]
    sampler, shorter = mixture(schedule, parts), mixture(schedule[:20], parts)
    state = state_of(sampler, 0, 19 * 256 + 1)
    assert DataOrder("f", shorter).read(state).position == 19 * 256 + 1
    with pytest.raises(StateError, match="weights: the state has"):
        DataOrder("f", shorter).read(state_of(sampler, 0, 9_000))


def test_a_mixture_in_a_mixture_goes_through_its_own_epochs_and_may_grow():
    inner, grown = (
        mixture(changes, until=900)
        for changes in ([(0, WEIGHTS)], [(0, WEIGHTS), (2_560, {"books": 1})])
    )
    outers = [
        mixture([(0, {"in": 1, "out": 3})], {"in": MixturePart(8_077, "i", s), "out": PARTS["web"]})
        for s in (inner, grown)
    ]
    ids = stream(outers[0])
    mine = ids[ids < 8_077]
    assert np.array_equal(mine, stream(inner, 3)[: len(mine)])
    facts = outers[0].sources(0, 4_096)
    assert facts["in"]["samples"] == 1_024
    assert facts["in/web"]["samples"] == inner.counts(1, 124)["web"]
    assert DataOrder("f", outers[1]).read(state_of(outers[0], 0, 9_000)).position == 9_000
    with pytest.raises(StateError, match=r"datasets\.in"):
        DataOrder("f", outers[1]).read(state_of(outers[0], 1, 9_000))


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ([], "give weights from position 0"),
        ([(5, WEIGHTS)], "first weights begin at position 0"),
        ([((0, 5), WEIGHTS)], "without a ramp"),
        ([(0, WEIGHTS), (0, WEIGHTS)], "must ascend"),
        ([(0, WEIGHTS), ((9, 9), WEIGHTS)], "must end behind its start"),
        ([(0, WEIGHTS), ((1, 9), WEIGHTS), (5, WEIGHTS)], "must not overlap"),
        ([(0, {"wbe": 1})], "'wbe', the datasets are 'web', 'code'"),
        ([(0, {"web": -1})], "a finite number of 0 or more"),
        ([(0, {"web": float("nan")})], "a finite number"),
        ([(0, {"web": float("inf")})], "a finite number"),
        ([(0, {"web": 0})], "all weights are 0"),
        ([(0, {})], "all weights are 0"),
        ([(0, WEIGHTS), (2**62, WEIGHTS)], "beyond 2"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused(schedule, told):
    with pytest.raises(ValueError, match=told):
        parse_schedule(schedule, tuple(PARTS))


@pytest.mark.parametrize(
    "schedule", [None, 5, "x", {}, [5], [(0,)], [("a", WEIGHTS)], [(0, 3)], [(0, {"web": "1"})]]
)
def test_a_schedule_of_the_wrong_kind_is_a_type_error(schedule):
    with pytest.raises(TypeError):
        parse_schedule(schedule, tuple(PARTS))


def test_changes_and_ramps_within_one_block_are_as_if_the_last_had_come_alone():
    close = [(0, WEIGHTS), ((10, 20), {"code": 1}), (30, {"books": 1}), (40, {"web": 1})]
    sampler = mixture(close)
    assert sampler.schedule.starts() == [0, 256, 512]
    which = datasets_of(stream(sampler), PARTS)
    assert (which[512:] == 0).all()
