"""Decoders by default: threads first, processes once there is work, the same batches always."""

import io
import logging
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

import shardwise as sw
from shardwise.base.parallel import usable_cores
from shardwise.engine import choice
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="one core has threads only")
NUM_SAMPLES = 48


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    with sw.TarWriter(str(folder / "{shard:02d}.tar"), max_samples=16) as writer:
        for i in range(NUM_SAMPLES):
            file = io.BytesIO()
            pixels = np.random.default_rng(i).integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file, "JPEG")
            writer.write({"__key__": f"{i:04d}", "jpg": file.getvalue(), "cls": i})
    return str(folder / "*.tar")


@pytest.fixture
def at_once(monkeypatch):
    """Processes start after the first batch."""
    monkeypatch.setattr(choice, "START_CPU_S", 0.0)


def decoded(shards, decoder=None):
    return sw.tar(shards).decode(jpg=decoder or sw.image(size=16, crop="random"), cls=int)


def made_by(data, **options):
    options = {"batch_size": 4, "shuffle": "full", "seed": 5, "output": "numpy", **options}
    return sw.DataLoader(data, rank=0, world_size=1, **options)


def begun(loader):
    """An iterator of a loader whose processes have begun."""
    batches = iter(loader)
    next(batches)
    wait_for(lambda: loader._maker.executor.processes.is_ready)
    return batches


def executor_of(loader):
    stats = loader.stats()
    return stats["executor"], stats["next_executor"]


def test_batches_are_the_same_before_during_and_after_processes_take_over(
    shards, at_once, monkeypatch
):
    # On a busy machine, threads would make the whole epoch ahead.
    monkeypatch.setattr("shardwise.engine.batch.prefetch._MAX_GROWTH", 1)
    names = {}
    with made_by(decoded(shards)) as loader, made_by(decoded(shards), num_threads=0) as reference:
        for epoch in range(2):
            for step, (batch, expected) in enumerate(zip(loader, reference, strict=True)):
                names[epoch, step] = executor_of(loader)
                for name in ("__key__", "jpg", "cls"):
                    np.testing.assert_array_equal(batch[name], expected[name])
                if (epoch, step) == (0, 1):
                    wait_for(lambda: loader._maker.executor.processes.is_ready)
        assert names[0, 0] == ("threads", "processes")
        assert {names[0, 11], names[1, 0], names[1, 11]} == {("processes", None)}
        assert loader.stats()["num_workers"] == usable_cores(num_ranks=1)


def test_a_small_job_starts_no_processes(shards, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr("shardwise.engine.processes.worker_pool.start_worker", never)
    with made_by(decoded(shards)) as loader:
        assert sum(len(batch["cls"]) for batch in loader) == NUM_SAMPLES
        assert executor_of(loader) == ("threads", "processes")


def test_a_closed_loader_starts_again_with_threads(shards, at_once):
    with made_by(decoded(shards)) as loader:
        assert sum(len(batch["cls"]) for batch in begun(loader)) == NUM_SAMPLES - 4
        assert executor_of(loader) == ("processes", None)
        loader.close()
        next(iter(loader))
        assert executor_of(loader) == ("threads", "processes")
        assert "processes after a second" in loader.stats()["executor_reason"]


class Locked:
    """A decoder of rows that holds what no other process can have."""

    row = ((2,), np.dtype(np.int64))

    def __init__(self):
        self._lock = threading.Lock()

    def __call__(self, data):
        return np.full(2, len(data))

    def decode_into(self, data, out):
        with self._lock:
            out[:] = len(data)


class Absent(Locked):
    """A decoder of rows of a module that only this process finds."""

    def __init__(self):
        pass

    def __call__(self, data):
        return np.full(2, len(data))

    def decode_into(self, data, out):
        out[:] = len(data)

    def __reduce__(self):
        return _fail_elsewhere, ()


def _fail_elsewhere():
    raise ImportError("only the trainer has this")


@pytest.mark.parametrize(
    ("decoder", "reason"),
    [(Locked, "can't be sent to worker processes"), (Absent, "only the trainer has this")],
)
def test_decoders_that_do_not_travel_stay_in_threads_with_one_warning(
    shards, at_once, caplog, decoder, reason
):
    with (
        caplog.at_level(logging.WARNING, "shardwise"),
        made_by(decoded(shards, decoder())) as loader,
    ):
        wait_for(lambda: list(loader) and executor_of(loader) == ("threads", None))
        assert sum(len(batch["cls"]) for batch in loader) == NUM_SAMPLES
        assert "could not take over" in loader.stats()["executor_reason"]
    [told] = [record.message for record in caplog.records if "Threads go on" in record.message]
    assert reason in told
    assert "num_workers=0" in told


def test_a_worker_that_ends_at_its_start_leaves_the_work_to_threads(
    shards, at_once, fresh_workers, monkeypatch, caplog
):
    monkeypatch.setattr(
        "shardwise.engine.processes.start_worker._WORKER", "shardwise.no_such_module"
    )
    with caplog.at_level(logging.WARNING, "shardwise"), made_by(decoded(shards)) as loader:
        wait_for(lambda: list(loader) and executor_of(loader) == ("threads", None))
    assert "ended with exit code 1" in caplog.text


PROGRAM = """
import sys, time
import shardwise as sw
from shardwise.engine import choice
choice.START_CPU_S = 0.0
data = sw.tar(sys.argv[-1]).decode(jpg=sw.image(size=16), cls=int)
loader = sw.DataLoader(data, batch_size=4, rank=0, world_size=1, output="numpy")
batches = iter(loader)
next(batches)
while not loader._maker.executor.processes.is_ready:
    time.sleep(0.01)
print(sum(len(batch["cls"]) for batch in batches), loader.stats()["executor"])
"""


@pytest.mark.parametrize("has_file", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_program_without_main_guard_or_file_gets_processes(shards, tmp_path, has_file):
    (tmp_path / "train.py").write_text(PROGRAM)
    program = [str(tmp_path / "train.py")] if has_file else ["-c", PROGRAM]
    ended = subprocess.run(
        [sys.executable, *program, shards], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["44", "processes"]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (decoded, {"num_workers": 0}),
        (decoded, {"num_threads": 2}),
        (decoded, {"executor": "threads"}),
        (lambda shards: decoded(shards, len), {}),
        (lambda shards: sw.tar(shards).decode(jpg=sw.image(), cls=int), {}),
        (lambda shards: sw.wrap([b"1"] * 8).decode(value=Locked()), {}),
    ],
    ids=["no workers", "threads", "by name", "a plain function", "no fixed size", "objects"],
)
def test_nothing_takes_over_where_threads_are_asked_for_or_rows_differ(shards, make, options):
    with made_by(make(shards), **options) as loader:
        stats = loader.stats()
        assert stats["next_executor"] is None
        assert (stats["executor_reason"] == "asked for") == bool(options)


def test_the_reason_for_threads_is_the_property_that_decided(shards):
    with made_by(sw.tar(shards).decode(jpg=sw.image(), cls=int)) as loader:
        assert loader.stats()["executor_reason"] == "no decoder fills rows of a fixed shape"
