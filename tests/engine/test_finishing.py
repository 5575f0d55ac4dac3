"""Batches are put together beside the caller's thread and in order, by all executors but inline."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from contextlib import closing, suppress

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import StallError, WorkerError
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.processes import run as run_module
from shardwise.engine.processes import session as session_module
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.processes.worker_status import WorkerStatus
from shardwise.engine.request import BatchRequest
from shardwise.engine.threads import ThreadExecutor
from tests.support.waiting import wait_for

DATA = sw.wrap([{"x": np.arange(1 + i % 3), "n": i} for i in range(60)])


def requests(count, size=4):
    return iter([BatchRequest(0, k, np.arange(k * size, (k + 1) * size)) for k in range(count)])


def threads(builder, **options):
    return ThreadExecutor(builder, num_threads=4, num_prefetch=8, **options)


def processes(builder, **options):
    return ProcessExecutor(builder, num_workers=2, num_prefetch=4, timeout=60, **options)


@pytest.mark.parametrize("make", [threads, processes])
@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_batches_are_prepared_once_and_in_order_in_another_thread(make, ragged):
    prepared = []

    def prepare(batch):
        prepared.append((batch.data["n"].tolist(), threading.current_thread()))
        batch.data = (batch.data, "prepared")

    builder = BatchBuilder(DATA, ragged=ragged)
    builder.prepare = prepare
    with closing(make(builder)) as executor:
        given = [batch.data for batch in executor.run(requests(12))]
    assert [data["n"].tolist() for data, _ in given] == [n for n, _ in prepared]
    assert [n[0] for n, _ in prepared] == list(range(0, 48, 4))
    assert threading.main_thread() not in {thread for _, thread in prepared}


def test_in_threads_a_collate_runs_one_at_a_time_in_order_and_beside_the_caller():
    running, seen = threading.Lock(), []

    def collate(samples):
        assert running.acquire(blocking=False), "two at a time"
        time.sleep(0.001)
        running.release()
        seen.append((samples[0]["n"], threading.current_thread()))
        return [sample["n"] for sample in samples]

    with closing(threads(BatchBuilder(DATA, collate=collate))) as executor:
        given = [batch.data[0] for batch in executor.run(requests(15))]
    assert given == [n for n, _ in seen] == list(range(0, 60, 4))
    assert threading.main_thread() not in {thread for _, thread in seen}


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
def test_threads_that_load_have_a_lower_priority_than_the_program():
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def note(sample):
        return {"n": sample["n"], "nice": os.getpriority(os.PRIO_PROCESS, 0)}

    with closing(threads(BatchBuilder(DATA.map(note)))) as executor:
        given = [batch.data["nice"].tolist() for batch in executor.run(requests(3))]
    assert given == [[min(19, own + 5)] * 4] * 3
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_inline_all_runs_in_the_callers_thread():
    seen = set()
    builder = BatchBuilder(DATA, collate=lambda samples: seen.add(threading.current_thread()))
    list(InlineExecutor(builder).run(requests(3)))
    assert seen == {threading.main_thread()}


@pytest.mark.parametrize("make", [InlineExecutor, threads, processes])
@pytest.mark.parametrize("where", ["collate", "prepare"])
def test_an_error_of_putting_a_batch_together_is_raised_in_its_place(make, where):
    def fail(at):
        if at == 20:
            raise ValueError("no batch of 20")

    def collate(samples):
        fail(samples[0]["n"] if where == "collate" else 0)
        return [sample["n"] for sample in samples]

    executor = make(BatchBuilder(DATA, collate=collate))
    if where == "prepare":
        if make is InlineExecutor:
            return
        executor.builder.prepare = lambda batch: fail(batch.data[0])
    seen = []
    with closing(executor), pytest.raises(ValueError, match="no batch of 20"):
        for batch in executor.run(requests(9)):
            seen.append(batch.data[0])
    assert seen == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("make", [threads, processes])
def test_whether_the_next_batch_is_ready_is_told_without_waiting_for_it(make, tmp_path):
    gate = tmp_path / "go"

    def wait(sample):
        while sample["n"] >= 4 and not gate.exists():
            time.sleep(0.001)
        return sample

    with closing(make(BatchBuilder(DATA.map(wait)))) as executor:
        batches = executor.run(requests(3))
        first = next(batches)
        assert not first.is_next_ready()
        gate.touch()
        deadline = time.monotonic() + 60
        while not first.is_next_ready() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert first.is_next_ready()
        assert next(batches).data["n"].tolist() == [4, 5, 6, 7]
        batches.close()


def test_an_error_seen_while_looking_ahead_is_raised_by_the_next_batch():
    def die(sample):
        if sample["n"] >= 8:
            os._exit(3)
        return sample

    with closing(processes(BatchBuilder(DATA.map(die)))) as executor:
        batches = executor.run(requests(8))
        first = next(batches)
        with pytest.raises(sw.WorkerError, match="exit code 3"):
            while True:
                if first.is_next_ready():
                    first = next(batches)
                time.sleep(0.001)


def test_a_collate_that_does_not_return_is_a_stall():
    go = threading.Event()
    builder = BatchBuilder(DATA, collate=lambda samples: go.wait(60))
    executor = threads(builder, timeout=0.2)
    with pytest.raises(StallError, match=r"no batch for 0\.2 s"):
        next(executor.run(requests(2)))
    go.set()
    executor.close()


def test_an_error_that_is_told_once_is_raised_after_the_batches_before_it(monkeypatch):
    # A worker says once why it could not go on; afterwards only that it ended would be known.
    answers, told = WorkerPool.answers, [sw.WorkerError("worker 0 could not go on")]

    def tell(pool, *, wait):
        if has_first.is_set():
            raise told.pop() if told else sw.WorkerError("ended")
        return answers(pool, wait=wait)

    has_first = threading.Event()
    monkeypatch.setattr(WorkerPool, "answers", tell)
    given = []
    with closing(processes(BatchBuilder(DATA))) as executor:
        with pytest.raises(sw.WorkerError, match="could not go on"):
            for batch in executor.run(requests(15)):
                given.append(batch.data["n"].tolist())
                has_first.set()
        assert given == [[*range(4 * k, 4 * k + 4)] for k in range(len(given))]
        assert 0 < len(given) < 15
        has_first.clear()
        assert sum(1 for _ in executor.run(requests(15))) == 15


def test_batches_are_made_while_the_program_asks_for_none():
    prepared = []
    builder = BatchBuilder(DATA)
    builder.prepare = lambda batch: prepared.append(batch.data["n"][0])
    with closing(processes(builder)) as executor:
        batches = executor.run(requests(15))
        first = next(batches)
        # The program's, and as many more as the depth of 4 leaves.
        wait_for(lambda: len(prepared) == 4, seconds=60)
        assert first.is_next_ready()
        # The last one may be prepared and not yet counted.
        assert next(batches).num_ready in (2, 3)
        # Also where the program never waits.
        wait_for(lambda: len(prepared) == 5, seconds=60)
        batches.close()
        assert executor._session.pool.status.run == -1


def test_an_older_iterator_ends_when_a_newer_one_begins():
    with closing(processes(BatchBuilder(DATA))) as executor:
        older = executor.run(requests(15))
        next(older)
        newer = executor.run(requests(15))
        assert next(newer).data["n"].tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="newer iterator"):
            next(older)
        assert sum(1 for _ in newer) == 14


@pytest.mark.parametrize("make", [InlineExecutor, threads, processes])
def test_an_error_of_the_sampler_is_raised_after_the_batches_before_it(make):
    def failing():
        yield from requests(7)
        raise ValueError("no step 7")

    seen = []
    with closing(make(BatchBuilder(DATA))) as executor:
        for _ in range(2):
            with pytest.raises(ValueError, match="no step 7"):
                for batch in executor.run(failing()):
                    seen.append(batch.data["n"][0])
    assert seen == [*range(0, 28, 4)] * 2


@pytest.mark.parametrize("make", [threads, processes])
def test_a_slow_sampler_holds_no_batch_back_that_is_finished(make):
    asked, has_first = [], threading.Event()

    def slow():
        for request in requests(15, size=1):
            asked.append(request)
            # The first ones are loaded by then, or soon.
            if len(asked) > 3:
                has_first.wait(2)
            yield request

    with closing(make(BatchBuilder(DATA))) as executor:
        assert sum(1 for _ in executor.run(requests(3))) == 3  # threads or processes have started
        executor.num_prefetch = 15
        given = 0
        for _ in executor.run(slow()):
            has_first.set()
            given = given or len(asked)
        assert given < 15


def test_a_worker_that_dies_is_reported_between_two_ids_of_a_sampler():
    asked = []

    def killing():
        for request in requests(15, size=1):
            asked.append(request)
            if len(asked) == 3:
                # It is a child of this process, which alone can end its entry.
                process = executor._session.pool._processes[0]
                process.kill()
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            yield request

    with closing(processes(BatchBuilder(DATA))) as executor:
        assert sum(1 for _ in executor.run(requests(3))) == 3  # the size of a batch is known
        executor.num_prefetch = 15
        with pytest.raises(WorkerError, match="worker process 0"):
            list(executor.run(killing()))
    assert len(asked) == 3


def test_an_error_of_the_sampler_outlives_the_end_of_what_is_read_ahead():
    def failing():
        yield from requests(1)
        raise ValueError("no step 1")

    ahead = BatchBuilder(DATA).read_ahead(failing())
    assert len([*ahead]) == 1
    ahead.close()
    with pytest.raises(ValueError, match="no step 1"):
        ahead.raise_error()


def test_a_sampler_that_does_not_return_is_a_stall_that_says_so():
    def stuck():
        wait_for(lambda: executor._session is None, seconds=60)
        yield from requests(1)

    with closing(processes(BatchBuilder(DATA))) as executor:
        executor.timeout = 0.1
        with pytest.raises(StallError, match=r"no batch for 0\.1 s: the sampler has not returned"):
            next(executor.run(stuck()))
        executor.timeout = 60
        assert sum(1 for _ in executor.run(requests(3))) == 3


def test_a_run_that_waits_for_the_sampler_of_an_earlier_one_is_a_stall_that_says_so(monkeypatch):
    for module in (run_module, session_module):
        monkeypatch.setattr(module, "END_TIMEOUT_S", 0.1)
    go, is_stuck = threading.Event(), threading.Event()

    def stuck():
        yield from requests(1)
        is_stuck.set()
        go.wait(60)

    with closing(processes(BatchBuilder(DATA))) as executor:
        executor.num_prefetch = 1
        earlier = executor.run(stuck())
        assert next(earlier).data["n"].tolist() == [0, 1, 2, 3]
        assert is_stuck.wait(60)
        earlier.close()
        executor.timeout = 0.1
        with pytest.raises(StallError, match=r"0\.1 s: an earlier iterator"):
            next(executor.run(requests(3)))
        executor.timeout = 60
        assert sum(1 for _ in executor.run(requests(3))) == 3
        go.set()


def test_a_run_whose_processes_were_ended_does_not_wait_for_its_thread_again(monkeypatch):
    monkeypatch.setattr(session_module, "END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(run_module, "wait", lambda *_: waits.append(go.is_set()))
    go, is_stuck, waits = threading.Event(), threading.Event(), []

    def stuck():
        yield from requests(1)
        is_stuck.set()
        go.wait(60)

    executor = processes(BatchBuilder(DATA))
    executor.num_prefetch = 1
    batches = executor.run(stuck())
    next(batches)
    assert is_stuck.wait(60)
    executor.close()
    batches.close()
    assert waits == []
    go.set()


def test_the_end_of_a_run_passes_over_no_task_of_the_one_that_has_begun(monkeypatch):
    is_read, in_main = threading.Event(), threading.main_thread()
    run = WorkerStatus.run

    def read(status):
        number = run.fget(status)
        if threading.current_thread() is not in_main and not is_read.is_set():
            is_read.set()
            # Between reading the number and writing that no run is under way.
            wait_for(lambda: executor._session.run_number == 2, seconds=60)
        return number

    monkeypatch.setattr(WorkerStatus, "run", property(read, run.fset))
    with closing(processes(BatchBuilder(DATA))) as executor:
        # All of its batches are made ahead.
        older = executor.run(requests(3))
        next(older)
        assert is_read.wait(60)
        assert sum(1 for _ in executor.run(requests(15))) == 15
        older.close()


def test_a_loader_that_is_closed_ends_a_run_that_could_not_start(monkeypatch):
    for module in (run_module, session_module):
        monkeypatch.setattr(module, "END_TIMEOUT_S", 0.1)
    go, is_stuck, errors = threading.Event(), threading.Event(), []

    def stuck():
        is_stuck.set()
        go.wait(60)
        yield from requests(1)

    def iterate(of):
        with pytest.raises(RuntimeError) as caught:
            next(executor.run(of))
        errors.append(str(caught.value))

    def start(of, number):
        thread = threading.Thread(target=iterate, args=(of,), daemon=True)
        thread.start()
        wait_for(lambda: executor._session.run_number == number, seconds=60)
        return thread

    with closing(processes(BatchBuilder(DATA))) as executor:
        executor.timeout = None
        executor.start()
        before = start(stuck(), 1)
        assert is_stuck.wait(60)
        after = start(requests(3), 2)
        wait_for(lambda: not helper_of(executor)._tasks.empty(), seconds=60)
        executor.close()
        after.join(60)
        assert len(errors) == 1
        assert "the loader was closed" in errors[0]
        go.set()
        before.join(60)
        assert len(errors) == 2


def helper_of(executor):
    return executor._session.helper


def test_the_descriptors_of_a_closed_loader_are_closed_after_the_thread_that_uses_them(monkeypatch):
    alive, close = [], WorkerPool.close

    def note(pool):
        alive.extend(thread.is_alive() for thread in helper._threads)
        close(pool)

    monkeypatch.setattr(WorkerPool, "close", note)
    executor = processes(BatchBuilder(DATA))
    batches = executor.run(requests(15))
    next(batches)
    helper = helper_of(executor)
    executor.close()
    assert alive == [False]
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(batches)


def fail(sample):
    if sample["n"] == 20:
        raise ValueError("no sample of 20")
    return sample


def die(sample):
    if sample["n"] == 20:
        os._exit(3)
    return sample


@pytest.mark.parametrize("function", [fail, die])
def test_a_loader_is_freed_with_its_error_and_waits_for_no_collection(function):
    executor = processes(BatchBuilder(DATA.map(function)))
    gc.collect()
    gc.disable()
    try:
        with suppress(sw.DataError, sw.WorkerError):
            sum(1 for _ in executor.run(requests(15)))
        freed = weakref.ref(executor)
        del executor
        wait_for(lambda: freed() is None, seconds=60)
    finally:
        gc.enable()
