"""A trace of one epoch, as Perfetto reads it."""

from __future__ import annotations

import json

import pytest

import shardwise as sw

DATA = sw.wrap(range(640))


def loader(**options):
    base = {"batch_size": 64, "rank": 1, "world_size": 2, "output": "numpy"}
    return sw.DataLoader(DATA.map(dict), **(base | options))


def spans(events, name):
    return sorted((each["ts"], each["ts"] + each["dur"]) for each in events if each["name"] == name)


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": 2}, {"num_workers": 1}])
def test_a_trace_has_each_wait_step_and_load(tmp_path, options):
    path = tmp_path / "trace.json"
    with loader(**options) as made:
        assert len(list(sw.trace(made, path))) == 5
        events = json.loads(path.read_text())["traceEvents"]
        # Later epochs are not traced.
        assert len(list(made)) == 5
    assert {each["pid"] for each in events} == {1}
    waits, steps, loads = (spans(events, name) for name in ("wait", "step", "load"))
    assert (len(waits), len(steps)) == (5, 4)
    assert loads
    assert all(began <= end for began, end in [*waits, *steps, *loads])
    # A step lies between two waits, and loading ends before a batch is there; to 1 µs.
    for (_, waited), (began, end), (asked, _) in zip(waits, steps, waits[1:], strict=False):
        assert waited <= began + 1
        assert end <= asked + 1
    assert loads[-1][1] <= waits[-1][1] + 1
    threads = {each["tid"] for each in events if each["name"] == "load"}
    assert 1 <= len(threads) <= 2
    assert not threads & {1, 2}
    assert [each["args"]["ready"] >= 0 for each in events if each["ph"] == "C"] == [True] * 5


def test_a_loop_that_is_left_writes_what_there_is(tmp_path):
    path = tmp_path / "trace.json"
    with loader(num_threads=0) as made:
        batches = sw.trace(made, path)
        next(batches)
        next(batches)
        batches.close()
    events = json.loads(path.read_text())["traceEvents"]
    assert len(spans(events, "wait")) == 2
