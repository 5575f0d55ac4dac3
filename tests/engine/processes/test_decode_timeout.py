"""decode_timeout: a decoder that does not return costs its sample and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import Watching
from shardwise.engine.processes import worker_status as decode_deadlines
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.processes.tasks import Stopped
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.processes.worker_status import (
    RECORD_BYTES,
    DecodeDeadlines,
    DecodeProgress,
    WorkerStatus,
)
from shardwise.engine.request import BatchRequest
from shardwise.testing import assert_batches_equal, check_executor
from tests.support.waiting import wait_for

# Ten thousand times what the healthy decoders take.
_TIMEOUT_S = 1.0


def sleep():
    threading.Event().wait()


def loop_in_c():
    # Exponential, with the GIL held throughout.
    re.match(r"(a+)+$", "a" * 64 + "b")


def ignore_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep()


def wait_for_a_program():
    subprocess.run(["sleep", "100000"], check=True)


@dataclass(frozen=True)
class Stuck:
    """Decodes numbers; does not return, or raises, for some of them."""

    stuck: tuple[int, ...] = ()
    how: str = "sleep"
    raises: bool = False

    def __call__(self, data):
        number = int(bytes(data))
        if number in self.stuck:
            if self.raises:
                raise ValueError("not this one")
            kinds = (sleep, loop_in_c, ignore_signals)
            (sleep if self.how == "sleep" else kinds[number % 3])()
        return np.full(100, number)


class StuckColumn:
    """A column decoder that does not return from columns with a 13 in them."""

    def __call__(self, data):
        return self.decode_column([data])[0]

    def decode_column(self, column):
        numbers = [int(bytes(data)) for data in column]
        if 13 in numbers:
            sleep()
        return np.array(numbers)


@pytest.fixture
def numbers(tmp_path):
    with sw.TarWriter(tmp_path / "{shard:02d}.tar", max_samples=20) as writer:
        for i in range(50):
            writer.write({"__key__": f"k{i:03d}", "n": str(i).encode(), "other": b"1"})
    return sw.tar(tmp_path).select("n")


def loader_of(data, **options):
    options = {"batch_size": 10, "output": "numpy", "seed": 1, **options}
    return sw.DataLoader(data, rank=0, world_size=1, **options)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_the_epoch_is_as_if_the_stuck_samples_were_damaged(numbers, on_error, caplog):
    # One sleeps, one loops in C with the GIL held, one blocks all signals; to replace, all sleep.
    stuck = (16, 30, 41)
    how = "all" if on_error == "skip" else "sleep"
    data = numbers.decode(n=Stuck(stuck, how, raises=True))
    options = {"on_error": on_error, "shuffle": True}
    with loader_of(data, executor="inline", **options) as loader:
        expected = list(loader)
    data = numbers.decode(n=Stuck(stuck, how))
    with loader_of(data, decode_timeout=_TIMEOUT_S, num_workers=3, **options) as loader:
        batches = list(loader)
        stats = loader.stats()
    assert_batches_equal(expected, batches)
    counts = (3, 0) if on_error == "skip" else (0, 3)
    assert (stats["skipped"], stats["replaced"]) == counts
    assert stats["samples"] == 50 - counts[0]
    for number in stuck:
        assert sum(f"'k{number:03d}'" in record.message for record in caplog.records) == 1


def test_raise_names_url_key_and_field_and_the_loader_goes_on(numbers):
    with loader_of(numbers.decode(n=Stuck((23,))), decode_timeout=_TIMEOUT_S) as loader:
        assert loader.num_workers >= 1  # chosen: a thread can't be stopped
        seen = []
        with pytest.raises(sw.DecodeTimeoutError, match="decode_timeout=1 s") as raised:
            for batch in loader:
                seen += batch["__index__"].tolist()
        assert seen == list(range(20))
        error = raised.value
        assert isinstance(error, sw.DataError)
        assert isinstance(error, sw.StallError)
        assert error.url.endswith("01.tar")
        assert (error.key, error.field, error.index) == ("k023", "n", 23)
        assert next(iter(loader))["__index__"].tolist() == list(range(10))


def test_the_error_does_not_wait_for_workers_to_end(numbers):
    builder = BatchBuilder(numbers.decode(n=Stuck((0,))))
    options = {"num_workers": 1, "timeout": 120, "decode_timeout": _TIMEOUT_S}
    executor = ProcessExecutor(builder, **options)
    with pytest.raises(sw.DecodeTimeoutError):
        next(executor.run(iter([BatchRequest(0, 0, np.arange(3))])))
    # The one that was started in its place would take a second to see that it is to end.
    assert executor._session is not None
    request = BatchRequest(0, 0, np.arange(3, 6))
    assert next(executor.run(iter([request]))).data["n"][:, 0].tolist() == [3, 4, 5]
    executor.close()


def test_batches_without_a_row_and_batches_of_the_users_come_from_workers_too(numbers):
    data = numbers.subset(range(4)).decode(n=Stuck((0, 2)))
    options = {"decode_timeout": _TIMEOUT_S, "num_workers": 2, "on_error": "skip"}
    with loader_of(data, batch_size=1, **options) as loader:
        batches = list(loader)
    assert [batch["__index__"].tolist() for batch in batches] == [[], [1], [], [3]]
    assert [batch["n"].shape for batch in batches] == [(0, 100), (1, 100), (0, 100), (1, 100)]

    def keys(samples):
        return [sample["__key__"] for sample in samples]

    with loader_of(data.subset(range(2)), collate=keys, batch_size=2, **options) as loader:
        assert list(loader) == [["k001"]]


def test_a_function_of_a_map_and_a_column_decoder_are_stopped_too(numbers):
    def stuck_map(sample):
        if sample["n"] == b"7":
            sleep()
        return sample

    options = {"decode_timeout": _TIMEOUT_S, "num_workers": 2, "on_error": "skip"}
    with loader_of(numbers.map(stuck_map), **{**options, "on_error": "raise"}) as loader:
        with pytest.raises(sw.DecodeTimeoutError) as raised:
            list(loader)
        assert (raised.value.key, raised.value.field) == ("k007", None)
    with loader_of(numbers.decode(n=StuckColumn()), **options) as loader:
        batches = list(loader)
    assert np.concatenate([batch["n"] for batch in batches]).tolist() == [
        number for number in range(50) if number != 13
    ]


@pytest.mark.extension
def test_a_stuck_sample_of_a_mixture_is_named_as_its_dataset_has_it(numbers):
    # Of the same numbers and keys; those of the first one are healthy. All are in one batch.
    some = numbers.subset(range(5, 10))
    parts = {"a": (some.decode(n=Stuck()), 1), "b": (some.decode(n=Stuck((7,))), 1)}
    mixed = sw.mix(parts, until="all")
    drawn = mixed.sampler.indices(0, np.arange(mixed.sampler.num_samples))
    options = {"decode_timeout": _TIMEOUT_S, "num_workers": 1, "seed": 0, "batch_size": len(drawn)}
    with loader_of(mixed, **options) as loader:
        with pytest.raises(sw.DecodeTimeoutError, match="decode_timeout=1 s") as raised:
            list(loader)
        error = raised.value
        assert error.url.endswith("00.tar")
        assert (error.key, error.field, error.index) == ("k007", "n", 7)
    with loader_of(mixed, on_error="skip", **options) as loader:
        [batch] = loader
    assert batch["__index__"].tolist() == drawn[drawn != 7].tolist()


def test_what_a_stuck_decoder_started_ends_with_its_worker(numbers, tmp_path):
    note = tmp_path / "pid"

    def starts(data):
        if data == b"3":
            note.write_text(str(os.getpid()))
            wait_for_a_program()
        return 1

    options = {"decode_timeout": _TIMEOUT_S, "num_workers": 1, "on_error": "skip"}
    with loader_of(numbers.subset(range(6)).decode(n=starts), **options) as loader:
        assert sum(len(batch["__index__"]) for batch in loader) == 5
    group = int(note.read_text())

    def is_alive(stat):
        try:
            state, _, pgrp, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return int(pgrp) == group and state != "Z"

    wait_for(lambda: not any(map(is_alive, Path("/proc").glob("[0-9]*/stat"))))


def test_a_worker_that_is_killed_from_outside_stays_a_worker_error(numbers):
    def dies(data):
        if data == b"44":
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    with (
        loader_of(numbers.decode(n=dies), decode_timeout=600, on_error="skip") as loader,
        pytest.raises(sw.WorkerError, match="-9"),
    ):
        list(loader)


def test_an_executor_that_watches_gives_the_batches_of_the_reference(numbers):
    builder = BatchBuilder(numbers.decode(n=Stuck()), seed=2)
    check_executor(
        lambda b: ProcessExecutor(b, num_workers=2, timeout=120, decode_timeout=600), builder
    )


def test_tasks_that_a_stopped_worker_took_along_are_loaded_again(numbers, monkeypatch):
    builder = BatchBuilder(numbers.decode(n=Stuck()))
    requests = [BatchRequest(0, step, np.arange(50)) for step in range(4)]
    answers = WorkerPool.answers
    calls = []

    def with_a_loss(pool, *, wait):
        calls.append(wait)
        # As if all workers were idle, though chunks are missing.
        return [Stopped({}, is_idle=True)] if len(calls) == 2 else answers(pool, wait=wait)

    monkeypatch.setattr(WorkerPool, "answers", with_a_loss)
    executor = ProcessExecutor(builder, num_workers=2, timeout=120, decode_timeout=600)
    batches = [batch.data["n"][:, 0].tolist() for batch in executor.run(iter(requests))]
    executor.close()
    assert batches == [list(range(50))] * 4


def test_workers_that_worked_between_two_looks_have_lost_nothing(monkeypatch):
    status = WorkerStatus.create(1, 1)
    deadlines = DecodeDeadlines(status, 1e-9)
    status.begin(0, 0, batch=0, start=0)
    DecodeProgress(status.record(0, 0)).begin(7, "k7", 0)
    while not deadlines.overdue():
        pass
    deadlines.stopped(0)
    status.end(0, 0)
    clock, found = SimpleNamespace(), []
    monkeypatch.setattr(decode_deadlines, "time", clock)
    # A task was sent; its answer came, and another task was sent, while nobody looked.
    for at, num_messages in [(3e9, 1), (5e9, 3), (5.5e9, 3), (6e9, 3)]:
        clock.monotonic_ns = partial(int, at)
        found.append(deadlines.has_lost(num_messages))
    assert found == [False, False, False, True]
    status.close()


def test_a_decoder_that_goes_on_just_then_is_not_to_blame(monkeypatch):
    monkeypatch.setattr(decode_deadlines, "_IDLE_NS", 0)
    status = WorkerStatus.create(2, 2)
    deadlines = DecodeDeadlines(status, 1e-9)
    for worker in range(2):
        for thread in range(2):
            status.end(worker, thread)
    assert deadlines.overdue() == []
    assert not deadlines.has_lost(0)  # nobody was stopped
    status.begin(1, 0, batch=4, start=16)
    status.begin(1, 1, batch=5, start=32)
    one, other = (DecodeProgress(status.record(1, thread)) for thread in range(2))
    one.begin(17, "k17", 2)
    other.begin(33, "k33", 0)
    while not (overdue := deadlines.overdue()):
        pass
    assert overdue == [1]
    other.begin(34, "k34", 0)
    stopped = deadlines.stopped(1)
    assert stopped[4, 16][1:] == (17, 2, "k17", "")
    assert stopped[5, 32] is None
    # The next one has not begun: the queue may hold its tasks.
    assert not deadlines.has_lost(0)
    assert status.decoding(1) == [None, None]
    for thread in range(2):
        status.end(1, thread)
    assert deadlines.has_lost(0)
    status.close()


def test_a_record_keeps_sample_part_and_key():
    progress = DecodeProgress(memoryview(bytearray(RECORD_BYTES)))
    assert progress.read() is None
    for key in ("", "a/b", "é" * 20, "k" * 4000):
        progress.begin(2**40, key, -3)
        record = progress.read()
        assert (record.sample, record.part) == (2**40, -3)
        assert key.startswith(record.key)
        assert len(record.key) >= min(len(key), 400)
        assert 0 < record.began_ns <= time.monotonic_ns()
        assert record.detail == ""
    progress.begin(1, "k", 0, "clip of frames 24 to 27" * 3)
    assert progress.read()[1:4] == (1, 0, "k")
    assert progress.read().detail.startswith("clip of frames 24 to 27")
    progress.end()
    assert progress.read() is None
    again = DecodeProgress(memoryview(bytearray(RECORD_BYTES)), stuck=frozenset({(5, 1)}))
    again.begin(5, "k", 0)
    with pytest.raises(sw.DecodeTimeoutError):
        again.begin(5, "k", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"executor": "threads"},
        {"executor": "inline"},
        {"num_workers": 0},
        {"num_threads": 0},
    ],
)
def test_executors_that_stop_nobody_refuse_a_decode_timeout(numbers, options):
    with pytest.raises(ValueError, match="worker process only"):
        loader_of(numbers, decode_timeout=5, **options)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), 1e30])
def test_a_decode_timeout_is_seconds_above_0(numbers, value):
    with pytest.raises(ValueError, match="seconds above 0"):
        loader_of(numbers, decode_timeout=value)


class Events:
    """A watch that writes down what it is told."""

    def __init__(self):
        self.events = []

    def begin(self, sample, key, part, detail=""):
        assert detail == ""  # bytes are decoded whole
        self.events.append((sample, key, part))

    def end(self):
        self.events.append("end")


def test_the_watch_learns_of_each_decoder_and_function_and_of_the_end(numbers):
    def identity(sample):
        return sample

    def told(data, ids, **options):
        watch = Events()
        request = BatchRequest(0, 0, np.array(ids))
        BatchBuilder(data, on_error="skip").build(request, Watching(watch, **options))
        return watch.events

    data = numbers.decode(n=Stuck((2,), raises=True))
    assert told(data, [0, 1]) == [(0, "k000", 0), (1, "k001", 0), "end"]
    one, two, three = [(i, f"k{i:03d}", 0) for i in (1, 2, 3)]
    # Once for the chunk, and once more for each row, since one is bad.
    singly = [one, "end", two, "end", three, "end"]
    assert told(data, [1, 2, 3]) == [one, two, "end", *singly]
    assert told(data, [1, 2, 3], one_by_one=True) == singly
    mapped = data.map(identity).map(identity)
    assert told(mapped, [1]) == [one, (1, "k001", -1), (1, "k001", -2), "end"]
    assert told(numbers.decode(n=int), [1, 3]) == [(-1, "", 0), "end"]
    assert told(numbers.decode(n=int), [3]) == [three, "end"]
