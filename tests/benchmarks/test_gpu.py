"""The benchmark of a GPU walks through its parts without one."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_training
from benchmarks.gpu_loaders import LOADERS, Setting, make_images
from benchmarks.gpu_models import resnet
from shardwise.extensions.device_images import decoding
from tests.support.device_images import StandIn
from tests.support.fake_cuda import FakeCuda, FakeStream
from tests.support.ranks import Run, run_several

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures")
    make_images(directory, 16)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # toys are slower with more
    yield Setting(directory, "cpu", batch_size=4, size=16, workers=1, seconds=0.01, is_toy=True)
    torch.set_num_threads(num_threads)


def test_training_measures_each_loader_and_says_which_is_left_out(setting, monkeypatch):
    chosen = ("synthetic", "shardwise, threads", "shardwise, device")
    monkeypatch.setattr(gpu_training, "LOADERS", {name: LOADERS[name] for name in chosen})
    rows = list(gpu.measured("resnet18", setting))
    assert [row["what"] for row in rows] == list(chosen)
    assert all(row["images_s"] >= 0 for row in rows[:2])
    assert "device='cuda'" in rows[2]["skipped"]


def test_the_loader_alone_is_measured(setting):
    rows = list(gpu.measured("nvjpeg", setting))
    assert [row["what"] for row in rows] == [
        *(f"decode_on={decode_on!r} against the CPU" for decode_on in ("device", "auto")),
        *(f"decode_on={decode_on!r}" for decode_on in ("cpu", "device", "auto")),
        "bytes, not decoded",
    ]
    assert not any("error" in row for row in rows)
    assert "device='cuda'" in rows[0]["skipped"]
    assert (rows[1]["compared"], rows[1]["wrong"]) == (16, 0)


def test_images_that_the_device_decodes_wrong_are_counted(setting, monkeypatch):
    class OtherOrder(StandIn):
        def decode(self, files, mode):
            first, *rest = super().decode(files, mode)
            return [255 - first, *rest]

    monkeypatch.setattr(decoding, "find_decoder", lambda device: OtherOrder())
    loader = partial(gpu_training.shardwise_loader, num_workers=0, num_threads=1)
    monkeypatch.setattr(gpu_training, "shardwise_loader", loader)
    row = gpu_training._compare(setting, "device", "cpu")
    assert (row["compared"], row["wrong"], row["decoded_on_device"]) == (16, 4, 16)


def test_a_floor_whose_libraries_are_missing_is_left_out(setting, monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setattr(gpu_training, "_scale", lambda setting, count: {"threads": 1})
    loader, floor, _ = gpu.measured("scaling", setting)
    assert loader["threads"] == 1
    assert "simplejpeg" in floor["skipped"]


def test_a_part_that_fails_is_a_line_of_its_own(setting, monkeypatch):
    def part(setting):
        yield {"what": "first"}
        raise KeyError("no second")

    monkeypatch.setitem(gpu.PARTS, "races", part)
    first, second = gpu.measured("races", setting)
    assert first == {"part": "races", "what": "first"}
    assert "no second" in second["error"]


def test_a_loader_that_fails_is_a_line_of_its_part(setting, monkeypatch):
    def fail(setting):
        yield from LOADERS["synthetic"](setting)
        raise AssertionError

    def exhaust(setting):
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    def lack(setting):
        raise AttributeError("no such method of a rival")
        yield

    loaders = {"synthetic": fail, "large": exhaust, "other": lack, "again": fail}
    monkeypatch.setattr(gpu_training, "LOADERS", loaders)
    rows = list(gpu.measured("resnet18", setting))
    assert [row["what"] for row in rows] == list(loaders)
    assert rows[1]["error"] == "OutOfMemoryError: CUDA out of memory"
    assert "no such method" in rows[2]["error"]
    assert rows[3]["images_s"] >= 0


def test_no_measurement_starts_after_the_budget(setting):
    rows = list(gpu.measured("races", replace(setting, until=0.0)))
    assert len(rows) == 8
    assert {row["skipped"] for row in rows} == {"the budget is spent"}


def test_two_calls_of_seven_minutes_measure_all_parts():
    assert gpu.SECONDS.keys() == gpu.PARTS.keys()
    first = gpu.fitting(list(gpu.PARTS), 420)
    rest = [part for part in gpu.PARTS if part not in first]
    assert gpu.fitting(rest, 420) == rest
    assert gpu.fitting(list(gpu.PARTS), 20) == []


def test_a_call_with_the_same_file_measures_what_is_missing(tmp_path, monkeypatch, capsys):
    file, calls = tmp_path / "lines.json", []

    def part(name, setting):
        calls.append(name)
        assert file.read_text().count("machine"), "each line is written as it is made"
        yield {"what": "line"} | ({"error": "no"} if calls == ["races", "bubble"] else {})

    parts = {name: partial(part, name) for name in ("races", "bubble", "resnet50")}
    monkeypatch.setattr(gpu, "PARTS", parts)
    command = ["gpu", "--device", "cpu", "--images", "4", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", [*command, "--budget", "100"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--only resnet50" in capsys.readouterr().err
    with file.open("a") as lines:
        lines.write('{"part": "resnet50", "what": "fin')
    monkeypatch.setattr(sys, "argv", command)
    gpu.main()
    assert calls == ["races", "bubble", "bubble", "resnet50"]
    assert gpu.finished(file) == set(parts)


def test_races_and_the_hand_over_run_on_a_device(setting, monkeypatch):
    """CUDA is a stand-in, whose copies come as late as they may."""
    cuda = FakeCuda().install(monkeypatch)

    randn = torch.randn

    def make_on_cpu(*shape, device):
        assert device == "cuda"
        return randn(*shape)

    monkeypatch.setattr(torch, "randn", make_on_cpu)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: FakeStream(cuda))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream or FakeStream(cuda))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: FakeStream(cuda))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(FakeStream, "wait_stream", lambda self, stream: None, raising=False)
    monkeypatch.setattr(FakeStream, "wait_event", lambda self, event: event.synchronize())
    on_device = replace(setting, device="cuda")
    rows = list(gpu.measured("races", on_device))
    assert [row["wrong"] for row in rows] == [0] * 8
    assert cuda.pinned
    # The stand-in refuses what comes after the loaders: copies from pageable memory.
    rows = list(gpu.measured("handover", on_device))[:4]
    assert any(note.startswith("register") for note in cuda.notes)
    assert all(row["main_thread_ms"] >= 0 for row in rows), rows
    gc.collect()
    assert cuda.registered == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_so():
    run = Run(("-m", "benchmarks.gpu", "--only", "races"), None, check=False)
    [done] = run_several(run)
    assert done.returncode == 2
    assert "sees no CUDA device" in done.stdout


@pytest.mark.parametrize(("name", "millions"), [("resnet18", 11.7), ("resnet50", 25.6)])
def test_the_models_have_their_papers_numbers_of_parameters(name, millions):
    with torch.device("meta"):
        count = sum(each.numel() for each in resnet(name).parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.long
def test_all_parts_run_on_the_cpu(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--images", "32"]
    out = tmp_path / "lines.json"
    done = subprocess.run([*command, "--json", str(out)], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert len(out.read_text().splitlines()) > 30
