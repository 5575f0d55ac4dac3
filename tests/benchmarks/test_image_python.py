"""The benchmark of Python per image walks through its pictures."""

from __future__ import annotations

import json
import shutil
import sys

import cv2
import numpy as np
import pytest

from benchmarks import image_python

TOYS = {"16x16": (16, 16, 16, 128), "24x30": (24, 30, 16, 128)}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    num_threads = cv2.getNumThreads()
    monkeypatch.setattr(image_python, "PICTURES", TOYS)
    yield
    cv2.setNumThreads(num_threads)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("layout", image_python.LAYOUTS)
def test_the_bare_decoders_make_the_loaders_rows(tmp_path, name, layout):
    height, width, _, count = TOYS[name]
    (tmp_path / name).mkdir()
    image_python.write_pictures(tmp_path / name, height, width, count)
    case = image_python.Case(tmp_path, name, layout)
    batch = next(iter(case.loader))
    case.decode(case.read(batch["__index__"].tolist()))
    assert np.array_equal(case.rows, batch["jpg"])
    assert case.rows.strides == batch["jpg"].strides


def test_a_row_for_each_picture_and_layout_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(image_python, "releases_of", lambda *_: {"loader_releases": 2.0})
    monkeypatch.setattr(sys, "argv", ["image_python", "--batches", "2", "--json"])
    image_python.main()
    rows = json.loads(capsys.readouterr().out)
    assert [(row["picture"], row["layout"]) for row in rows] == [
        (name, layout) for name in TOYS for layout in image_python.LAYOUTS
    ]
    assert all(row["loader_us"] > 0 for row in rows)
    monkeypatch.setattr(sys, "argv", ["image_python", "--batches", "2", "--picture", "16x16"])
    image_python.main()
    assert capsys.readouterr().out.count("| 2.0 | - |") == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
def test_releases_of_the_gil_are_counted_by_a_process_of_its_own(tmp_path):
    height, width, _, count = image_python.PICTURES["16x16"]
    (tmp_path / "16x16").mkdir()
    image_python.write_pictures(tmp_path / "16x16", height, width, count)
    counts = image_python.releases_of(tmp_path, "16x16", "channels_last")
    # A read, and a header and pixels by simplejpeg; the loader joins reads.
    assert not counts or (counts["bare_releases"] == 3 and 2 < counts["loader_releases"] < 3)
