"""What can't be sent to worker processes is named; more of them than cores is told once."""

from __future__ import annotations

import functools
import logging
import pickle
import sys
import threading
from types import CodeType, ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.parallel import usable_cores
from shardwise.dataset import Dataset
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.engine.request import BatchRequest
from tests.support.memory_source import MemorySource, numbered_samples
from tests.support.threads import at_once

LOCK = threading.Lock()


def uses_a_global(sample):
    with LOCK:
        return sample


uses_a_global.__module__ = "__main__"  # functions of the main program travel with their globals


def captures():
    guard = threading.Lock()

    def counts(sample):
        with guard:
            return sample

    return counts


class Augments:
    def __init__(self):
        self.inner = {"lock": threading.Lock()}

    def __call__(self, sample):
        return sample

    def method(self, sample):
        return sample


FUNCTIONS = {
    "captures.<locals>.counts can't .* holds 'guard', a _thread.lock": captures(),
    "Augments can't .* holds 'inner.lock', a _thread.lock": Augments(),
    "Augments .*can't .* holds 'inner.lock', a _thread.lock ": Augments().method,
    "uses_a_global can't .* holds 'LOCK', a _thread.lock": uses_a_global,
    "partial can't .* holds 'lock', a _thread.lock": functools.partial(
        lambda sample, lock: sample, lock=LOCK
    ),
}


def loader(data, **options):
    return sw.DataLoader(data, batch_size=4, output="numpy", rank=0, world_size=1, **options)


@pytest.mark.parametrize("told", FUNCTIONS)
def test_a_function_that_can_not_be_sent_to_workers_is_named_with_what_it_holds(told):
    function = FUNCTIONS[told]
    data = sw.wrap(range(8)).map(function)
    with pytest.raises(TypeError, match=told) as caught:
        next(iter(loader(data, num_workers=1)))
    assert "num_workers=0" in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(TypeError, match=told):
        next(iter(loader(sw.wrap(range(8)), num_workers=1, collate=function)))


@pytest.mark.skipif(usable_cores() < 2, reason="nobody would choose processes on one core")
def test_told_nothing_the_loader_runs_such_a_function_in_threads_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, "shardwise"):
        made = loader(Dataset(MemorySource(numbered_samples(8))).map(captures()))
    [said] = [record.getMessage() for record in caplog.records]
    assert "holds 'guard', a _thread.lock" in said
    assert made.stats()["executor"] == "threads"
    assert len(list(made)) == 2


@pytest.mark.parametrize("factor", [3, 4, 32])
def test_four_times_as_many_workers_as_cores_are_told_once_before_they_start(factor, caplog):
    cores = usable_cores()
    with caplog.at_level(logging.WARNING, "shardwise"):
        loader(sw.wrap(range(8)), num_workers=factor * cores)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (factor >= 4)
    for said in told:
        assert f"num_workers={factor * cores} worker processes for the {cores} core" in said
        assert f"num_workers={cores} is as quick" in said


def test_the_code_of_the_main_program_keeps_the_name_of_its_file():
    main = {"__name__": "__main__"}
    source = "def outer():\n    return (1 / 0 for _ in range(3)), lambda: 0\n"
    exec(compile(source, "train.py", "exec"), main)
    code = pickle.loads(pickle_by_value(main["outer"])).__code__
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    assert len(inner) == 2
    assert {each.co_filename for each in (code, *inner)} == {"train.py"}


@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    is_padded=st.booleans(),
    sizes=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
def test_a_request_travels_whole_and_its_arrays_may_be_written_to(ids, is_padded, sizes):
    valid = np.arange(len(ids)) % 2 == 0 if is_padded else None
    # A chunk's ids are a view of the batch's.
    request = BatchRequest(3, 4, np.repeat(np.array(ids, np.int64), 2)[::2], valid, sizes)
    copy = pickle.loads(pickle.dumps(request))
    assert (copy.epoch, copy.step, copy.sizes) == (3, 4, sizes)
    assert (copy.ids.tolist(), copy.ids.dtype) == (ids, np.int64)
    assert copy.ids.flags.writeable
    assert is_padded == (copy.valid is not None)
    if copy.valid is not None:
        assert (copy.valid.tolist(), copy.valid.dtype) == (valid.tolist(), np.bool_)


def test_threads_pickle_functions_of_made_modules_at_once(monkeypatch):
    module = ModuleType("made_by_a_cell")
    exec("def double(x): return 2 * x", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        pickled = at_once(lambda _: [pickle_by_value(module.double) for _ in range(20)], 8)
    finally:
        sys.setswitchinterval(interval)
    monkeypatch.delitem(sys.modules, module.__name__)
    assert {pickle.loads(each)(4) for part in pickled for each in part} == {8}
