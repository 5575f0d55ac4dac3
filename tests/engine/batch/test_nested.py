"""Nested dicts and tuples collate as torch's default_collate does, under every executor."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import shardwise as sw
from shardwise.testing import assert_batches_equal

Box = namedtuple("Box", "x y")


def item(i):
    return {
        "x": torch.full((2,), float(i)),
        "target": {"boxes": np.full((2, 4), i), "label": i, "deep": {"area": float(i), "ok": True}},
        "pair": (i, torch.tensor([i, i]), {"name": f"n{i}"}),
        "box": Box(i, np.float32(i)),
        "ids": [i, i + 1, i + 2],
    }


def plain(value):
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        entries = [plain(each) for each in value]
        return entries if type(value) in (list, tuple) else type(value)(*entries)
    return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("how", ["wrapped", "mapped"])
def test_nested_values_are_those_of_default_collate(how):
    items = [item(i) for i in range(6)]
    data = (
        sw.wrap(items)
        if how == "wrapped"
        else sw.wrap(list(range(6))).map(
            lambda sample: {"__key__": sample["__key__"], **item(sample["value"])}
        )
    )
    loader = sw.DataLoader(data, 3, num_threads=0)
    for number, batch in enumerate(loader):
        wanted = default_collate(items[number * 3 : number * 3 + 3])
        # torch gives a column for each place of a list of numbers.
        wanted["ids"] = torch.stack(wanted["ids"], dim=1)
        assert plain({name: batch[name] for name in wanted}) == plain(wanted)


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_executors_agree_on_nested_values(ragged):
    target = [{"b": np.arange(i % 4), "k": (i, "t")} for i in range(40)]
    items = [{"target": target[i], "pair": (i, np.ones(90) * i, {"n": "x"})} for i in range(40)]
    wanted = None
    for options in ({"executor": "inline"}, {"num_threads": 2}, {"num_workers": 2}):
        with sw.DataLoader(
            sw.wrap(items), 16, output="numpy", ragged=ragged, remainder="uneven", **options
        ) as loader:
            batches = list(loader)
        wanted = wanted or batches
        assert_batches_equal(wanted, batches, at=str(options))
    assert isinstance(wanted[0]["target"]["k"], tuple)
    assert ("target.b.mask" in wanted[0]) == (ragged == "pad")
    assert isinstance(wanted[0]["target"]["b"], list) == (ragged == "list")


def test_dicts_of_other_keys_and_values_of_shards_stay_lists(tmp_path):
    [batch] = sw.DataLoader(sw.wrap([{"t": {"a": 1}}, {"t": {"b": 2}}]), 2, num_threads=0)
    assert batch["t"] == [{"a": 1}, {"b": 2}]
    with sw.TarWriter(str(tmp_path / "{shard}.tar"), max_samples=9) as writer:
        for i in range(2):
            writer.write({"__key__": str(i), "json": {"width": i}})
    [batch] = sw.DataLoader(sw.tar(str(tmp_path)).decode(json=sw.json()), 2, num_threads=0)
    assert batch["json"] == [{"width": 0}, {"width": 1}]


def test_a_batch_without_rows_has_the_same_form():
    loaders = [
        sw.DataLoader(
            sw.wrap([item(i) for i in range(5)]), 2, rank=rank, world_size=2, num_threads=0
        )
        for rank in (0, 1)
    ]
    [full, *_], [_, empty] = (list(loader) for loader in loaders)
    assert len(empty["__index__"]) == 0
    assert empty["target"]["deep"]["area"].shape == (0,)
    assert empty["target"]["boxes"].shape == (0, 2, 4)
    assert empty.keys() == full.keys()
    assert len(empty["pair"]) == 3
    assert empty["pair"][2] == {"name": []}
