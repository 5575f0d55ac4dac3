"""Lines of metrics: one by one, bounded, and of no consequence to the training."""

from __future__ import annotations

import gc
import logging
import pickle
import shutil
import threading
from contextlib import contextmanager

import pytest

import shardwise as sw
from shardwise.extensions.monitor import metrics_file
from shardwise.extensions.service.service import service
from tests.support.batch_servers import addresses, serving
from tests.support.commands import document
from tests.support.metrics import lines_of
from tests.support.waiting import wait_for

DATA = sw.wrap(range(40))


def loader(directory, data=DATA, **options):
    base = {"batch_size": 5, "rank": 0, "world_size": 1, "output": "numpy", "num_threads": 0}
    return sw.DataLoader(data, metrics=directory, **(base | options))


@contextmanager
def options_of(executor):
    if executor == "service":
        with serving(DATA) as servers:
            yield {"executor": service(",".join(addresses(servers))), "num_threads": None}
    else:
        workers = {"inline": 0, "threads": 0, "processes": 1}[executor]
        yield {"num_workers": workers, "num_threads": 0 if executor == "inline" else 1}


@pytest.mark.parametrize("executor", ["inline", "threads", "processes", "service"])
def test_the_last_line_has_all_that_a_loader_counted(tmp_path, executor):
    with options_of(executor) as options, loader(tmp_path, **options) as made:
        list(made)
        made.stats(reset=True)
        list(made)
        stats = made.stats(since={})
        made.close()
        [lines] = lines_of(tmp_path)
    assert lines[0]["totals"]["batches"] <= lines[-1]["totals"]["batches"] == 16
    # Not those of storage, which are the process's.
    for name in ("samples", "batches", "seconds", "wait_s", "wait_ms", "wall_s"):
        assert lines[-1]["totals"][name] == stats["totals"][name]
    assert lines[-1]["executor"] == executor
    assert (lines[-1]["rank"], lines[-1]["world_size"], lines[-1]["progress"]) == (0, 1, 1.0)


def test_a_line_is_written_each_interval_also_while_the_program_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "INTERVAL_S", 0.01)
    go = threading.Event()

    def gate(sample):
        go.wait()
        return sample

    with loader(tmp_path, DATA.map(gate)) as made:
        trainer = threading.Thread(target=list, args=(made,))
        trainer.start()
        wait_for(lambda: any(line["waiting_s"] > 0 for each in lines_of(tmp_path) for line in each))
        go.set()
        trainer.join()
        wait_for(lambda: lines_of(tmp_path)[0][-1]["progress"] == 1.0)
    assert lines_of(tmp_path)[0][-1]["waiting_s"] == 0.0


def test_a_long_file_is_thinned_out_and_keeps_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "INTERVAL_S", 0.0005)
    monkeypatch.setattr(metrics_file, "MAX_LINES", 8)
    with loader(tmp_path) as made:
        next(iter(made))
        wait_for(lambda: lines_of(tmp_path))
        first = lines_of(tmp_path)[0][0]
        # At half a millisecond a line, some hundred.
        wait_for(lambda: lines_of(tmp_path)[0][-1]["time"] > first["time"] + 0.1)
    [lines] = lines_of(tmp_path)
    assert lines[0] == first
    assert len(lines) <= 8
    times = [line["time"] for line in lines]
    assert times == sorted(times)


def test_a_directory_that_can_not_be_written_warns_once_and_stops_nothing(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(metrics_file, "INTERVAL_S", 0.01)
    directory = tmp_path / "metrics"
    with caplog.at_level(logging.WARNING, "shardwise"), loader(directory) as made:
        shutil.rmtree(directory)
        batches = iter(made)
        next(batches)
        writer = made._passes.metrics._lines
        wait_for(lambda: writer._has_warned)
        for _ in range(3):
            seen = writer._last
            wait_for(lambda: writer._last is not seen)  # noqa: B023 - called in this round
        assert len(list(batches)) == 7
        directory.mkdir()
        wait_for(lambda: lines_of(directory))
    warnings = [each.getMessage() for each in caplog.records if "metrics=" in each.getMessage()]
    assert len(warnings) == 1
    assert "continues without these lines" in warnings[0]
    # What could not be written is in the sums of the next line.
    assert lines_of(directory)[0][-1]["totals"]["batches"] == 8


def test_a_disk_without_room_for_a_line_leaves_no_part_of_it(tmp_path, monkeypatch):
    lines = metrics_file._Lines(tmp_path, 0, None)
    lines._append(b"whole\n")

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            self.file.close()

        def write(self, data):
            return self.file.write(data[:3])

        def __getattr__(self, name):
            return getattr(self.file, name)

    path = type(lines._path)
    opened = path.open
    with monkeypatch.context() as patch:
        patch.setattr(path, "open", lambda *args, **options: Full(opened(*args, **options)))
        with pytest.raises(OSError, match="full"):
            lines._append(b"cut off\n")
    assert lines._path.read_bytes() == b"whole\n"


def test_a_loader_that_is_dropped_writes_its_last_line_and_ends_its_thread(tmp_path):
    made = loader(tmp_path)
    list(made)
    thread = made._passes.metrics._lines._thread
    del made
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert lines_of(tmp_path)[0][-1]["totals"]["batches"] == 8


def test_a_pickled_loader_writes_a_file_of_its_own(tmp_path):
    with loader(tmp_path) as made:
        next(iter(made))
        with pickle.loads(pickle.dumps(made)) as copy:
            list(copy)
    assert sorted(lines[-1]["totals"]["batches"] for lines in lines_of(tmp_path)) == [1, 8]


def test_metrics_and_coverage_share_a_directory(tmp_path):
    with loader(tmp_path, coverage=tmp_path) as made:
        list(made)
    assert len(lines_of(tmp_path)) == 1
    assert document("certify", tmp_path)["ok"]


def test_a_wrong_directory_is_an_error_of_the_argument(tmp_path):
    with pytest.raises(ValueError, match="metrics='s3://bucket/m': give a local directory"):
        loader("s3://bucket/m")
    with pytest.raises(TypeError, match="metrics"):
        loader(5)
    (tmp_path / "file").touch()
    with pytest.raises(sw.StorageError, match="leave metrics= out"):
        loader(tmp_path / "file")


def test_a_rank_that_changes_begins_another_file(tmp_path):
    with loader(tmp_path) as made:
        current = made._passes.position.begin(made.plan.divided(2))
        for rank in (0, 1):
            made._passes.metrics.begin(current, rank, DATA, lambda since: made.stats(since=since))
    assert sorted(lines[-1]["rank"] for lines in lines_of(tmp_path)) == [0, 1]


class OfOneThread:
    """An order that is asked by the thread that made it alone."""

    seed, num_samples = 0, 40

    def __init__(self):
        self.thread = threading.get_ident()

    def indices(self, epoch, positions):
        assert threading.get_ident() == self.thread
        return positions

    def spec(self):
        return {"sampler": "one thread"}


def test_a_sampler_of_the_program_is_never_called_by_the_thread(tmp_path):
    with loader(tmp_path, sampler=OfOneThread()) as made:
        list(made)
    assert lines_of(tmp_path)[0][-1]["totals"]["batches"] == 8
    assert document("report", tmp_path, "-o", tmp_path / "run.html")["world_size"] == 1
