"""Tensors in batches of any form: found, changed, and all else left as it is."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from shardwise.tensors.convert import change_tensors, pinned
from shardwise.tensors.device import DirectCopier

META = DirectCopier(torch.device("meta"))
Pair = namedtuple("Pair", "image label")


@dataclass(frozen=True, slots=True)
class Sealed:
    image: torch.Tensor
    name: str


class Graphs:
    """An object that moves itself, as a batch of graphs does."""

    def __init__(self, edges, notes=()):
        self.edges, self.notes = edges, [*notes]

    def to(self, device, non_blocking=False):
        return Graphs(self.edges.to(device), [*self.notes, f"non_blocking={non_blocking}"])

    def pin_memory(self):
        return Graphs(self.edges, [*self.notes, "pinned"])


class Encoding(UserDict):
    """As Hugging Face's: a mapping whose `to` takes a device alone."""

    def to(self, device):
        return Encoding({name: value.to(device) for name, value in self.items()})


def moved(value):
    return META.end(META.begin(value))


@pytest.mark.parametrize(
    ("value", "tensor_of"),
    [
        (torch.ones(2), lambda v: v),
        ([torch.ones(2), "a"], lambda v: v[0]),
        ((1, [torch.ones(2)]), lambda v: v[1][0]),
        (Pair(torch.ones(2), 3), lambda v: v.image),
        (OrderedDict(a=1, b=torch.ones(2)), lambda v: v["b"]),
        (UserDict(b=torch.ones(2)), lambda v: v["b"]),
        (Sealed(torch.ones(2), "x"), lambda v: v.image),
        ({"deep": [Sealed(torch.ones(2), "x")]}, lambda v: v["deep"][0].image),
        (Graphs(torch.ones(2)), lambda v: v.edges),
        ([Encoding(ids=torch.ones(2))], lambda v: v[0]["ids"]),
        (pack_sequence([torch.ones(3), torch.ones(2)]), lambda v: v.data),
    ],
    ids=lambda v: type(v).__name__,
)
def test_tensors_in_containers_and_objects_move_and_the_source_stays(value, tensor_of):
    there = moved(value)
    assert type(there) is type(value)
    assert tensor_of(there).device.type == "meta"
    assert tensor_of(value).device.type == "cpu"


def test_objects_that_can_are_asked_not_to_block_and_others_are_moved_all_the_same():
    assert moved(Graphs(torch.ones(1))).notes == ["non_blocking=True"]
    assert moved({"e": Encoding(ids=torch.ones(1))})["e"]["ids"].device.type == "meta"


def test_a_packed_sequence_keeps_its_lengths_on_the_host():
    there = moved({"text": pack_sequence([torch.ones(3), torch.ones(2)])})["text"]
    assert isinstance(there, PackedSequence)
    assert there.batch_sizes.device.type == "cpu"


@pytest.mark.parametrize(
    "value",
    [["a", 1, None], {"a": [1.5]}, np.ones(3), Pair(1, 2), "text", Sealed, {1, 2}, (), []],
    ids=repr,
)
def test_what_holds_no_tensor_stays_the_very_same_object(value):
    assert moved(value) is value


def test_tensors_are_pinned_where_they_are_and_objects_by_their_own_method(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: t + 1)
    there = torch.ones(2, device="meta")
    batch = pinned({"x": [torch.zeros(1)], "graphs": Graphs(torch.zeros(1)), "there": there})
    assert batch["x"][0].item() == 1
    assert batch["graphs"].notes == ["pinned"]
    assert batch["there"] is there


def test_the_order_and_the_other_entries_of_a_dict_stay():
    value = OrderedDict(b=1, a=torch.ones(1), c=[2])
    new = change_tensors(value, lambda t: t * 2, method="no_such", change_object=None)
    assert list(new) == ["b", "a", "c"]
    assert new["c"] is value["c"]
    assert new["a"].item() == 2
