"""Every executor keeps one contract, a program's own too, and the kit finds faults."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import InlineExecutor
from shardwise.engine.choice import ThreadsFirstExecutor
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.threads import ThreadExecutor
from shardwise.executors import Concurrency
from shardwise.testing import check_executor

THREADS = partial(ThreadExecutor, num_threads=2, num_prefetch=4)
PROCESSES = partial(ProcessExecutor, num_workers=1, num_prefetch=4, timeout=60)


def threads_first(builder):
    return ThreadsFirstExecutor(THREADS(builder), PROCESSES(builder))


@pytest.mark.parametrize(
    "make",
    [InlineExecutor, THREADS, PROCESSES, threads_first],
    ids=["inline", "threads", "processes", "threads first"],
)
def test_the_executors_of_the_library_keep_the_contract(make):
    check_executor(make)


class Own:
    """The smallest executor: each batch when it is due, in the caller's thread."""

    concurrency = Concurrency("own")

    def __init__(self, builder):
        self.builder = builder

    def run(self, requests):
        for request in requests:
            yield self.builder.build(request)

    def close(self):
        pass


def test_the_smallest_executor_keeps_the_contract():
    check_executor(Own)


class Swaps(Own):
    def run(self, requests):
        batches = super().run(requests)
        while pair := list(islice(batches, 2)):
            yield from reversed(pair)


class TakesAll(Own):
    def run(self, requests):
        yield from super().run(iter(list(requests)))


class TakesEarly(Own):
    def run(self, requests):
        first = next(requests, None)
        return super().run(iter([first, *requests] if first else []))


class HidesErrors(Own):
    def run(self, requests):
        for request in requests:
            with suppress(sw.DataError):
                yield self.builder.build(request)


class EarlyErrors(Own):
    def run(self, requests):
        while some := list(islice(requests, 4)):
            yield from [self.builder.build(request) for request in some]


class ForgetsTheSeed(Own):
    def run(self, requests):
        self.builder._loader = type(self.builder._loader)(
            self.builder.dataset, seed=0, on_error=self.builder.on_error
        )
        yield from super().run(requests)


class RunsOnce(Own):
    def __init__(self, builder):
        super().__init__(builder)
        self.left = deque([1])

    def run(self, requests):
        self.left.pop()
        yield from super().run(requests)


class DoesNotPickle(Own):
    def __init__(self, builder):
        super().__init__(builder)
        self.open_file = open("/dev/null")  # noqa: SIM115


class NoWorkers(Own):
    """Says that it has worker processes, and builds here."""

    concurrency = Concurrency("own", num_workers=1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (Swaps, "first run, batch 0"),
        (TakesAll, "requests were taken for the first batch"),
        (TakesEarly, "taken before the first batch"),
        (HidesErrors, "on_error='raise': 9 of 3 batches"),
        (EarlyErrors, "on_error='raise': 0 of 3 batches"),
        (ForgetsTheSeed, "bytes differ"),
        (RunsOnce, "pop from an empty deque"),
        (DoesNotPickle, "cannot pickle"),
        (NoWorkers, "killed worker process came"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_kit_finds_a_fault(make, error):
    with pytest.raises((AssertionError, IndexError, TypeError), match=error):
        check_executor(make)


DATA = sw.wrap(list(range(20)))
OPTIONS = {"batch_size": 4, "output": "numpy", "rank": 0, "world_size": 1}


class WithOptions(Own):
    def __init__(self, builder, *, num_workers=None, timeout=None):
        super().__init__(builder)
        self.concurrency = Concurrency("own", num_workers=num_workers or 7)
        self.timeout = timeout


def test_a_loader_passes_the_options_that_were_set_on():
    loader = sw.DataLoader(DATA, executor=WithOptions, num_workers=3, timeout=5, **OPTIONS)
    assert (loader.num_workers, loader._maker.executor.timeout) == (3, 5)
    assert sw.DataLoader(DATA, executor=WithOptions, timeout=0, **OPTIONS).num_workers == 7
    stats = loader.stats()
    assert (stats["executor"], stats["num_workers"]) == ("own", 3)
    assert "executor='3 processes'" in repr(loader)


def test_a_loader_closes_its_own_executor():
    closed = []

    class Closes(Own):
        def close(self):
            closed.append(self)

    first, second = (sw.DataLoader(DATA, executor=Closes, **OPTIONS) for _ in range(2))
    with first:
        assert np.concatenate([b["value"] for b in first]).tolist() == list(range(20))
    assert closed == [first._maker.executor] != [second._maker.executor]


@pytest.mark.parametrize(
    ("options", "kind", "error"),
    [
        ({"executor": Own, "num_workers": 2}, ValueError, "num_workers=2.*leave these out"),
        ({"executor": Own, "decode_timeout": 2.0}, ValueError, "decode_timeout=2.0"),
        ({"executor": lambda: None}, ValueError, "can't be called with a BatchBuilder: too many"),
        ({"executor": lambda _: 3}, TypeError, "made a int: a shardwise.executors.Executor has"),
        ({"executor": Own(None)}, ValueError, "makes an executor from a shardwise.executors"),
        ({"executor": "gpu"}, ValueError, "executor='gpu': use one of None, 'inline', 'threads'"),
    ],
)
def test_what_makes_no_executor_is_refused_with_the_reason(options, kind, error):
    with pytest.raises(kind, match=error):
        sw.DataLoader(DATA, **options, **OPTIONS)
