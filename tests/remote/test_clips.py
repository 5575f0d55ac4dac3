"""Clips of videos in stores: one request a clip, of few more bytes than it needs."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from tests.support.media import numbers_in

NAMES = ("b_frames", "one_key", "open_gop")


@pytest.fixture
def url(s3, media_files, tmp_path):
    path = tmp_path / "v.tar"
    with sw.TarWriter(path, media=True) as writer:
        for name in NAMES:
            # What lies behind keeps requests of two videos apart.
            pad = bytes(1 << 20)
            writer.write({"__key__": name, "mp4": media_files.read(name), "zz": pad})
    url = s3.put("clips/v.tar", path.read_bytes())
    build_indexes([url], options=StorageOptions(config=s3.config))
    s3.put("clips/v.tar.media", (tmp_path / "v.tar.media").read_bytes())
    return url


def test_a_clip_is_one_request_and_few_bytes(s3, url, counted):
    ds = sw.tar(url, storage=s3.config).select("mp4").clips("mp4", frames=8, step=25)
    assert len(ds) == 9
    ds[0]  # the shard's index is opened
    for number in range(9):
        counted()
        loaded = ds.load(np.array([number]))
        found = counted()
        assert found["requests"] == 1
        media = loaded["__media__"][0]
        assert numbers_in(loaded["mp4"][0], "TCHW") == media["frames"]
        needed = ds.source._files.index(number // 3).first("video")
        segments = needed.segments(np.array(media["frames"]))
        size = sum(int(needed.columns.size[part.samples].sum()) for part in segments)
        assert found["bytes"] <= 1.3 * size
    counted()
    ds.load(np.arange(9))
    # The clips of one video lie near each other.
    assert counted()["requests"] == 3


def test_opening_reads_the_sidecar_by_one_request(s3, url, counted):
    source = sw.tar(url, storage=s3.config).select("mp4")
    assert len(source) == 3
    before = len(s3.requests())
    source.clips("mp4", frames=8)
    names = [each["path"].rpartition("/")[2] for each in s3.requests()[before:]]
    assert [each["method"] for each in s3.requests()[before:] if "media" in each["path"]].count(
        "GET"
    ) == 1, names
