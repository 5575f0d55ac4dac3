"""The benchmark of a GPU walks through its parts without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_training
from benchmarks.gpu_loaders import LOADERS, Setting, make_images
from benchmarks.gpu_models import resnet
from tests.support.ranks import Run, run_several

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures")
    make_images(directory, 16)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # toys are slower with more
    yield Setting(directory, "cpu", batch_size=4, size=16, workers=1, seconds=0.01)
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
        *(f"decode_on={decode_on!r}" for decode_on in ("cpu", "device", "auto")),
        "bytes, not decoded",
    ]
    assert not any("error" in row for row in rows)


def test_a_part_that_fails_is_a_line_of_its_own(setting, monkeypatch):
    def part(setting):
        yield {"what": "first"}
        raise KeyError("no second")

    monkeypatch.setitem(gpu.PARTS, "races", part)
    first, second = gpu.measured("races", setting)
    assert first == {"part": "races", "what": "first"}
    assert "no second" in second["error"]


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
