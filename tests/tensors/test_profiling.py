"""The loader's named ranges in torch's profiler."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.profiler import ProfilerActivity, profile

import shardwise as sw
from shardwise.tensors.convert import named_range

RANGES = {"shardwise.next", "shardwise.to_tensors"}


def loader(**options):
    data = sw.wrap([{"x": i} for i in range(8)])
    return sw.DataLoader(data, batch_size=2, rank=0, world_size=1, **options)


def profiled(**options):
    with loader(**options) as made, profile(activities=[ProfilerActivity.CPU]) as prof:
        assert sum(int(batch["x"].sum()) for batch in made) == 28
    return {event.key: event.count for event in prof.key_averages() if "shardwise" in event.key}


def test_waiting_and_handing_over_are_ranges_of_the_profile():
    found = profiled(num_threads=1)
    assert found["shardwise.to_tensors"] == 4
    # The end of the epoch is asked for, too.
    assert found["shardwise.next"] == 5


def test_ranges_do_not_enclose_what_the_program_does_with_the_batch():
    with loader(num_threads=0) as made, profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in made:
            torch.ones(3).cumsum(0)
    names = [e.name for e in prof.events() if e.name == "aten::cumsum" or e.name in RANGES]
    assert "aten::cumsum" in names
    for event in prof.events():
        if event.name == "aten::cumsum":
            assert event.cpu_parent is None


def test_arrays_have_no_ranges():
    assert profiled(num_threads=0, output="numpy") == {}


def test_without_a_profiler_there_is_no_range():
    assert isinstance(named_range("shardwise.next"), nullcontext)
