"""The shards of `python -m shardwise.demo_data` are what the README and the pages open."""

from __future__ import annotations

import runpy
import sys

import numpy as np

import shardwise as sw
from tests.support.pages import write_shards


def test_the_digits_are_written_where_the_command_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo_data", "shards"])
    runpy.run_module("shardwise.demo_data", run_name="__main__")
    assert "1,797 samples in shards/train-{000000..000003}.tar" in capsys.readouterr().out
    data = sw.tar("shards/train-{000000..000003}.tar").decode(jpg=sw.image(size=64), cls=int)
    assert len(data) == 1797
    assert data[5]["jpg"].shape == (3, 64, 64)
    assert set(np.unique(data.column("cls")).tolist()) == set(range(10))
    write_shards(tmp_path / "pages")
    of_pages = sw.tar("pages/train-{000000..000003}.tar").decode(jpg=sw.image(size=64), cls=int)
    assert of_pages.fields == data.fields
    assert [of_pages[3][name] for name in ("__key__", "cls", "txt")] == [
        data[3][name] for name in ("__key__", "cls", "txt")
    ]
