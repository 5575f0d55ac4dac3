"""The loader's state: small, JSON, checked on the way in, and a diff where it does not belong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import StateError
from shardwise.plan import (
    DataOrder,
    FullSampler,
    LoaderState,
    VirtualEpochs,
    WindowSampler,
)
from shardwise.plan.left_out import Excluded

# Written by release 0.1: it must be readable for ever.
GOLDEN = """{"version": 1, "epoch": 3, "position": 1024, "fingerprint": "0123456789abcdef",
"num_samples": 50000, "order": {"sampler": "full", "num_samples": 50000, "seed": 7}}"""


def a_state(**change: Any) -> LoaderState:
    values: dict[str, Any] = {
        "epoch": 3,
        "position": 1024,
        "fingerprint": "0123456789abcdef",
        "num_samples": 50_000,
        "order": FullSampler(50_000, seed=7).spec(),
    }
    return LoaderState(**(values | change))


def test_a_state_of_the_first_release_is_read_and_written() -> None:
    state = LoaderState.from_dict(json.loads(GOLDEN))
    assert state == a_state()
    assert state.to_dict() == json.loads(GOLDEN)


def test_a_state_carries_the_run_that_took_it() -> None:
    state = a_state(run="20261128T053541-24fba5c5")
    assert state.to_dict() == json.loads(GOLDEN) | {"run": "20261128T053541-24fba5c5"}
    assert LoaderState.from_dict(state.to_dict()) == state
    with pytest.raises(StateError, match="run must be a string, not 7"):
        LoaderState.from_dict(state.to_dict() | {"run": 7})


@given(
    epoch=st.integers(0, 2**63),
    n=st.integers(0, 2**62),
    share=st.fractions(0, 1),
    fingerprint=st.text(),
    seed=st.integers(),
)
def test_a_state_survives_json(epoch: int, n: int, share: Any, fingerprint: str, seed: int) -> None:
    state = LoaderState(epoch, int(n * share), fingerprint, n, {"seed": seed})
    assert LoaderState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


OPTIONAL = {"run", "excluded", "skipped"}


def test_a_state_is_under_a_kilobyte_for_any_sampler_of_ours() -> None:
    window = WindowSampler(np.full(10_000, 100_000), seed=2**62)
    inner = VirtualEpochs(sw.WeightedSampler(np.ones(10**6), seed=2**62), 10**6)
    for sampler in (window, inner):
        for ids in (np.arange(39), np.arange(10**6)):
            order = DataOrder("f" * 16, sampler, Excluded(ids, (10**6, 10**9)))
            skipped = [[10**6, 10**9, 10**9]] * 4
            state = order.state(10**6, 10**6, run="20260101T000000-01234567", skipped=skipped)
            assert len(json.dumps(state.to_dict())) < 1024


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 3}, "version 3, this release reads 1 and 2"),
        ({"excluded": [1]}, "record of what was left out is damaged"),
        ({"skipped": [[0, 1]]}, "record of what was left out is damaged"),
        ({"skipped": 5}, "record of what was left out is damaged"),
        ({"version": None}, "version None"),
        ({"epoch": -1}, "epoch must be a whole number from 0 on, not -1"),
        ({"epoch": 1.0}, "epoch .* not 1.0"),
        ({"epoch": True}, "epoch .* not True"),
        ({"position": "5"}, "position .* not '5'"),
        ({"position": 50_001}, "position 50001 .* 50000 samples"),
        ({"num_samples": None}, "num_samples .* not None"),
        ({"fingerprint": 5}, "fingerprint must be a string, not 5"),
        ({"order": [1]}, r"order must be a dict with string keys, not \[1\]"),
        ({"order": {1: 2}}, "order must be a dict with string keys"),
    ],
)
def test_a_malformed_state_is_refused_by_name_and_value(change: dict[str, Any], match: str) -> None:
    with pytest.raises(StateError, match=match):
        LoaderState.from_dict(a_state().to_dict() | change)


@pytest.mark.parametrize("name", sorted({"version", *LoaderState.__dataclass_fields__} - OPTIONAL))
def test_a_missing_entry_is_named(name: str) -> None:
    state = a_state().to_dict()
    del state[name]
    with pytest.raises(StateError, match=f"no '{name}'"):
        LoaderState.from_dict(state)


@pytest.mark.parametrize("state", [None, [], "state", 5])
def test_something_else_than_a_dict_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="must be a dict"):
        LoaderState.from_dict(state)


def test_a_state_of_the_same_data_and_order_is_accepted() -> None:
    a_state().check("0123456789abcdef", 50_000, FullSampler(50_000, seed=7).spec())


@pytest.mark.parametrize(
    ("state", "other", "lines"),
    [
        (
            a_state(),
            a_state(fingerprint="f" * 16, num_samples=9, order=FullSampler(9, seed=4).spec()),
            [
                "fingerprint: the state has '0123456789abcdef', this loader 'ffffffffffffffff'",
                "num_samples: the state has 50000, this loader 9",
                "seed: the state has 7, this loader 4",
            ],
        ),
        (
            a_state(order={"sampler": "full", "seed": 7}),
            a_state(order={"sampler": "window", "seed": 7, "lanes": 1}),
            [
                "sampler: the state has 'full', this loader 'window'",
                "lanes: the state has none, this loader 1",
            ],
        ),
        (
            a_state(order=VirtualEpochs(FullSampler(50_000, seed=7), 100).spec()),
            a_state(order=VirtualEpochs(FullSampler(50_000, seed=4), 100).spec()),
            ["inner.seed: the state has 7, this loader 4"],
        ),
    ],
)
def test_every_entry_that_differs_has_a_line_and_no_other(
    state: LoaderState, other: LoaderState, lines: list[str]
) -> None:
    with pytest.raises(StateError) as caught:
        state.check(other.fingerprint, other.num_samples, other.order)
    told = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert told == [f"  {line}" for line in lines]


def test_a_state_of_other_lanes_says_how_to_go_on_with_it() -> None:
    sizes = np.full(40_000, 200)
    old, new = WindowSampler(sizes, seed=7, lanes=1024), WindowSampler(sizes, seed=7)
    state = a_state(num_samples=8_000_000, order=old.spec())
    with pytest.raises(sw.StateError) as caught:
        state.check(state.fingerprint, 8_000_000, new.spec())
    message = str(caught.value)
    assert "lanes: the state has 1024, this loader 2048" in message
    assert "WindowSampler(ds.shard_sizes, seed=7, lanes=1024, window=128)" in message
    state.check(state.fingerprint, 8_000_000, WindowSampler(sizes, seed=7, lanes=1024).spec())
    other = WindowSampler(sizes, seed=8)
    with pytest.raises(sw.StateError, match="start without it"):
        state.check(state.fingerprint, 8_000_000, other.spec())
    with pytest.raises(sw.StateError, match="stands for the data") as caught:
        state.check("f" * 16, 8_000_000, old.spec())
    assert "sampler=" not in str(caught.value)
