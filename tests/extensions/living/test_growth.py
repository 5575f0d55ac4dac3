"""Shards come behind those of a state: the epoch under way ends without them, the next has all."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import shardwise as sw
from shardwise.base.errors import StateError
from shardwise.dataset import Dataset
from shardwise.extensions.certify.command import certified
from tests.support.memory_source import MemorySource, numbered_samples

OLD, NEW = [9, 0, 8], [6, 5]
OPTIONS: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3, "remainder": "uneven"}


def data(sizes: list[int], name: str = "set") -> Dataset:
    return Dataset(MemorySource(numbered_samples(sum(sizes)), sizes, name=name))


def loader(sizes: list[int], *, rank: int = 0, world_size: int = 1, **more: Any) -> sw.DataLoader:
    fixed = {"executor": "inline", "output": "numpy", "rank": rank, "world_size": world_size}
    return sw.DataLoader(data(sizes), **{**OPTIONS, **fixed, **more})


def iterable(num_workers: int) -> Callable[..., Any]:
    def make(sizes: list[int]) -> Any:
        it = sw.torch.IterableDataset(data(sizes), **OPTIONS)
        return sw.torch.StatefulDataLoader(it, batch_size=None, num_workers=num_workers)

    return make


def batches(sizes: list[int]) -> Any:
    sampler = sw.torch.BatchSampler(data(sizes), **OPTIONS)
    return sw.torch.StatefulDataLoader(
        range(sum(sizes)), batch_sampler=sampler, collate_fn=_index_of
    )


def singles(sizes: list[int]) -> Any:
    sampler = sw.torch.DistributedSampler(data(sizes), 1, 0, seed=3)
    return sw.torch.StatefulDataLoader(
        range(sum(sizes)), batch_size=2, sampler=sampler, collate_fn=_index_of
    )


def _index_of(samples: list[int]) -> dict[str, Any]:
    return {"__index__": samples}


def ids_of(found: Any, most: int | None = None) -> list[int]:
    ids: list[int] = []
    for number, batch in enumerate(found, 1):
        ids += [int(i) for i in batch["__index__"]]
        if number == most:
            break
    return ids


def test_every_step_and_world_size_ends_the_old_epoch_and_begins_one_of_all() -> None:
    for num_steps in range(10):
        old = loader(OLD)
        before = ids_of(old, num_steps) if num_steps else []
        state, rest, following = old.state_dict(), [], []
        for rank in range(3):
            grown = loader(OLD + NEW, rank=rank, world_size=3, batch_size=1)
            grown.load_state_dict(state, grown="next_epoch")
            if 0 < num_steps < 9:
                assert len(grown) == 6
                rest += ids_of(grown)
            following += ids_of(pickle.loads(pickle.dumps(grown)))
        assert sorted(following) == list(range(28))
        if 0 < num_steps < 9:
            assert sorted(before + rest) == list(range(17))


@pytest.mark.filterwarnings("ignore:epoch 0 is read again")
@pytest.mark.parametrize(
    "make", [iterable(0), iterable(2), batches, singles],
    ids=["iterable", "workers", "batches", "singles"],
)  # fmt: skip
def test_torch_loaders_take_states_of_less_data(make: Callable[..., Any]) -> None:
    old, grown = make(OLD), make(OLD + NEW)
    before, state = ids_of(old, 4), old.state_dict()
    with pytest.raises(StateError, match="pass grown='next_epoch'"):
        grown.load_state_dict(state)
    grown.load_state_dict(state, grown="next_epoch")
    some = ids_of(grown, 2)
    state = grown.state_dict()
    # The pass that was left is read again, from where it began.
    assert sorted(before + ids_of(grown)) == list(range(17))
    again = make(OLD + NEW)
    again.load_state_dict(state, grown="next_epoch")
    assert sorted(before + some + ids_of(again)) == list(range(17))
    assert sorted(ids_of(again)) == list(range(28))
    state = again.state_dict()
    make(OLD + NEW).load_state_dict(state)  # of all data


def test_states_of_the_old_epoch_load_again_and_later_ones_need_no_word() -> None:
    old = loader(OLD)
    before = ids_of(old, 3)
    grown = loader(OLD + NEW)
    grown.load_state_dict(old.state_dict(), grown="next_epoch")
    before += ids_of(grown, 2)
    state = grown.state_dict()
    assert state["num_samples"] == 17
    most = loader([*OLD, *NEW, 4])  # it grew again
    most.load_state_dict(state, grown="next_epoch")
    most.regroup(0, 1)
    assert sorted(before + ids_of(most)) == list(range(17))
    assert most.state_dict()["num_samples"] == 32
    loader([*OLD, *NEW, 4]).load_state_dict(most.state_dict(), grown="next_epoch")
    loader([*OLD, *NEW, 4]).load_state_dict(most.state_dict())
    most.regroup(0, 1)
    assert sorted(ids_of(most)) == list(range(32))


def test_new_samples_have_no_place_in_the_old_epoch() -> None:
    old = loader(OLD)
    ids_of(old, 3)
    grown = loader(OLD + NEW)
    grown.load_state_dict(old.state_dict(), grown="next_epoch")
    assert [epoch for epoch, *_ in grown.places_of(20, epochs=range(3))] == [1, 2]
    assert [epoch for epoch, *_ in grown.places_of(5, epochs=range(3))] == [0, 1, 2]
    assert (
        grown.explain(0, epoch=1).ids.tolist() == loader(OLD + NEW).explain(0, epoch=1).ids.tolist()
    )


def test_a_facade_takes_the_word_too() -> None:
    old = loader(OLD, output="torch")
    ids_of(old, 3)
    facade: DataLoader[Any] = loader(OLD + NEW, output="torch").as_torch_dataloader()
    facade.load_state_dict(old.state_dict(), grown="next_epoch")  # type: ignore[attr-defined]
    assert len(facade) == 9


def test_coverage_proves_the_epochs_before_and_after(tmp_path: Path) -> None:
    old = loader(OLD, coverage=tmp_path)
    ids_of(old, 4)
    state = old.state_dict()
    del old
    grown = loader(OLD + NEW, coverage=tmp_path)
    grown.load_state_dict(state, grown="next_epoch")
    ids_of(grown)
    assert grown.certificate()["ok"]
    ids_of(grown)
    assert "every one of 28 samples exactly once" in grown.certificate()["verdict"]
    document = certified(tmp_path, data(OLD + NEW))
    assert document["ok"], document
    verdicts = [epoch["verdict"] for order in document["orders"] for epoch in order["epochs"]]
    assert sorted(verdicts) == [
        "epoch 0: every one of 17 samples exactly once",
        "epoch 1: every one of 28 samples exactly once",
    ]


def test_what_can_not_grow_says_so() -> None:
    old = loader(OLD)
    ids_of(old, 3)
    state = old.state_dict()
    reason = "no first shards of this dataset have the state's 17 samples"
    for other in (
        data([*NEW, *OLD]),
        data([10, 0, 8, 5]),
        data(OLD + NEW, name="other").subset(range(28)),
        data(OLD + NEW).subset(range(28)),
        sw.wrap(range(28)),
        sw.mix({"a": (data(OLD + NEW), 1.0)}),
    ):
        more = {} if other.sampler is None else {"shuffle": False, "seed": 0}
        grown = sw.DataLoader(other, **{**OPTIONS, **more}, executor="inline")
        with pytest.raises(StateError, match=reason):
            grown.load_state_dict(state, grown="next_epoch")
    with pytest.raises(ValueError, match="grown='next'"):
        loader(OLD + NEW).load_state_dict(state, grown="next")  # type: ignore[arg-type]
    with pytest.raises(StateError, match="data grow in storage order"):
        loader(OLD + NEW, seed=4).load_state_dict(state, grown="next_epoch")
    loader(OLD).load_state_dict(state, grown="next_epoch")  # nothing came
    full = loader(OLD, shuffle="full")
    ids_of(full, 3)
    odd = {**full.state_dict(), "order": {"sampler": "full", "num_samples": 10**30, "seed": 3}}
    with pytest.raises(StateError, match="data grow in storage order"):
        loader(OLD + NEW, shuffle="full").load_state_dict(odd, grown="next_epoch")


def test_more_samples_than_the_state_had_in_an_old_shard_are_other_data() -> None:
    state = loader([3]).state_dict()
    with pytest.raises(StateError, match="no first shards"):
        loader([4]).load_state_dict(state, grown="next_epoch")
