"""`shardwise report`: one page that a browser shows in light and dark, without another file."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import shardwise as sw
from tests.support.browser import look_at
from tests.support.commands import document, run
from tests.support.metrics import write_rank
from tests.support.tars import make_shards


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Metrics and coverage of four ranks that trained together."""
    folder = tmp_path_factory.mktemp("run")
    urls = make_shards(folder / "shards", [40, 60, 30])
    made = [
        sw.DataLoader(
            sw.tar(urls), batch_size=5, shuffle=True, rank=rank, world_size=4, num_threads=0,
            output="numpy", remainder="uneven", metrics=folder / "m", coverage=folder / "c",
        )
        for rank in range(4)
    ]  # fmt: skip
    threads = [threading.Thread(target=list, args=(loader,)) for loader in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for loader in made:
        loader.close()
    return folder / "m"


@pytest.fixture(scope="module")
def page(directory):
    path = directory.parent / "run.html"
    found = document("report", directory, "-o", path)
    assert found["coverage"]["ok"]
    assert found["bytes"] == path.stat().st_size < 300_000
    return path


def test_the_page_is_whole_and_loads_nothing(page):
    text = page.read_text()
    for title in ("samples per second", "waiting for data", "busy seconds by stage"):
        assert title in text
    for title in ("slowest shards", "plan of epoch 0", "plan of epoch 1"):
        assert title in text
    assert "every one of 130 samples exactly once" in text
    assert "<script" not in text
    assert "@import" not in text
    # Names of namespaces load nothing, and pictures are inside.
    sources = re.findall(r"""(?:href|src)\s*=\s*["']([^"']*)["']|url\(([^)]*)\)""", text)
    assert all((one or other).startswith(("#", "data:")) for one, other in sources)


def test_a_browser_shows_it_in_light_and_in_dark(page, tmp_path):
    light, dom = look_at(page, "light", tmp_path)
    dark, _ = look_at(page, "dark", tmp_path)
    assert dom.count("<svg") == 1
    # The ground of the page, and the ink, which is the other way round in dark.
    assert light[2, 2].min() > 230 > 60 > dark[2, 2].max()
    ink = {"light": (light.max(axis=2) < 60).mean(), "dark": (dark.min(axis=2) > 200).mean()}
    assert min(ink.values()) > 0.003
    # The map has its colours in both: yellow is what all ranks read.
    for picture in (light, dark):
        yellow = (np.abs(picture.astype(int) - [253, 231, 37]).max(axis=2) < 12).sum()
        assert yellow > 500


def test_of_many_ranks_the_straggler_stands_out(tmp_path):
    for rank in range(64):
        write_rank(tmp_path / "m", rank, [0.6 if rank == 40 else 0.1] * 30, world_size=64)
    out = tmp_path / "run.html"
    assert document("report", tmp_path / "m", "-o", out)["straggler"] == 40
    text = out.read_text()
    assert "rank 40" in text
    assert "rank 41" not in text
    assert "No loader had coverage=" in text


def test_a_run_before_its_first_state_has_a_page_that_says_so(tmp_path):
    options = {"rank": 0, "world_size": 1, "num_threads": 0, "output": "numpy"}
    folders = {"metrics": tmp_path / "m", "coverage": tmp_path / "c"}
    with sw.DataLoader(sw.wrap(range(20)), batch_size=5, **options, **folders) as loader:
        next(iter(loader))
    (tmp_path / "c").mkdir(exist_ok=True)
    out = tmp_path / "run.html"
    assert document("report", tmp_path / "m", "-o", out)["coverage"] is None
    assert "at state_dict() and at an epoch&#x27;s end" in out.read_text()
    named = ("--coverage", tmp_path / "c")
    assert "no coverage" in run("report", tmp_path / "m", "-o", out, *named, exit_code=1).stderr


def test_names_from_lines_are_no_markup(tmp_path):
    changes = {"bound_by": "<script>1</script>"}
    changes["slowest_shards"] = [{"url": "a/<script>.tar", "seconds_a_sample": 1.0}]
    write_rank(tmp_path, 0, [0.1] * 3, **changes)
    out = tmp_path / "run.html"
    run("report", tmp_path, "-o", out)
    assert "<script" not in out.read_text()


def test_a_damaged_map_names_its_file(tmp_path):
    path = write_rank(tmp_path, 0, [0.1] * 3).with_suffix(".plan")
    path.write_text("{")
    assert path.name in run("report", tmp_path, "-o", tmp_path / "x", exit_code=1).stderr
