"""Tensors in messages between processes: exact in every form, and not copied by the receiver."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import torch

import shardwise as sw
from shardwise.engine.processes.transport import message_slots, pack, receive, send


def passed(value):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        send(ours, pack(value, message_slots()))
        return receive(theirs)[0]


FORMS = {
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(2.5),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.randn(5).bfloat16(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.arange(6).view(2, 3).t(),
    "rows of a larger one": torch.randn(9, 4)[2:5],
    "columns of a larger one": torch.randn(9, 4)[:, 1:3],
    "repeated": torch.arange(4.0)[1:2].expand(4),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "negative": torch.tensor([1 + 2j]).conj().imag,
    "with a gradient": torch.randn(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "large": torch.randn(300, 400),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_arrives_as_it_was(form):
    tensor = FORMS[form]
    [there] = passed([tensor])
    assert (there.dtype, there.shape, there.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert there.requires_grad == tensor.requires_grad
    if tensor.layout is torch.strided:
        assert there.stride() == tensor.stride()
        assert torch.equal(there, tensor)
    else:
        assert torch.equal(there.to_dense(), tensor.to_dense())


def test_only_the_rows_of_a_large_tensor_travel_and_are_not_copied_on_arrival():
    packed = pack(torch.zeros(1 << 20)[:8], message_slots())
    assert packed.slot is None
    assert len(packed.body) < 1000
    there = passed({"x": torch.arange(1 << 20)})["x"]
    # A view of the message's file, which ends with it, and not of memory of its own.
    with open("/proc/self/maps") as maps:
        spans = [line.split() for line in maps if "memfd:shardwise" in line]
    bounds = [tuple(int(part, 16) for part in span[0].split("-")) for span in spans]
    assert any(start <= there.data_ptr() < stop for start, stop in bounds)


def stacked(samples):
    return {"x": torch.stack([torch.full((4, 4), s["value"]) for s in samples]), "n": len(samples)}


def test_a_collate_that_returns_tensors_gives_the_same_ones_from_processes():
    data = sw.wrap(range(20))
    options = {"rank": 0, "world_size": 1, "collate": stacked}
    # One: it imports torch, as this module does.
    with closing(sw.DataLoader(data, 4, num_workers=1, timeout=60, **options)) as made:
        there = list(made)
    here = list(sw.DataLoader(data, 4, num_threads=0, **options))
    assert [b["x"].tolist() for b in there] == [b["x"].tolist() for b in here]
    assert there[0]["x"].is_contiguous()
