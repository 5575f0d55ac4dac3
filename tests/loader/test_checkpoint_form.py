"""`torch.distributed.checkpoint` loads any state at any position, by any number of ranks."""

from __future__ import annotations

import importlib
import json
import warnings
from itertools import islice
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import StateError
from tests.support.properties import examples

# A guard of integrations knows that DCP asks.
pytestmark = pytest.mark.extension

_A, _B = (sw.wrap([{"x": i} for i in range(count)]) for count in (90, 40))
_LENGTHS = np.arange(90) % 7 + 1
_DOCUMENTS = sw.wrap([{"tokens": np.arange(n % 5 + 1)} for n in range(90)])


def _mix(**options):
    return sw.mix({"a": (_A, 0.7), "b": (_B, 0.3)}, **options)


_SCHEDULE = [(0, {"a": 1.0}), (64, {"a": 0.5, "b": 0.5})]
_ORDERS = {
    "plain": lambda: (_A, {"shuffle": True}),
    "in order": lambda: (_A, {}),
    "epoch_size": lambda: (_A, {"shuffle": True, "epoch_size": 40}),
    "buckets": lambda: (_A, {"shuffle": True, "batch_by": sw.buckets(_LENGTHS)}),
    "budget": lambda: (_A, {"shuffle": True, "batch_by": sw.buckets(_LENGTHS, budget=30)}),
    "weighted": lambda: (_A, {"sampler": sw.WeightedSampler(np.ones(90), seed=1)}),
    "packs": lambda: (sw.pack(_DOCUMENTS, length=8, progress=False), {"shuffle": True}),
    "mixture": lambda: (_mix(), {}),
    "of batches": lambda: (_mix(per="batch", until=96), {}),
    "mixture in buckets": lambda: (
        sw.mix({"a": (_A, 0.7), "b": (_B, 0.3)}, until=96),
        {"batch_by": sw.buckets(np.arange(130) % 7 + 1)},
    ),
    "schedule": lambda: (sw.mix({"a": _A, "b": _B}, schedule=_SCHEDULE, until=96), {}),
    "nested": lambda: (sw.mix({"outer": (_mix(), 0.5), "c": (_A, 0.5)}, until=96), {}),
    "many": lambda: (sw.mix({f"{'n' * 20}{i}": (_A, 1 / (i + 1)) for i in range(40)}), {}),
}


def loader_of(order: str, rank: int, world_size: int) -> sw.DataLoader:
    data, options = _ORDERS[order]()
    batch_size = 12 // world_size  # a mixture of batches is one of global batches
    if "batch_by" in options and options["batch_by"].budget is not None:
        batch_size = 64
    return sw.DataLoader(
        data,
        batch_size,
        rank=rank,
        world_size=world_size,
        num_threads=0,
        remainder="drop",
        output="numpy",
        **options,
    )


@pytest.fixture(scope="module")
def checkpoint():
    """torch's distributed checkpoints: an import of 2 s, for the process that has these tests."""
    return importlib.import_module("torch.distributed.checkpoint")


@pytest.mark.parametrize("order", _ORDERS)
@given(position=st.integers(0, 9), behind=st.integers(0, 9), ranks=st.sampled_from([1, 2, 3]))
@settings(max_examples=examples(10), deadline=None)
def test_a_checkpoint_is_loaded_at_any_position_by_any_number_of_ranks(
    checkpoint, order, position, behind, ranks
):
    with warnings.catch_warnings(), TemporaryDirectory() as directory:
        warnings.simplefilter("ignore")
        saved = loader_of(order, 0, 2)
        for _ in islice(saved, position):
            pass
        checkpoint.save({"loader": saved}, checkpoint_id=directory, no_dist=True)
        for rank in range(ranks):
            # The loader that loads stands elsewhere, so that its own state has another shape.
            loaded = loader_of(order, rank, ranks)
            for _ in islice(loaded, behind):
                pass
            checkpoint.load({"loader": loaded}, checkpoint_id=directory, no_dist=True)
            wanted = loader_of(order, rank, ranks)
            wanted.load_state_dict(json.loads(json.dumps(saved.state_dict())))
            assert loaded.state_dict() == wanted.state_dict()
            assert [b["__key__"] for b in islice(loaded, 2)] == [
                b["__key__"] for b in islice(wanted, 2)
            ]


class Program:
    """A `Stateful` of the program's around a loader, which reads the loader's state."""

    def __init__(self, loader):
        self.loader = loader
        self.step = 0

    def state_dict(self):
        state = self.loader.state_dict()
        return {"loader": state, "step": self.step, "epoch": state["epoch"]}

    def load_state_dict(self, state):
        self.step = state["step"]
        self.loader.load_state_dict(state["loader"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_state_of_a_mixture_is_loaded_through_a_stateful_of_the_programs(checkpoint, tmp_path):
    first, second = (Program(loader_of("mixture", 0, 1)) for _ in range(2))
    first.step = len(list(islice(first.loader, 3)))
    checkpoint.save({"program": first}, checkpoint_id=tmp_path, no_dist=True)
    checkpoint.load({"program": second}, checkpoint_id=tmp_path, no_dist=True)
    assert second.step == 3
    assert second.loader.state_dict() == first.loader.state_dict()
    assert second.loader.state_dict()["position"] == 36


def test_outside_of_a_checkpoint_a_state_has_the_entries_that_it_always_had():
    loader = loader_of("mixture", 0, 1)
    assert {"version", "epoch", "position", "fingerprint", "num_samples", "order"} <= set(
        loader.state_dict()
    )
    assert isinstance(loader.state_dict()["order"], dict)


def test_a_leaf_that_is_damaged_is_a_state_error():
    with pytest.raises(StateError, match="is no JSON"):
        loader_of("plain", 0, 1).load_state_dict({"json": "{"})
