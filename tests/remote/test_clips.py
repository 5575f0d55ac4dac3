"""Clips of videos in stores: one request a clip, of few more bytes than it needs."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from tests.support.media import ffmpeg, numbers_in

NAMES = ("b_frames", "one_key", "open_gop")


def stored(s3, path, files):
    """The url of a shard of these files, with its index and its sidecar."""
    with sw.TarWriter(path, media=True) as writer:
        for key, data in files.items():
            # What lies behind keeps requests of two videos apart.
            writer.write({"__key__": key, "mp4": data, "zz": bytes(1 << 20)})
    url = s3.put(f"clips/{path.name}", path.read_bytes())
    build_indexes([url], options=StorageOptions(config=s3.config))
    s3.put(f"clips/{path.name}.media", path.with_name(f"{path.name}.media").read_bytes())
    return url


@pytest.fixture
def url(s3, media_files, tmp_path):
    return stored(s3, tmp_path / "v.tar", {name: media_files.read(name) for name in NAMES})


def test_a_clip_is_one_request_and_few_bytes(s3, url, counted):
    ds = sw.tar(url, storage=s3.unhedged).select("mp4").clips("mp4", frames=8, step=25)
    assert len(ds) == 9
    ds[0]  # the shard's index is opened
    for number in range(9):
        counted()
        loaded = ds.load(np.array([number]))
        found = counted()
        assert found["requests"] == 1
        media = loaded["__media__"][0]
        assert numbers_in(loaded["mp4"][0], "TCHW") == media["frames"]
        needed = ds.source._files["mp4"].index(number // 3).first("video")
        segments = needed.segments(np.array(media["frames"]))
        size = sum(int(needed.columns.size[part.samples].sum()) for part in segments)
        assert found["bytes"] <= 1.3 * size
    counted()
    ds.load(np.arange(9))
    # The clips of one video lie near each other.
    assert counted()["requests"] == 3


def test_opening_reads_the_sidecar_by_one_request(s3, url):
    source = sw.tar(url, storage=s3.unhedged).select("mp4")
    assert len(source) == 3
    before = len(s3.requests())
    source.clips("mp4", frames=8)
    names = [each["path"].rpartition("/")[2] for each in s3.requests()[before:]]
    assert [each["method"] for each in s3.requests()[before:] if "media" in each["path"]].count(
        "GET"
    ) == 1, names


def test_the_sound_of_a_clip_is_its_packets_and_256_kb_at_most(s3, tmp_path, counted):
    files = {}
    for codec, extension in (("aac", "mp4"), ("libmp3lame", "mp4"), ("libopus", "mkv")):
        path = tmp_path / f"{codec}.{extension}"
        sound = "-f lavfi -i color=s=32x32:r=25:d=40 -f lavfi -i anoisesrc=d=40:r=48000:a=0.5"
        options = f"-c:v libx264 -preset ultrafast -c:a {codec} -b:a 256k"
        ffmpeg(*sound.split(), *options.split(), str(path))
        files[codec] = path.read_bytes()
    ds = sw.tar(stored(s3, tmp_path / "s.tar", files), storage=s3.unhedged).select("mp4")
    clips = ds.clips("mp4", frames=50, count=1, audio="same")
    heard = clips.select("mp4.audio", "__media__")
    heard[0]  # the shard's index is opened
    for number in range(3):
        counted()
        loaded = heard.load(np.array([number]))
        found = counted()
        assert loaded["mp4.audio"][0].shape == (1, 96_000)
        track = clips.source._files["mp4"].index(number).first("audio")
        segment = int(track.columns.size.sum() * 2 / 40)
        assert segment + (256 << 10) < len(files[loaded["__key__"][0]]) / 2
        assert segment / 2 < found["bytes"] <= segment + (256 << 10)
