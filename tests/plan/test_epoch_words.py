"""What an epoch must come to: closed forms, walks, and what is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.plan import (
    FullSampler,
    Plan,
    Sampler,
    SequentialSampler,
    VirtualEpochs,
    WeightedSampler,
    WindowSampler,
)
from shardwise.plan.id_word import (
    MODULUS,
    IdWord,
    Tallied,
    dropped_samples,
    epoch_samples,
    planned_samples,
)
from shardwise.plan.protocol import epoch_parts
from shardwise.plan.sampler import sampler_from_spec

SIZES = np.array([3, 0, 40, 10, 7])
SAMPLERS: list[Sampler] = [
    SequentialSampler(60),
    FullSampler(60, seed=3),
    WindowSampler(SIZES, window=4, lanes=3),
    VirtualEpochs(FullSampler(20, seed=1), 60),
    VirtualEpochs(FullSampler(30), 30),
    WeightedSampler(np.arange(60) + 1, replacement=False),
    WeightedSampler(np.arange(60), replacement=False),
]
WALKED: list[Sampler] = [
    VirtualEpochs(FullSampler(60), 25),
    VirtualEpochs(FullSampler(60), 90),
    VirtualEpochs(WeightedSampler(np.arange(60), num_samples=9), 18),
    WeightedSampler(np.arange(60)),
    WeightedSampler(np.arange(60), num_samples=58, replacement=False),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_the_ids_that_a_sampler_names_are_those_of_its_epoch(sampler: Sampler, epoch: int) -> None:
    parts = epoch_parts(sampler, epoch)
    assert parts is not None
    named = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    ids = sampler.indices(epoch, np.arange(sampler.num_samples))
    assert np.array_equal(np.sort(named), np.sort(ids))
    word = IdWord("a", epoch)
    assert epoch_samples(sampler, epoch, word) == Tallied(len(ids), word.of(ids))


def test_samplers_without_a_closed_form_say_so() -> None:
    for sampler in WALKED:
        assert epoch_samples(sampler, 1, IdWord("a", 1)) is None


@given(
    sampler=st.sampled_from(SAMPLERS + WALKED),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 9),
    remainder=st.sampled_from(["drop", "pad", "uneven"]),
    share=st.floats(0, 1),
)
@settings(max_examples=80)
def test_the_ranks_parts_add_up_to_the_rest_of_the_epoch(
    sampler: Sampler, batch_size: int, world_size: int, remainder: Any, share: float
) -> None:
    start, word = int(sampler.num_samples * share), IdWord("a", 2)
    plan = Plan(
        60,
        sampler=sampler,
        batch_size=batch_size,
        world_size=world_size,
        remainder=remainder,
        start=start,
    )
    steps = range(plan.num_steps)
    parts = [planned_samples(plan, 2, steps, rank, word) for rank in range(world_size)]
    parts.append(dropped_samples(plan, 2, word))
    rest = sampler.indices(2, np.arange(start, sampler.num_samples))
    assert sum(part.count for part in parts) == len(rest)
    assert sum(part.word for part in parts) % MODULUS == word.of(rest)


@pytest.mark.parametrize("sampler", [*SAMPLERS[:3], VirtualEpochs(SAMPLERS[2], 25)], ids=repr)
def test_a_sampler_is_made_anew_from_its_description(sampler: Sampler) -> None:
    again = sampler_from_spec(sampler.spec(), SIZES)
    assert again is not None
    positions = np.arange(sampler.num_samples)
    assert np.array_equal(again.indices(3, positions), sampler.indices(3, positions))


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"sampler": "mine"},
        {"sampler": "full"},
        {"sampler": "full", "num_samples": "9", "seed": 0},
        {"sampler": "virtual epochs", "inner": 3},
        WeightedSampler([1]).spec(),
        WindowSampler([3, 0, 41, 10, 6], window=4, lanes=3).spec(),  # of other shards
    ],
)
def test_other_descriptions_make_no_sampler(order: dict[str, Any]) -> None:
    assert sampler_from_spec(order, SIZES) is None
