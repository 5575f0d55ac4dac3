"""Executors: the same batches whoever makes them, errors in their place, nothing left behind."""

import gc
import threading

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import StallError
from shardwise.dataset import Dataset
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.choice import ExecutorOptions, make_executor
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.request import BatchRequest
from shardwise.engine.threads import ThreadExecutor
from shardwise.testing import check_executor
from tests.support.memory_source import MemorySource, numbered_samples


def noisy(sample, rng):
    return {**sample, "noise": rng.random(3)}


def numbered_maker(num_samples=40, **options):
    dataset = Dataset(MemorySource(numbered_samples(num_samples))).decode(cls=int, txt=str)
    return BatchBuilder(dataset.map(noisy), seed=3, **options)


def threads(maker, num_threads=2, **options):
    return ThreadExecutor(maker, num_threads=num_threads, num_prefetch=4, **options)


def processes(maker, num_workers=1, **options):
    return ProcessExecutor(maker, num_workers=num_workers, num_prefetch=4, **options)


def works(num_batches=6, size=40):
    ids = np.arange(num_batches * size, dtype=np.int64) % 40
    return [
        BatchRequest(0, step, ids[step * size : (step + 1) * size]) for step in range(num_batches)
    ]


@pytest.mark.parametrize(
    "make",
    [InlineExecutor, threads, lambda m: threads(m, 8), lambda m: processes(m, 2)],
    ids=["inline", "threads-2", "threads-8", "processes-2"],
)
def test_an_executor_gives_the_batches_of_the_reference(make):
    check_executor(make, numbered_maker(collate=list))


def test_large_batches_are_filled_by_several_threads():
    seen = set()
    barrier = threading.Barrier(2, timeout=60)

    def meet(sample):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            barrier.wait()
        return sample

    dataset = Dataset(MemorySource(numbered_samples(64))).map(meet)
    with_threads = threads(BatchBuilder(dataset))
    # One batch only: if a single thread filled it, the barrier would never open.
    [batch] = with_threads.run(iter([BatchRequest(0, 0, np.arange(64))]))
    with_threads.close()
    assert len(seen) == 2
    assert batch.num_rows == 64


def test_only_the_window_is_made_ahead():
    source = MemorySource(numbered_samples(40))
    executor = ThreadExecutor(BatchBuilder(Dataset(source)), num_threads=1, num_prefetch=3)
    taken = []

    def counted():
        for work in works(10):
            taken.append(work.step)
            yield work

    batches = executor.run(counted())
    assert taken == [], "work was taken before the first batch was asked for"
    next(batches)
    assert taken == [0, 1, 2]
    batches.close()
    executor.close()
    assert taken == [0, 1, 2]


def test_a_batch_that_does_not_come_raises_stall_error_that_names_the_sample():
    release = threading.Event()

    def stuck(sample):
        release.wait(120)
        return sample

    dataset = Dataset(MemorySource(numbered_samples(8))).map(stuck)
    executor = threads(BatchBuilder(dataset), timeout=0.2)
    try:
        with pytest.raises(StallError, match=r"step 7 of epoch 2.*sample 5 of memory://.*timeout="):
            next(executor.run(iter([BatchRequest(2, 7, np.array([5, 6]))])))
        executor.close()  # does not wait for the stuck thread
    finally:
        release.set()


def test_abandoned_iterators_leave_no_threads_behind():
    # Those of the test before may still be ending.
    before = set(threading.enumerate())
    executor = threads(numbered_maker())
    for _ in range(50):
        next(executor.run(iter(works())))
    executor.close()
    del executor
    gc.collect()
    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if thread.name.startswith("shardwise_")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": "gpu"}, "executor='gpu'"),
        ({"num_threads": -1}, "num_threads=-1"),
        ({"executor": "inline", "num_threads": 3}, "num_threads=3"),
        ({"executor": "threads", "num_threads": 0}, "num_threads of 1 or more"),
        ({"executor": "threads", "num_workers": 2}, "num_workers=2"),
        ({"executor": "processes", "num_workers": 0}, "num_workers=0"),
        ({"executor": "processes", "num_threads": 0}, "num_threads=0"),
        ({"num_workers": -3}, "num_workers=-3"),
    ],
)
def test_options_that_make_no_executor_are_refused(options, message):
    given = {"executor": None, "num_workers": None, "num_threads": None, **options}
    with pytest.raises(ValueError, match=message):
        make_executor(numbered_maker(), ExecutorOptions(**given), num_ranks=1)


def shards_of(tmp_path, num_samples=400):
    with sw.TarWriter(str(tmp_path / "{shard:03d}.tar"), max_samples=100) as writer:
        for i in range(num_samples):
            writer.write({"__key__": f"{i:06d}", "bin": bytes([i % 256]) * 100})
    return sw.tar(str(tmp_path / "*.tar"))


def test_one_thread_reads_until_reads_have_to_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.engine.choice.usable_cores", lambda **_: 4)
    flag = "shardwise.storage.local._AT_ONCE"
    monkeypatch.setattr(flag, 0)
    data = shards_of(tmp_path)
    options = {"batch_size": 5, "shuffle": "full", "rank": 0, "world_size": 1, "output": "numpy"}
    with sw.DataLoader(data, **options) as loader:

        def epochs(number):
            for _ in range(number):
                loader.set_epoch(0)
                keys = [key for batch in loader for key in batch["__key__"]]
            return keys, loader.stats()["num_threads"]

        keys, num_threads = epochs(1)
        assert num_threads == 1
        # Any read may wait now, as with a file system that does not say.
        monkeypatch.setattr(flag, None)
        assert epochs(4) == (keys, 4)
        monkeypatch.setattr(flag, 0)
        assert epochs(8) == (keys, 1)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda ds: ds.decode(bin=len), {"num_workers": 0}),
        (lambda ds: ds.map(dict), {"num_workers": 0}),
        (lambda ds: ds, {"num_threads": 4}),
    ],
)
def test_more_work_than_reading_is_for_all_threads(tmp_path, monkeypatch, change, options):
    monkeypatch.setattr("shardwise.engine.choice.usable_cores", lambda **_: 4)
    with sw.DataLoader(
        change(shards_of(tmp_path)), batch_size=5, rank=0, world_size=1, **options
    ) as loader:
        next(iter(loader))
        assert loader.stats()["num_threads"] == 4


@pytest.mark.parametrize(
    ("make", "cores", "options", "expected"),
    [
        (lambda ds: ds.map(dict), 2, {}, ProcessExecutor),
        (lambda ds: ds.decode(cls=lambda data: data), 2, {}, ProcessExecutor),
        (lambda ds: ds.map(dict), 1, {}, ThreadExecutor),
        (lambda ds: ds.map(dict), 2, {"num_workers": 0}, ThreadExecutor),
        (lambda ds: ds.map(dict), 2, {"num_threads": 2}, ThreadExecutor),
        (lambda ds: ds.map(dict), 2, {"num_threads": 0}, InlineExecutor),
        (lambda ds: ds.map(dict), 2, {"executor": "threads"}, ThreadExecutor),
        (lambda ds: ds.decode(cls=int, txt=sw.text()), 2, {}, ThreadExecutor),
        (lambda ds: ds.decode(cls=int), 1, {"num_workers": 1}, ProcessExecutor),
        (lambda ds: ds.decode(cls=int), 2, {"executor": "processes"}, ProcessExecutor),
    ],
)
def test_functions_of_the_user_are_given_processes_where_there_are_cores(
    make, cores, options, expected, monkeypatch
):
    monkeypatch.setattr("shardwise.engine.choice.usable_cores", lambda **_: cores)
    maker = BatchBuilder(make(Dataset(MemorySource(numbered_samples(8)))))
    given = {"executor": None, "num_workers": None, "num_threads": None, **options}
    executor = make_executor(maker, ExecutorOptions(**given), num_ranks=1)
    assert isinstance(executor, expected)
    if expected is ProcessExecutor:
        assert (executor.num_workers, executor.num_threads) == (cores, 1)


def test_functions_that_do_not_travel_are_run_by_threads_with_a_word(monkeypatch, caplog):
    monkeypatch.setattr("shardwise.engine.choice.usable_cores", lambda **_: 2)
    lock = threading.Lock()

    def locked(sample):
        with lock:
            return sample

    maker = BatchBuilder(Dataset(MemorySource(numbered_samples(8))).map(locked))
    executor = make_executor(maker, ExecutorOptions(), num_ranks=1)
    assert isinstance(executor, ThreadExecutor)
    assert "can't be sent to worker processes" in caplog.text
    assert "num_workers=0" in caplog.text
