"""`shardwise bench`: counts and choices are exact; speeds are only shown."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

import shardwise.extensions.tools.bench  # noqa: F401 - the command takes the module's name in its package
from shardwise import image
from shardwise.extensions.tools.plots import _rates
from tests.support.commands import document, run, spawn
from tests.support.pages import write_shards
from tests.support.tars import make_shards, write_tar
from tests.support.waiting import wait_for

GUARD_S = 120
bench_module = sys.modules["shardwise.extensions.tools.bench"]


@pytest.fixture
def data(tmp_path):
    make_shards(tmp_path / "data", [40, 0, 35, 30])
    return tmp_path / "data"


def bench(data, *options):
    return document("bench", data, "--batches", 7, "--num-threads", 1, *options)


def test_so_many_batches_are_taken_epoch_after_epoch(data):
    found = bench(data)
    assert (found["num_batches"], found["num_shards"], found["num_samples"]) == (7, 4, 105)
    # 64 and 41 in turn; the first batch is not counted.
    assert found["num_samples_loaded"] == 4 * 41 + 3 * 64
    assert found["samples_per_s"] == pytest.approx(found["num_samples_loaded"] / found["seconds"])
    assert found["bytes_per_s"] > 0
    assert found["first_batch_s"] > 0
    assert [stage["name"] for stage in found["stages"]] == [
        "read",
        "decode",
        "collate",
        "hand over",
    ]
    assert sum(stage["share"] for stage in found["stages"]) == pytest.approx(1)
    assert found["wait_s"] <= found["seconds"]
    assert len(found["slowest_shards"]) == 3
    assert found["verdict"]


def test_time_ends_it_where_no_batches_are_given(data):
    found = document("bench", data, "--seconds", 0.05, "--num-threads", 1)
    assert found["seconds"] >= 0.05
    assert found["num_batches"] >= 1


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (("--num-threads", 3), ("threads", 0, 3)),
        (("--num-threads", 0), ("inline", 0, 0)),
        (("--num-workers", 1), ("processes", 1, 1)),
        (("--executor", "inline"), ("inline", 0, 0)),
    ],
)
def test_who_makes_the_batches_is_told(data, options, chosen):
    found = document("bench", data, "--batches", 2, *options)
    assert (found["executor"], found["num_workers"], found["num_threads"]) == chosen


def test_images_are_decoded_to_the_size_that_is_asked_for(tmp_path, monkeypatch):
    write_shards(tmp_path / "shards")
    sizes = []
    monkeypatch.setattr(
        "shardwise.extensions.tools.bench.image",
        lambda mode, *, size: sizes.append(size) or image(mode, size=size),
    )
    assert bench(tmp_path / "shards", "--image-size", 8)["image_size"] == 8
    assert sizes == [8]
    written = run("bench", tmp_path / "shards", "--batches", 2, "--image-size", 9).stdout
    assert "fields       cls, jpg, txt, images of 9 x 9\n" in written


def test_a_loop_beside_the_loader_is_measured_alone_and_beside(data, monkeypatch):
    monkeypatch.setattr("shardwise.extensions.tools.bench_beside._RUN_S", 0.1)
    found = bench(data, "--beside")["beside"]
    assert found["ratio"] == pytest.approx(found["beside_per_s"] / found["alone_per_s"])
    assert found["alone_slice_p99_s"] > 0 < found["beside_slice_p99_s"]
    assert bench(data)["beside"] is None
    told = run("bench", data, "--batches", 2, "--beside").stdout
    assert "of its speed beside the loader" in told
    assert "alone" in told


def test_without_decoding_damaged_values_do_not_matter(tmp_path):
    write_tar(tmp_path / "a.tar", [(f"{i}.cls", b"no number") for i in range(8)])
    assert "no number" in run("bench", tmp_path, exit_code=1).stderr
    assert "cls, not decoded" in run("bench", tmp_path, "--batches", 2, "--decode", "none").stdout


def test_what_does_not_fit_together_is_a_usage_error(data):
    for options, message in (
        (("--image-size", 8), "no field is an image, they are bin, cls, txt"),
        (("--image-size", 8, "--decode", "none"), "--image-size is about decoding"),
        (("--executor", "inline", "--num-threads", 3), "num_threads=3"),
        (("--executor", "threads", "--num-workers", 2), "num_workers=2"),
        (("--plot", data / "x.tar"), "the name must end in one of"),
        (("--plot", data / "nowhere" / "x.png"), "there is no directory"),
    ):
        result = run("bench", data, "--batches", 2, *options, exit_code=2)
        assert message in " ".join(result.stderr.split())
        assert result.stdout == ""


def test_missing_and_damaged_shards_are_exit_code_1(data):
    assert "no file matches" in run("bench", data / "*.zip", exit_code=1).stderr
    os.truncate(sorted(data.glob("*.tar"))[0], 4000)
    result = run("bench", data, "--json", exit_code=1)
    assert "part-000.tar" in json.loads(result.stdout)["error"]["message"]


def test_an_empty_set_is_refused(tmp_path):
    make_shards(tmp_path, [0])
    assert "no samples" in run("bench", tmp_path, exit_code=2).stderr


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_the_picture_is_drawn(data, name):
    bench(data, "--plot", data.parent / name)
    head = (data.parent / name).read_bytes()[:200]
    assert head.startswith(b"\x89PNG") or b"<?xml" in head


@pytest.mark.parametrize("burst", [1, 7])
def test_the_rate_over_time_is_that_of_a_window_and_bursts_are_no_spikes(burst):
    marks = [(0.5 * (i + burst - 1 - i % burst) + 0.001 * i, 10) for i in range(1, 141)]
    ends, rates = _rates(marks)
    assert ends[-1] == marks[-1][0] == pytest.approx(12 * ends[1])
    assert len(ends) == len(rates) + 1
    assert all(10 < rate < 30 for rate in rates)
    if burst == 1:
        assert rates == pytest.approx([20.0] * len(rates), rel=0.01)


def test_the_batches_that_were_ready_are_followed_over_the_run(data, monkeypatch):
    drawn = []
    monkeypatch.setattr(bench_module, "draw", lambda *arguments: drawn.append(arguments))
    run("bench", data, "--seconds", 0.5, "--num-threads", 1, "--plot", data / "x.png")
    ((_, document, marks, ready),) = drawn
    times = [when for when, _ in ready]
    assert 1 <= len(ready) <= 11
    assert times == sorted(times)
    assert set(times) <= {when for when, _ in marks}
    assert all(0 <= depth < 1000 for _, depth in ready)
    assert min(d for _, d in ready) - 2 <= document["queue_depth"] <= max(d for _, d in ready) + 2


def test_an_interrupt_ends_it_and_its_processes(data):
    import psutil

    process = spawn("bench", data, "--seconds", 600, "--num-workers", 2)
    seen = psutil.Process(process.pid)
    wait_for(lambda: len(seen.children(recursive=True)) >= 2, process=process)
    children = seen.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 130
    assert out == b""
    assert err.splitlines()[-1] == b"shardwise: interrupted"
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
