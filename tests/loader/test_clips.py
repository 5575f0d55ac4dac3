"""Clips over ranks: each once an epoch, also where two ranks are killed and three go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import shardwise as sw
from tests.support.commands import document
from tests.support.ranks import Run, run_several

PROGRAM = Path(__file__).parent / "programs" / "clips.py"


def test_killed_ranks_are_resumed_by_three_and_have_each_clip_once(media_files, tmp_path):
    shard = tmp_path / "v.tar"
    with sw.TarWriter(shard, media=True) as writer:
        for name in ("b_frames", "one_key", "vfr", "hevc"):
            writer.write({"__key__": name, "mp4": media_files.read(name)})
    program = (PROGRAM, shard, tmp_path)
    killed, _ = run_several(Run(program, 2, check=False), Run(program, 3))
    assert killed.returncode != 0
    data = sw.tar(shard).select("mp4").clips("mp4", frames=4, step=6, jitter=6, size=(60, 80))
    seen = [
        tuple(json.loads(line))
        for path in tmp_path.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    epochs = []
    for epoch in range(2):
        ids = [i for e, i, _ in seen if e == epoch]
        assert sorted(ids) == list(range(len(data)))
        # The topology has no say in which frames a clip has.
        media = data.select("__media__").load(np.arange(len(data)), epoch=epoch)["__media__"]
        expected = [each["frames"][0] for each in media]
        epochs.append(expected)
        assert all(start == expected[i] for e, i, start in seen if e == epoch)
    assert epochs[0] != epochs[1]
    found = document("certify", tmp_path / "coverage")
    for epoch in found["orders"][0]["epochs"]:
        assert f"every one of {len(data)} samples exactly once" in epoch["verdict"]
